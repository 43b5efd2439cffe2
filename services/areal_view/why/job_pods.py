"""Causes in a job's pods: claims without a volume, nodes that are gone, images, mounts, containers, probes. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from areal.observe.live import Diagnosis
from areal.yaml_file.table import read_table

from areal_view.why.job_facts import (
    JobFacts,
    Json,
    claim_names,
    condition,
    containers,
    last_end,
    moment,
    name_of,
    node_name,
    phase,
    role,
    started,
    waiting,
)

PENDING_S = 10.0  # a provisioner needs a moment
STUCK_S = 10.0  # beyond a terminating pod's grace period

FIXES: Mapping[str, Mapping[Any, str]] = read_table("areal_view.why", "fixes.yaml")

Cause = Callable[[JobFacts], Diagnosis | None]


def fix_by_words(whose: str, words: str) -> str:
    """Fix for what the scheduler, the registry of images or the API server (`admission`) says."""
    return next((fix for part, fix in FIXES[whose].items() if part in words), FIXES["other_words"][whose])


def _at(facts: JobFacts, pod: Json, cause: str, text: str, fix: str, at: str | None = None) -> Diagnosis:
    at = at or condition(pod, "Ready").get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    return Diagnosis(cause, text, fix, role(pod), since_s=facts.since(at), pod=name_of(pod))


def _claim_missing(facts: JobFacts) -> Diagnosis | None:
    if facts.claims is None:
        return None
    there = {name_of(claim) for claim in facts.claims}
    for pod in facts.current():
        for name in claim_names(pod):
            if name not in there and not node_name(pod):
                fix = f"create the claim {name} in the job's namespace, or correct its name in the job"
                return _at(facts, pod, "claim-missing", f"there is no PersistentVolumeClaim {name}", fix)
    return None


def _claim_unbound(facts: JobFacts) -> Diagnosis | None:
    mounted = {name for pod in facts.pods for name in claim_names(pod)}
    for claim in facts.claims or ():
        name, now = name_of(claim), (claim.get("status") or {}).get("phase", "Pending")
        if name not in mounted or now == "Bound":
            continue
        born = claim["metadata"].get("creationTimestamp")
        if now == "Lost":
            fix = "its volume was deleted: with it went the run; delete the claim and submit the job again"
            return Diagnosis("claim-lost", f"the claim {name} has lost its volume", fix)
        failed = facts.event("PersistentVolumeClaim", name, "ProvisioningFailed", "FailedBinding")
        for_pod = facts.event("PersistentVolumeClaim", name, "WaitForFirstConsumer") is not None
        if failed is None and (for_pod or (facts.since(born) or 0.0) < PENDING_S):
            continue
        asked = ", ".join((claim.get("spec") or {}).get("accessModes") or ())
        words = f": {failed['note']}" if failed is not None else f": nothing provides it yet ({asked})"
        fix = "name a storage class that can do it in the runtime's spec.storage; `kubectl get storageclasses`"
        return Diagnosis("claim-pending", f"the claim {name} has no volume{words}", fix, since_s=facts.since(born))
    return None


def _refused_by_event(facts: JobFacts) -> Diagnosis | None:
    """A workload's controller may not make pods; the operator says so only after a while."""
    if facts.condition("Scheduled").get("status") == "True":
        return None
    for kind in ("StatefulSet", "ReplicaSet", "Job"):
        for event in facts.events:
            of = event.get("regarding") or {}
            if event.get("reason") != "FailedCreate" or of.get("kind") != kind:
                continue
            name = str(of.get("name", ""))
            there = any(name_of(pod).startswith(f"{name}-") for pod in facts.pods)
            if name.startswith(f"{facts.name}-") and not there:
                fix = "make room in the quota, ask for less, or keep to the namespace's Pod Security"
                return Diagnosis("PodsRefused", f"pods of {kind} {name} are refused: {event['note']}", fix)
    return None


def _node(facts: JobFacts) -> Diagnosis | None:
    if facts.nodes is None:
        return None
    for pod in facts.current():
        where = node_name(pod)
        if not where:
            continue
        node = facts.node(where)
        if node is None:
            fix = "the pod goes by itself within minutes, and is made anew elsewhere"
            return _at(facts, pod, "NodeLost", f"its node {where} is gone", fix)
        ready = condition(node, "Ready")
        at = ready.get("lastTransitionTime")
        if ready.get("status") == "Unknown":
            fix = f"once the machine is known to be off: `kubectl taint node {where} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`"  # noqa: E501
            return _at(facts, pod, "NodeSilent", f"it is on {where}, which does not answer", fix, at)
        if ready.get("status") == "False":
            text = f"its node {where} is not ready: {ready.get('message') or ready.get('reason')}"
            return _at(facts, pod, "NodeNotReady", text, f"`kubectl describe node {where}`", at)
    return None


