"""What Kubernetes' `restricted` pod security asks of a pod, as a function: the problems of a pod's spec.

Follows the Pod Security Standards of Kubernetes 1.36. `tests/kube` asks the API server the same.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
_SECCOMP = ("RuntimeDefault", "Localhost")
_SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}  # fmt: skip


def containers(spec: Json) -> list[Json]:
    """Every container of a pod, of whatever kind."""
    return [c for kind in ("initContainers", "containers", "ephemeralContainers") for c in spec.get(kind) or []]


def problems(spec: Json) -> list[str]:
    """Why a namespace that enforces `restricted` refuses the pod; empty when it doesn't."""
    found = [f"{name} is true" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    pod = spec.get("securityContext") or {}
    for volume in spec.get("volumes") or []:
        found += [f"volume {volume['name']}: {kind}" for kind in volume.keys() - {"name"} - _VOLUMES]
    found += [f"sysctl {one['name']}" for one in pod.get("sysctls") or [] if one["name"] not in _SYSCTLS]
    if pod.get("runAsUser") == 0:
        found.append("the pod runs as root")
    for container in containers(spec):
        found += [f"{container['name']}: {problem}" for problem in _of_container(container, pod)]
    return found


def _of_container(container: Json, pod: Json) -> list[str]:
    own = container.get("securityContext") or {}
    capabilities = own.get("capabilities") or {}
    found = []
    if own.get("privileged"):
        found.append("privileged")
    if own.get("allowPrivilegeEscalation") is not False:
        found.append("may escalate privileges")
    if "ALL" not in (capabilities.get("drop") or []):
        found.append("keeps capabilities")
    found += [f"adds {name}" for name in capabilities.get("add") or [] if name != "NET_BIND_SERVICE"]
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        found.append("may run as root")
    if own.get("runAsUser") == 0:
        found.append("runs as root")
    if (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type") not in _SECCOMP:
        found.append("has no seccomp profile")
    if own.get("procMount", "Default") != "Default":
        found.append("unmasks /proc")
    found += [f"hostPort {port['hostPort']}" for port in container.get("ports") or [] if port.get("hostPort")]
    return found
