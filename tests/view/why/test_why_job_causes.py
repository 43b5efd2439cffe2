"""Root causes of a job on a cluster: of each fault the right one, with its place and a fix, of a healthy job none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from areal_view.why.job_causes import JOB_CAUSES, why_job
from areal_view.why.job_facts import JobFacts

Object = dict[str, Any]
NOW = 1_900_000_000.0


def at(ago: float) -> str:
    return datetime.fromtimestamp(NOW - ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


HEALTHY = {
    "Accepted": ("True", "Valid"), "Prepared": ("True", "SnapshotsWritten"), "Suspended": ("False", "NotSuspended"),
    "Scheduled": ("True", "AllPodsBound"), "TrainerReady": ("True", "RendezvousComplete"),
    "GenerationReady": ("True", "AllReplicasReady"), "RewardReady": ("True", "Ready"),
    "Progressing": ("True", "StepReported"), "Complete": ("False", "Running"), "Failed": ("False", "NotFailed"),
}  # fmt: skip


def job(
    idle: Object | None = None,
    spec: Object | None = None,
    failures: Sequence[Object] = (),
    **changed: tuple[str, str, str],
) -> Object:
    """A job that trains, with some conditions changed: (status, reason, message)."""
    made = [
        {"type": kind, "status": given[0], "reason": given[1], "message": given[2] if len(given) > 2 else "",
         "lastTransitionTime": at(300)}
        for kind, given in {**HEALTHY, **changed}.items()
    ]  # fmt: skip
    status: Object = {"conditions": made, "observedGeneration": 3, "progress": {"step": 7, "maxSteps": 160}}
    status["failures"] = list(failures)
    status |= {"idle": {"since": at(40), **idle}} if idle else {}
    metadata = {"name": "digits", "namespace": "team", "generation": 3, "creationTimestamp": at(900)}
    return {"metadata": metadata, "spec": spec or {}, "status": status}


def pod(name: str, *, node: str = "n1", phase: str = "Pending", status: Object | None = None, **state: Any) -> Object:
    """A pod of the role in its name; `state` is of its main container."""
    labels = {"areal.dev/role": name.removeprefix("digits-").rpartition("-")[0]}
    main = {"name": "main", "image": "reg.test/areal:1", "state": state.pop("state", {}), **state}
    volumes = [{"name": "run", "persistentVolumeClaim": {"claimName": "digits-run"}}]
    return {
        "metadata": {"name": name, "labels": labels, "creationTimestamp": at(60)},
        "spec": {"nodeName": node, "volumes": volumes},
        "status": {"phase": phase, "containerStatuses": [main], **(status or {})},
    }


def waits(name: str, reason: str, message: str = "", **more: Any) -> Object:
    return pod(name, state={"waiting": {"reason": reason, "message": message}}, **more)


def event(kind: str, name: str, reason: str, note: str, ago: float = 5.0) -> Object:
    return {"regarding": {"kind": kind, "name": name}, "reason": reason, "note": note, "metadata": {},
            "deprecatedLastTimestamp": at(ago)}  # fmt: skip


def node(name: str = "n1", ready: str = "True", message: str = "") -> Object:
    condition = {"type": "Ready", "status": ready, "message": message, "lastTransitionTime": at(120)}
    return {"metadata": {"name": name}, "status": {"conditions": [condition]}}


def claim(phase: str = "Bound") -> Object:
    metadata = {"name": "digits-run", "creationTimestamp": at(90)}
    return {"metadata": metadata, "spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": phase}}


TRAINS = pod("digits-trainer-0", phase="Running", state={"running": {}})
BOUND = [claim()]
WHO = {"role": "trainer", "pod": "digits-trainer-0"}
FULL = "digits-trainer-0: 0/5 nodes are available: 3 Insufficient nvidia.com/gpu"
LOOP = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}
UNREADY = {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": at(70)}]}
GONE = pod("digits-worker-0", phase="Running", state={"running": {}})
GONE["metadata"] |= {"deletionTimestamp": at(45), "finalizers": ["team.dev/hold"]}
NO_STEP = ("False", "AwaitingFirstStep", "no step was trained yet")

CASES: list[tuple[Any, ...]] = [  # cause, place, words, words of the fix, job, facts
    ("ManagedElsewhere", "", "kueue.x-k8s.io/rl", "ask kueue", job(spec={"managedBy": "kueue.x-k8s.io/rl"})),
    ("operator-absent", "", "has not looked", "namespaces only", {**job(), "status": {}}),
    ("operator-behind", "", "generation 2", "operator",
     {**job(), "status": {**job()["status"], "observedGeneration": 2}}),
    ("StartupDeadlineExceeded", "", "for 5 min", "startupDeadline",
     job(Failed=("True", "StartupDeadlineExceeded", "1 h passed"))),
    ("PermanentError", "trainer-0", "exit code 65", "65 its data",
     job(Failed=("True", "PermanentError", "digits-trainer-0: exit code 65"), failures=[WHO]), {"pods": [TRAINS]}),
    ("ended", "", "complete, with step 7", "", job(Complete=("True", "MaxStepsReached", ""))),
    ("LocalPath", "", "model.path", "areal submit", job(Accepted=("False", "LocalPath", "model.path is local"))),
    ("RuntimeNotFound", "", "no RLRuntime", "runtimeRef",
     job(Accepted=("False", "RuntimeNotFound", "no RLRuntime x"))),
    ("DryRunRejected", "", "exceeded quota: team", "larger quota",
     job(Accepted=("False", "DryRunRejected", "Pod x: exceeded quota: team"))),
    ("DryRunRejected", "", "PodSecurity", "enforces Pod Security",
     job(Accepted=("False", "DryRunRejected", "violates PodSecurity"))),
    ("CheckpointPending", "trainer", "save a checkpoint", "when the checkpoint",
     job(Suspended=("False", "CheckpointPending", "the trainers save a checkpoint"))),
    ("Suspended", "", "all pods are gone", "kubectl patch",
     job(Suspended=("True", "Suspended", "all pods are gone"))),
    ("claim-missing", "trainer-0", "digits-run", "create the claim", job(),
     {"pods": [pod("digits-trainer-0", node="")], "claims": []}),
    ("claim-lost", "", "lost its volume", "was deleted", job(), {"pods": [TRAINS], "claims": [claim("Lost")]}),
    ("claim-pending", "", "no class of that name", "storage class", job(),
     {"pods": [pod("digits-trainer-0", node="")], "claims": [claim("Pending")],
      "events": [event("PersistentVolumeClaim", "digits-run", "ProvisioningFailed", "no class of that name")]}),
    ("claim-pending", "", "nothing provides it yet (ReadWriteMany), for 90 s", "storage class", job(),
     {"pods": [pod("digits-trainer-0", node="")], "claims": [claim("Pending")]}),
    ("PodsRefused", "", "exceeded quota", "room in the quota",
     job(Scheduled=("False", "PodsRefused", "exceeded quota: team"))),
    ("QuotaPending", "", "4 more needed", "kubectl get workloads",
     job(Suspended=("True", "Suspended", "all pods are gone"),
         Scheduled=("False", "QuotaPending", "waits for quota in queue gpus: 4 more needed"))),
    ("Gated", "worker-0", "scheduling gates", "another controller",
     job({"cause": "Gated", "role": "worker", "pod": "digits-worker-0"},
         Scheduled=("False", "Gated", "digits-worker-0: has scheduling gates")),
     {"pods": [pod("digits-worker-0", node="")]}),
    ("Unschedulable", "trainer-0", "3 Insufficient nvidia.com/gpu", "fewer GPUs",
     job({"cause": "Unschedulable", **WHO}, Scheduled=("False", "Unschedulable", FULL)),
     {"pods": [pod("digits-trainer-0", node="")]}),
    ("Unschedulable", "", "cannot allocate all claims", "resourceslices",
     job(Scheduled=("False", "Unschedulable", "0/1 nodes are available: 1 cannot allocate all claims."))),
    ("Unschedulable", "", "device class gpu.x does not exist", "install the driver",
     job(Scheduled=("False", "Unschedulable", "request gpus: device class gpu.x does not exist"))),
    ("Unschedulable", "", "untolerated taint", "tolerate",
     job(Scheduled=("False", "Unschedulable", "2 had untolerated taint {a: b}"))),
    ("Unschedulable", "", "Insufficient cpu", "requests",
     job(Scheduled=("False", "Unschedulable", "1 Insufficient cpu"))),
    ("PodsRefused", "", "violates PodSecurity", "Pod Security",
     job(Scheduled=("False", "PodsMissing", "0 of 1 pods")),
     {"events": [event("StatefulSet", "digits-trainer", "FailedCreate", "violates PodSecurity")]}),
    ("NodeLost", "trainer-0", "n1 is gone", "by itself", job(), {"pods": [TRAINS], "nodes": [node("n2")]}),
    ("NodeSilent", "trainer-0", "n1, which does not answer, for 2 min", "out-of-service", job(),
     {"pods": [TRAINS], "nodes": [node(ready="Unknown")]}),
    ("NodeNotReady", "trainer-0", "PLEG", "describe node", job(), {"pods": [TRAINS],
     "nodes": [node(ready="False", message="PLEG")]}),
    ("Evicted", "worker-0", "low on ephemeral-storage", "requests", job(),
     {"pods": [pod("digits-worker-0", phase="Failed",
     status={"reason": "Evicted", "message": "low on ephemeral-storage"})]}),
    ("ImagePullBackOff", "worker-0", "(image reg.test/areal:1); 401 Unauthorized", "imagePullSecret", job(),
     {"pods": [waits("digits-worker-0", "ImagePullBackOff", "Back-off")],
      "events": [event("Pod", "digits-worker-0", "Failed", "401 Unauthorized"),
     event("Pod", "digits-worker-0", "Failed", "old", 99)]}),
    ("ErrImagePull", "worker-0", "manifest unknown", "correct its tag", job(),
     {"pods": [waits("digits-worker-0", "ErrImagePull", "manifest unknown")]}),
    ("ErrImageNeverPull", "worker-0", "is not present", "images-load", job(),
     {"pods": [waits("digits-worker-0", "ErrImageNeverPull", "reg.test/areal:1 is not present")]}),
    ("InvalidImageName", "worker-0", "InvalidImageName", "image's name", job(),
     {"pods": [waits("digits-worker-0", "InvalidImageName")]}),
    ("CreateContainerConfigError", "trainer-0", 'secret "hub" not found', "Secret or ConfigMap", job(),
     {"pods": [waits("digits-trainer-0", "CreateContainerConfigError", 'secret "hub" not found')]}),
    ("RunContainerError", "trainer-0", "exec: areal-role", "lacks the command", job(),
     {"pods": [waits("digits-trainer-0", "RunContainerError", "exec: areal-role")]}),
    ("FailedMount", "trainer-0", 'configmap "x" not found', "create the Secret", job(),
     {"pods": [waits("digits-trainer-0", "ContainerCreating")], "events":
     [event("Pod", "digits-trainer-0", "FailedMount", 'configmap "x" not found')]}),
    ("FailedAttachVolume", "redis-0", "Multi-Attach error", "another node", job(),
     {"pods": [waits("digits-redis-0", "ContainerCreating")], "events":
     [event("Pod", "digits-redis-0", "FailedAttachVolume", "Multi-Attach error")]}),
    ("FailedCreatePodSandBox", "redis-0", "no runtime for gvisor", "RuntimeClass", job(),
     {"pods": [waits("digits-redis-0", "ContainerCreating")], "events":
     [event("Pod", "digits-redis-0", "FailedCreatePodSandBox", "no runtime for gvisor")]}),
    ("OOMKilled", "trainer-0", "it ended with 137 (OOMKilled)", "memory limit", job(),
     {"pods": [pod("digits-trainer-0", phase="Running", state=LOOP,
     lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})]}),
    ("CrashLoopBackOff", "trainer-0", "with 64 (Error): no such model", "no restart helps", job(),
     {"pods": [pod("digits-trainer-0", state=LOOP,
     lastState={"terminated": {"exitCode": 64, "reason": "Error", "message": "x\nno such model\n"}})]}),
    ("CrashLoopBackOff", "worker-0", "with 1 (Error)", "logs digits-worker-0 --previous", job(),
     {"pods": [pod("digits-worker-0", state=LOOP, lastState={"terminated": {"exitCode": 1, "reason": "Error"}})]}),
    ("pod-stuck", "worker-0", "finalizers team.dev/hold, for 45 s", "must remove it", job(), {"pods": [GONE]}),
    ("Unhealthy", "generation-0", "connection refused", "logs digits-generation-0", job(),
     {"pods": [pod("digits-generation-0", phase="Running", state={"running": {}}, status=UNREADY)],
      "events": [event("Pod", "digits-generation-0", "Unhealthy", "Readiness probe failed: connection refused")]}),
    ("Preparing", "prepare", "at work", "job/digits-prepare",
     job(Prepared=("False", "Preparing", "the preparing pod is at work"))),
    ("BackingOff", "trainer", "3 epochs", "status.failures",
     job(Progressing=("False", "BackingOff", "3 epochs ended without a step"))),
    ("Waiting", "trainer", "no server answers", "not at fault",
     job(Progressing=("False", "Waiting", "step 7 was last; no server answers"))),
    ("no-weights", "controller", "no weights are published yet, for 40 s", "start model",
     job({"cause": "no-weights", "text": "no weights are published yet", "role": "controller"}, Progressing=NO_STEP)),
    ("Auditing", "finish", "being made", "", job(Complete=("False", "Auditing", "audit and report are being made"))),
    ("PodsMissing", "", "1 of 6 pods", "kubectl get events",
     job(Scheduled=("False", "PodsMissing", "1 of 6 pods have a node"), Progressing=NO_STEP)),
    ("NoReplicaReady", "generation", "0 of 2 servers", "takes its time",
     job(GenerationReady=("False", "NoReplicaReady", "0 of 2 servers answer"), Progressing=NO_STEP)),
    ("NoReplicaReady", "reward", "0 of 1 pods", "logs",
     job(RewardReady=("False", "NoReplicaReady", "0 of 1 pods answer"), Progressing=NO_STEP)),
    ("Verifying", "reward", "and none the workers", "logs",
     job(RewardReady=("Unknown", "Verifying", "1 of 1 pods answer Kubernetes, and none the workers: w-0 waited"))),
    ("Forming", "trainer", "1 of 2 pods", "gang",
     job(TrainerReady=("False", "Forming", "epoch 1: 1 of 2 pods are in it"), Progressing=NO_STEP)),
    ("AwaitingFirstStep", "trainer", "no step was trained yet", "", job(Progressing=NO_STEP)),
    ("Verifying", "trainer", "digits-trainer-0 on n1 doesn't answer", "",
     job(Progressing=("Unknown", "Verifying", "digits-trainer-0 on n1 doesn't answer since 12:00; step 5 was last"))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "place", "words", "fix", "told", "more"),
    [(*case, {})[:6] for case in CASES],
    ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)],
)
def test_each_fault_has_its_cause_place_and_fix(
    cause: str, place: str, words: str, fix: str, told: Object, more: dict[str, Any]
) -> None:
    answer = why_job(JobFacts(told, NOW, **{"claims": BOUND, "nodes": [node()], **more}))
    assert answer.cause == cause
    assert (answer.pod.removeprefix("digits-") or answer.role) == place
    assert words in answer.sentence
    assert fix in answer.fix


def test_every_cause_of_the_table_is_met_by_a_case() -> None:
    met = set()
    for told, more in ((*case, {})[4:6] for case in CASES):
        facts = JobFacts(told, NOW, **{"claims": BOUND, "nodes": [node()], **more})
        met.add(next(cause for cause in JOB_CAUSES if cause(facts) is not None))
    assert met | {JOB_CAUSES[-1]} == set(JOB_CAUSES)


def test_the_matrix_of_faults_on_fake_nodes() -> None:
    """`make stalls` shows it."""
    lines, right, names = [], 0, set[str]()
    for wanted, place, _, _, told, more in ((*case, {})[:6] for case in CASES):
        began = time.perf_counter()
        answer = why_job(JobFacts(told, NOW, **{"claims": BOUND, "nodes": [node()], **more}))
        found = (answer.cause, answer.pod.removeprefix("digits-") or answer.role) == (wanted, place)
        right, names = right + found, names | {wanted}
        took_ms = 1000 * (time.perf_counter() - began)
        lines.append(f"  {wanted:<28} {'right' if found else 'WRONG'}  {took_ms:6.2f} ms  {answer.sentence}")
    print("\n" + "\n".join(lines), f"\n  {right} of {len(CASES)} faults, {len(names)} causes")
    assert len(names) >= 30
    assert right >= 0.95 * len(CASES)


STARTING = waits("digits-generation-1", "ContainerCreating")
YOUNG = claim("Pending")
YOUNG["metadata"]["creationTimestamp"] = at(2)
HARMLESS: list[dict[str, Any]] = [
    {"pods": [TRAINS]},
    {"pods": [STARTING]},
    {"pods": [TRAINS], "nodes": None, "claims": None},
    {"pods": [pod("digits-trainer-0", node="")], "claims": [YOUNG]},
    {"pods": [pod("digits-trainer-0", node="")], "claims": [claim("Pending")],
     "events": [event("PersistentVolumeClaim", "digits-run", "WaitForFirstConsumer", "waiting")]},
    {"pods": [TRAINS], "events": [event("Pod", "digits-trainer-0", "FailedMount", "mended"),
                                  event("Pod", "digits-trainer-0", "Unhealthy", "while it loaded"),
                                  event("StatefulSet", "digits-trainer", "FailedCreate", "mended")]},
    {"pods": [TRAINS, pod("digits-trainer-9", phase="Failed", status={"reason": "Evicted"})]},
]  # fmt: skip


@pytest.mark.parametrize("more", HARMLESS)
def test_what_passes_by_itself_is_no_cause(more: dict[str, Any]) -> None:
    answer = why_job(JobFacts(job(), NOW, **{"claims": BOUND, "nodes": [node()], **more}))
    assert (answer.cause, answer.fix) == ("none", "")
    assert answer.sentence == "nothing is wrong: it is at step 7 of 160"


def test_a_volume_comes_before_the_pod_that_waits_for_it() -> None:
    told = job(
        Scheduled=("False", "Unschedulable", "digits-trainer-0: pod has unbound immediate PersistentVolumeClaims")
    )
    facts = JobFacts(told, NOW, pods=[pod("digits-trainer-0", node="")], claims=[claim("Pending")])
    assert why_job(facts).cause == "claim-pending"
