"""Rules of the platform on a job's pods: what `allow` and `devices` of its runtime admit; which Secrets it may read.

Pure. Each refusal names the field, what it asks for and the rule that excludes it. A Secret is judged by its metadata:
the kubelet asks nobody whether the job's author may read it, so whoever owns it says so by a label.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from areal.spec.cluster import PodPatch
from areal.spec.code_tiers import PROCESSES, level
from areal.spec.gpu_defaults import GPU
from areal.spec.job import RLJob
from areal.spec.runtime import MAIN_CONTAINER, Allow, RuntimeSandbox, RuntimeSpec


def refusal_by_runtime(job: RLJob, runtime: RuntimeSpec) -> str | None:
    """The first rule of the runtime that the job's pods break, in words; None when they keep to all."""
    for role, patch in job.spec.pod_template.by_role().items():
        for field, asked, rule, allowed in _asked(patch, runtime.allow):
            if allowed is not None and not any(PurePosixPath(asked).is_relative_to(one) for one in allowed):
                listed = ", ".join(allowed) or "nothing"
                return f"spec.podTemplate.{role}.{field}: {asked} is not in the runtime's allow.{rule} ({listed})"
    return next(_wrong_devices(job, runtime), None)


def _asked(patch: PodPatch, allow: Allow) -> Iterator[tuple[str, str, str, Sequence[str] | None]]:
    """Field, what it asks for, rule, and what that allows; None: everything."""
    for volume in patch.volumes:
        yield from (("volumes", kind, "volumeKinds", allow.volume_kinds) for kind in volume.sources())
        yield "volumes", volume.mount_path, "mountPrefixes", allow.mount_prefixes
    of_affinity = re.findall(r'"key": "([^"]*)"', json.dumps(patch.affinity.node_affinity))
    for field, keys in (("nodeSelector", patch.node_selector), ("affinity.nodeAffinity", of_affinity)):
        yield from ((field, key, "nodeSelectorKeys", allow.node_selector_keys) for key in keys)
    for toleration in patch.tolerations:
        yield "tolerations", toleration.key or "every key", "tolerationKeys", allow.toleration_keys


def _wrong_devices(job: RLJob, runtime: RuntimeSpec) -> Iterator[str]:
    name, most, pods = runtime.devices.name, runtime.devices.per_pod, job.spec.pod_template
    served = getattr(job.spec.generation.engine, "gpus", 0)
    rows = (("trainer.gpus", job.spec.trainer_pod_gpus, "trainer"), ("generation.engine.gpus", served, "generation"))
    for owner, count, role in rows:
        given = pods.by_role()[role].resources
        for device, amount in [*given.requests.items(), *given.limits.items()]:
            if device in (GPU, name) and (device, amount) != (name, str(count)):
                asked = f"spec.podTemplate.{role}.resources: {device} {amount}"
                yield f"{asked}, and {count} of the runtime's devices.name ({name}) by {owner}. Remove the former."
        here = f"spec.{owner} is {count}, and the runtime's devices."
        if most is not None and count > most:
            yield f"{here}perPod {most}: no node gives a pod more"
        if "/mig-" in name and count > 1:
            yield f"{here}name {name}: a process sees one MIG instance. Set {owner} 1, and more replicas."
        if name.endswith(".shared") and count and role == "trainer":
            yield f"{here}name {name}: a time-sliced GPU bounds no pod's memory. Train on whole ones, or MIG."


def secrets_of(job: RLJob) -> dict[str, tuple[str, bool]]:
    """The Secrets that a job's pods would read: the field, and whether the pods start without it, by name."""
    found: dict[str, tuple[str, bool]] = {}
    for role, patch in job.spec.pod_template.by_role().items():
        keys = [variable.value_from.secret_key_ref for variable in patch.env if variable.value_from]
        read = [("env", key.name, key.optional) for key in keys if key]
        read += [("volumes", volume.secret, False) for volume in patch.volumes if volume.secret]
        for field, name, optional in read:
            known = found.get(name, (f"spec.podTemplate.{role}.{field}", True))
            found[name] = (known[0], known[1] and optional)
    return found


def refusal_of_secret(
    namespace: str, name: str, secret: Mapping[str, Any] | None, wanted: tuple[str, bool], allow: Allow
) -> str | None:
    """Why a job may not read a Secret (its metadata; `wanted` is of `secrets_of`), with the command that lets it."""
    field, optional = wanted
    labels = " ".join(f"{key}={value}" for key, value in allow.secret_labels.items())
    command = f"`kubectl label secret {name} -n {namespace} {labels}`"
    if secret is None:
        made = f"`kubectl create secret generic {name} -n {namespace} --from-literal=KEY=VALUE`"
        then = f", then {command}" if labels else ""
        return None if optional else f"{field}: there is no Secret {name} in {namespace}. Make it: {made}{then}"
    has = secret["metadata"].get("labels") or {}
    if all(has.get(key) == value for key, value in allow.secret_labels.items()):
        return None
    return f"{field}: the Secret {name} lacks the label {labels}, by which jobs may read it. If they may: {command}"


# ---- Sandbox tier that reward pods can offer to programs, told from the pod's spec before there is a pod
# Refuses jobs whose programs or boxes their pods could never run. What a spec can't tell (the node's kernel, an open
# seccomp profile) is taken for the better: the service probes when it starts.


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