def _evicted(facts: JobFacts) -> Diagnosis | None:
    for pod in facts.pods:
        status = pod.get("status") or {}
        live = any(role(other) == role(pod) and phase(other) != "Failed" for other in facts.pods)
        if phase(pod) == "Failed" and status.get("reason") == "Evicted" and not live:
            fix = "the node ran out of it: raise the role's requests, or free the node's disk"
            return _at(facts, pod, "Evicted", f"it was evicted: {status.get('message', '')}", fix)
    return None


_PULL = ("ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError")
_NEVER_PULLED = "load the image into the node (`make images-load`), or let it be pulled"


def _image(facts: JobFacts) -> Diagnosis | None:
    for pod in facts.current():
        found = waiting(pod)
        if found is None or found[1]["reason"] not in (*_PULL, "InvalidImageName"):
            continue
        container, state = found
        words = state.get("message") or state["reason"]
        told = facts.event("Pod", name_of(pod), "Failed")
        detail = told["note"] if told is not None and told["note"] not in words else ""
        fix = "correct the image's name in the runtime"
        if state["reason"] == "ErrImageNeverPull":
            fix = _NEVER_PULLED
        elif state["reason"] in _PULL:
            fix = fix_by_words("images", f"{words} {detail}")
        image = f" (image {container['image']})" if container.get("image") and container["image"] not in words else ""
        return _at(facts, pod, state["reason"], words + image + (f"; {detail}" if detail else ""), fix)
    return None


def _container(facts: JobFacts) -> Diagnosis | None:
    for pod in facts.current():
        found = waiting(pod)
        if found is not None and (fix := FIXES["containers"].get(found[1]["reason"])) is not None:
            return _at(facts, pod, found[1]["reason"], found[1].get("message") or found[1]["reason"], fix)
    return None


def _not_created(facts: JobFacts) -> Diagnosis | None:
    for pod in facts.current():
        if not node_name(pod) or started(pod):
            continue
        event = facts.event("Pod", name_of(pod), *FIXES["not_created"])
        if event is not None:
            return _at(facts, pod, event["reason"], event["note"], FIXES["not_created"][event["reason"]])
    return None


def _crashes(facts: JobFacts) -> Diagnosis | None:
    for pod in facts.current():
        for container in containers(pod):
            state = (container.get("state") or {}).get("waiting") or {}
            if state.get("reason") != "CrashLoopBackOff":
                continue
            end = last_end(container)
            words = state.get("message") or state["reason"]
            last = (end.get("message") or "").strip().rpartition("\n")[2]
            text = f"{words}; it ended with {end.get('exitCode', '?')} ({end.get('reason', '?')})"
            text += f": {last}" if last else ""
            if end.get("reason") == "OOMKilled":
                fix = "raise the memory limit in the role's podTemplate.resources"
                return _at(facts, pod, "OOMKilled", text, fix, end.get("finishedAt"))
            fix = FIXES["codes"].get(end.get("exitCode", 0), f"`kubectl logs {name_of(pod)} --previous`")
            return _at(facts, pod, "CrashLoopBackOff", text, fix, end.get("finishedAt"))
    return None


def _stuck(facts: JobFacts) -> Diagnosis | None:
    for pod in facts.pods:
        until = pod["metadata"].get("deletionTimestamp")
        at = moment(until)
        if at is None or facts.now < at + STUCK_S:
            continue
        holds = ", ".join(pod["metadata"].get("finalizers") or ())
        text = "it should have ended" + (f", and is held by the finalizers {holds}" if holds else "")
        fix = "who set the finalizer must remove it" if holds else f"see its node {node_name(pod)}: its kubelet ends it"
        return _at(facts, pod, "pod-stuck", text, fix, until)
    return None


def _probe(facts: JobFacts) -> Diagnosis | None:
    for pod in facts.current():
        unready = phase(pod) == "Running" and condition(pod, "Ready").get("status") == "False"
        runs = all("running" in (one.get("state") or {}) for one in containers(pod)[-1:])
        event = facts.event("Pod", name_of(pod), "Unhealthy")
        if unready and runs and event is not None and not pod["metadata"].get("deletionTimestamp"):
            fix = f"it runs and is not ready: `kubectl logs {name_of(pod)}`; a model takes its time to load"
            return _at(facts, pod, "Unhealthy", event["note"], fix)
    return None


VOLUME_CAUSES: tuple[Cause, ...] = (_claim_missing, _claim_unbound)
"""The causes before a pod has a node."""

PLACED_CAUSES: tuple[Cause, ...] = (
    _refused_by_event, _node, _evicted, _image, _container, _not_created, _crashes, _stuck, _probe,
)  # fmt: skip
"""The causes after it has one."""
