"""Sandbox tier that reward pods can offer to programs, told from the pod's spec before there is a pod.

Pure. Owns the refusal of jobs whose programs or boxes their pods could never run: below T3 a program is one process
that writes nothing, and the job's rules tie languages and needs to that tier. What the spec can't tell (the node's
kernel, an open seccomp profile) is taken for the better, for the service probes when it starts and refuses what it
can't do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from areal.spec.code_tiers import PROCESSES, level
from areal.spec.job import RLJob
from areal.spec.runtime import MAIN_CONTAINER, RuntimeSandbox

Kernel = Literal["host", "gvisor", "kata"]

_LOOSER = (
    "let the platform's runtime give its reward pods namespaces (hostUsers: false, runAsUser 0 and the capability "
    "SYS_ADMIN in spec.roles.reward.template, as docs/reward.md shows)"
)


@dataclass(frozen=True)
class TierOffer:
    """The best that a pod can offer to a program."""

    tier: Literal["T2", "T3", "T4"]
    kernel: Kernel


def kernel_of(runtime_class: str | None, sandbox: RuntimeSandbox) -> Kernel:
    """Whose kernel the pods of a RuntimeClass have."""
    if runtime_class in sandbox.virtual_machines:
        return "kata"
    return "gvisor" if runtime_class in sandbox.gvisor else "host"


def offer_of(pod_spec: Mapping[str, Any], sandbox: RuntimeSandbox) -> TierOffer:
    """What a pod with this spec can offer.

    Args:
        pod_spec: of the reward service, everything merged.
        sandbox: what the runtime says of RuntimeClasses.
    """
    kernel = kernel_of(pod_spec.get("runtimeClassName"), sandbox)
    if kernel != "host":  # their own kernel lets users make namespaces, whatever the pod's profile says
        return TierOffer("T4", kernel)
    return TierOffer("T3" if _may_unshare(pod_spec) else "T2", kernel)


def refusal(job: RLJob, offer: TierOffer) -> tuple[str, str] | None:
    """Why the job's programs can't be judged in such pods, and what to do; None when they can."""
    if job.spec.reward.verifier != "code":
        return None
    code = job.spec.reward.programs
    if level(code.min_tier) > level(offer.tier):
        fix = "Set podTemplate.reward.runtimeClassName to a class of gVisor or Kata that the runtime lists"
        if code.min_tier == "T3":
            fix += f", or {_LOOSER}"
        message = f"spec.reward.code.minTier is {code.min_tier}, but its reward pods offer {offer.tier}"
        return message, f"{fix}; or lower minTier."
    return None


def box_refusal(offer: TierOffer) -> tuple[str, str] | None:
    """Why such pods can't have boxes, which fork, execute and write files; None when they can."""
    if level(offer.tier) >= level(PROCESSES):
        return None
    fix = f"Set podTemplate.reward.runtimeClassName to a class of gVisor or Kata that the runtime lists, or {_LOOSER}."
    return f"spec.rollout.boxes needs tier {PROCESSES}, but the pod of boxes offers {offer.tier}", fix


def _may_unshare(pod_spec: Mapping[str, Any]) -> bool:
    """Whether the service could make namespaces: as root with SYS_ADMIN, or with a seccomp profile that lets users."""
    pod = pod_spec.get("securityContext") or {}
    main: Mapping[str, Any] = next(
        (one for one in pod_spec.get("containers") or () if one.get("name") == MAIN_CONTAINER), {}
    )
    own = main.get("securityContext") or {}
    if own.get("privileged"):
        return True
    profile = (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type")
    if profile in ("Unconfined", "Localhost"):
        return True
    user = own.get("runAsUser", pod.get("runAsUser"))
    added = (own.get("capabilities") or {}).get("add") or ()
    return user == 0 and bool({"SYS_ADMIN", "CAP_SYS_ADMIN", "ALL"}.intersection(added))
