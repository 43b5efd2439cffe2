"""A real control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

Everything it writes is in one folder, every port is a free one of loopback, every process is ended by its pid. The API
server can be stopped, started again on the same port and made to forget its past (`compact`), because that is what
operators have to live through. `ExternalCluster` is the same face on a cluster that somebody else runs.
"""

from __future__ import annotations

import base64
import shutil
import time
from pathlib import Path
from typing import Protocol

import httpx
from areal.plan.roles import free_ports
from kube.harness.client import Client
from kube.harness.pki import Pki
from kube.harness.processes import NotReady, Process, eventually
from kube.harness.tools import tool

SERVICE_RANGE = "10.96.0.0/16"
ISSUER = "https://kubernetes.default.svc.cluster.local"


class Cluster(Protocol):
    """What tests may ask of a cluster, ours or another."""

    kubeconfig: Path
    url: str
    ours: bool

    @property
    def admin(self) -> Client:
        """A client with every right."""

    def as_token(self, name: str, token: str) -> Path:
        """A kubeconfig for the holder of a token (of a service account)."""


_AGAIN = """trap 'kill "$child" 2>/dev/null; wait "$child"; exit 0' TERM
while :; do "$@" & child=$!; wait "$child"; sleep 0.2; done"""
# As a kubelet would: the scheduler ends itself when an API server that died had bound a pod without saying so.


class ControlPlane:
    """etcd and three Kubernetes processes; `start` it, then `stop` it."""

    ours = True

    def __init__(self, directory: Path, *, port: int = 0, gang: bool = False) -> None:
        """`port` of the API server; 0: a free one. `gang`: PodGroups, which are alpha in this release."""
        self.directory = directory
        self._gang = gang
        self._etcd_port, self._peer_port, free = free_ports(3)
        self._port = port or free
        self.url = f"https://127.0.0.1:{self._port}"
        self._pki = Pki(directory / "pki")
        for name, subject in (
            ("admin", "/O=system:masters/CN=admin"),
            ("controller-manager", "/CN=system:kube-controller-manager"),
            ("scheduler", "/CN=system:kube-scheduler"),
        ):
            self._pki.issue(name, subject)
            self._pki.kubeconfig(name, self.url)
        self.kubeconfig = Path(self._pki.path("admin.kubeconfig"))
        self.admin = Client(self.kubeconfig)
        self._running: dict[str, Process] = {}

    def start(self) -> None:
        """Starts all four and returns when the API server is ready and hands out service accounts."""
        self._start_etcd()
        self.start_apiserver()
        self._start_controller_manager()
        self._start_scheduler()
        eventually(lambda: self.admin.get("v1", "ServiceAccount", "default", "default"), "the default service account")

    def stop(self) -> None:
        """Ends what still runs, the API server's clients first; the logs stay, the data goes."""
        self.admin.close()
        for name in ("scheduler", "controller-manager", "apiserver", "etcd"):
            process = self._running.pop(name, None)
            if process is not None:
                process.stop(grace_s=3 if name == "apiserver" else 20)
        shutil.rmtree(self.directory / "etcd", ignore_errors=True)

    @property
    def apiserver(self) -> Process:
        """The running API server."""
        return self._running["apiserver"]

    def stop_apiserver(self, *, kill: bool = False) -> None:
        """Ends the API server (with -9 if `kill`); what it knew is in etcd."""
        self._running.pop("apiserver").stop(grace_s=0 if kill else 3)  # open watches would keep it for a minute

    def start_apiserver(self) -> None:
        """Starts it on its port and returns when it is ready."""
        command = [tool("kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{self._etcd_port}"]
        command += ["--bind-address=127.0.0.1", f"--secure-port={self._port}", "--endpoint-reconciler-type=none"]
        command += [f"--tls-cert-file={self._pki.path('apiserver.crt')}"]
        command += [f"--tls-private-key-file={self._pki.path('apiserver.key')}", f"--cert-dir={self._pki.directory}"]
        command += [f"--client-ca-file={self._pki.path('ca.crt')}", "--authorization-mode=Node,RBAC"]
        command += ["--allow-privileged=true"]
        command += ["--enable-admission-plugins=NodeRestriction,PodSecurity,OwnerReferencesPermissionEnforcement"]
        command += [f"--service-cluster-ip-range={SERVICE_RANGE}", f"--service-account-issuer={ISSUER}"]
        command += [f"--service-account-key-file={self._pki.path('service-accounts.pub')}"]
        command += [f"--service-account-signing-key-file={self._pki.path('service-accounts.key')}"]
        command += ["--shutdown-delay-duration=0s", "--profiling=false", "--lease-reuse-duration-seconds=3600"]
        if self._gang:
            command += ["--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1alpha2=true"]
        self._start("apiserver", command)
        self.apiserver.wait_until(self.admin.ready, "ready", timeout_s=90)

    def restart_apiserver(self, *, kill: bool = False) -> None:
        """Ends and starts it again: clients are hung up on, and its watch cache begins anew."""
        self.stop_apiserver(kill=kill)
        self.start_apiserver()

    def compact(self) -> None:
        """Makes etcd forget every older revision, so that a watch from one of them is answered 410 once the API server
        has restarted."""
        url = f"http://127.0.0.1:{self._etcd_port}/v3/kv"
        key = base64.b64encode(b"compact-probe").decode()
        revision = httpx.post(f"{url}/put", json={"key": key, "value": ""}, trust_env=False).json()["header"][
            "revision"
        ]
        httpx.post(
            f"{url}/compaction", json={"revision": revision, "physical": True}, trust_env=False
        ).raise_for_status()

    def as_user(self, name: str, *groups: str) -> Path:
        """A kubeconfig for a user of that name in those groups, who has the rights that RBAC gives."""
        self._pki.issue(name, "".join(f"/O={group}" for group in groups) + f"/CN={name}")
        return self._pki.kubeconfig(name, self.url)

    def as_token(self, name: str, token: str) -> Path:
        """A kubeconfig for the holder of a token (of a service account)."""
        return self._pki.kubeconfig(name, self.url, {"token": token})

    @property
    def processes(self) -> dict[str, Process]:
        """What runs, by name."""
        return dict(self._running)

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        command = [tool("etcd"), "--name=test", f"--data-dir={self.directory / 'etcd'}", "--unsafe-no-fsync"]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"]
        command += [f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=test={peer}", "--log-level=warn"]
        self._start("etcd", command)

    def _start_controller_manager(self) -> None:
        command = [tool("kube-controller-manager"), *self._component("controller-manager")]
        command += ["--use-service-account-credentials=true", f"--root-ca-file={self._pki.path('ca.crt')}"]
        command += [f"--service-account-private-key-file={self._pki.path('service-accounts.key')}"]
        command += [f"--cluster-signing-cert-file={self._pki.path('ca.crt')}"]
        command += [f"--cluster-signing-key-file={self._pki.path('ca.key')}", "--allocate-node-cidrs=false"]
        command += ["--concurrent-statefulset-syncs=20", "--concurrent-job-syncs=10"]
        command += ["--node-monitor-grace-period=60s", "--pvclaimbinder-sync-period=5s"]
        self._start("controller-manager", command)

    def _start_scheduler(self) -> None:
        scheduler = [tool("kube-scheduler"), *self._component("scheduler")]
        scheduler += ["--feature-gates=GenericWorkload=true,GangScheduling=true"] * self._gang
        self._start("scheduler", ["sh", "-c", _AGAIN, "scheduler", *scheduler])

    def _component(self, name: str) -> list[str]:
        config = self._pki.path(f"{name}.kubeconfig")
        flags = [
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
        ]
        return [*flags, "--leader-elect=false", "--secure-port=0", "--kube-api-qps=200", "--kube-api-burst=400"]

    def _start(self, name: str, command: list[str]) -> None:
        self._running[name] = Process(name, command, self.directory / "log" / f"{name}.log")


class ExternalCluster:
    """A cluster that somebody else runs: a kubeconfig with every right in it."""

    ours = False

    def __init__(self, kubeconfig: Path, directory: Path) -> None:
        self.kubeconfig = kubeconfig
        self.admin = Client(kubeconfig)
        self.url = str(self.admin.base_url)
        self._directory = directory
        if not self.admin.ready():
            raise NotReady(f"the cluster of KUBECONFIG={kubeconfig} does not answer")

    def as_token(self, name: str, token: str) -> Path:
        """A kubeconfig for the holder of a token (of a service account)."""
        return self.admin.with_token(token, self._directory / f"{name}-{time.time_ns()}.kubeconfig")

    def stop(self) -> None:
        """Hangs up; the cluster is not ours to end."""
        self.admin.close()
