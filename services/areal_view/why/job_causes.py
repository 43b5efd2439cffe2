"""Root causes of a job that waits on a cluster: an ordered table, of which the first that fits is the answer. Pure.

The order is from what holds up everything to what is normal: nobody looks at the job, it has ended, it is refused, it
rests, its volumes, nodes, images and containers, its preparation, what the operator and the controller say of it, and
at last the gang and the first step. Where the operator has a sentence for it (a condition's message, `status.idle`),
that sentence is the answer; what the operator does not look at is read of pods, claims, nodes and events.
"""

from collections.abc import Callable

from areal.observe.live import Diagnosis
from areal.spec.cluster import MANAGER

from areal_view.why.job_facts import JobFacts, Json, moment
from areal_view.why.job_pods import FIXES, PLACED_CAUSES, VOLUME_CAUSES, fix_by_words

UNSEEN_S = 10.0  # an operator that runs looks at a new job within a second or two
_OPERATOR = "look at the operator: `kubectl get pods -A -l app.kubernetes.io/name=areal`, and at its log"


def why_job(facts: JobFacts) -> Diagnosis:
    """The first cause that fits."""
    return next(answer for cause in JOB_CAUSES if (answer := cause(facts)) is not None)


def said(facts: JobFacts, found: Json, fix: str = "", place: str = "", pod: str = "") -> Diagnosis:
    """A condition as an answer. `pod`: the pod that it is about, whose name its message begins with."""
    text = (found.get("message") or found["reason"]).removeprefix(f"{pod}: ")
    return Diagnosis(found["reason"], text, fix, place, since_s=facts.since(found.get("lastTransitionTime")), pod=pod)


def _managed_elsewhere(facts: JobFacts) -> Diagnosis | None:
    manager = facts.job.get("spec", {}).get("managedBy", MANAGER)
    if manager == MANAGER:
        return None
    fix = f"ask {manager} about it; this operator leaves the job alone, its status too"
    return Diagnosis("ManagedElsewhere", f"spec.managedBy says that {manager} runs it", fix)


def _unseen(facts: JobFacts) -> Diagnosis | None:
    if facts.status.get("conditions"):
        return None
    age = facts.since(facts.job["metadata"].get("creationTimestamp")) or 0.0
    late = age >= UNSEEN_S
    fix = _OPERATOR + "; it may watch other namespaces only" if late else ""
    return Diagnosis("operator-absent" if late else "new", "the operator has not looked at the job", fix, since_s=age)


def _behind(facts: JobFacts) -> Diagnosis | None:
    seen, asked = facts.status.get("observedGeneration", 0), facts.job["metadata"].get("generation", 0)
    if seen >= asked:
        return None
    return Diagnosis(
        "operator-behind", f"the operator has seen generation {seen} of the job, not yet {asked}", _OPERATOR
    )


_OF_A_POD = frozenset({"MaxRestartsExceeded", "RuleMatched", "PermanentError"})  # the newest of status.failures


def _failed(facts: JobFacts) -> Diagnosis | None:
    found = facts.condition("Failed")
    if found.get("status") != "True":
        return None
    last = (facts.status.get("failures") or [{}])[-1] if found["reason"] in _OF_A_POD else {}
    fix = FIXES["after_failure"].get(found["reason"], "")
    return said(facts, found, fix, last.get("role", ""), last.get("pod", ""))


def _complete(facts: JobFacts) -> Diagnosis | None:
    found = facts.condition("Complete")
    if found.get("status") != "True":
        return None
    progress = facts.status.get("progress") or {}
    text = f"the job is complete, with step {progress.get('step', 0)}"
    return Diagnosis("ended", text, since_s=facts.since(found.get("lastTransitionTime")))


def _refused(facts: JobFacts) -> Diagnosis | None:
    found = facts.false("Accepted")
    if found is None:
        return None
    refused = found["reason"] == "DryRunRejected"
    by_words = fix_by_words("admission", found.get("message", ""))
    return said(facts, found, by_words if refused else FIXES["after_refusal"].get(found["reason"], ""))


def _suspension(facts: JobFacts) -> Diagnosis | None:
    found = facts.condition("Suspended")
    if (queued := facts.false("Scheduled", "QuotaPending")) is not None:
        return said(facts, queued, "`kubectl get workloads,localqueues`: the queue lets it start when there is room")
    if found.get("status") == "True":
        fix = f"""`kubectl patch rljob {facts.name} --type=merge -p '{{"spec":{{"suspend":false}}}}'` lets it go on"""
        return said(facts, found, fix)
    if found.get("reason", "NotSuspended") == "NotSuspended":
        return None
    return said(facts, found, "it rests when the checkpoint is saved and its pods are gone", "trainer")


def _placing(facts: JobFacts) -> Diagnosis | None:
    """Pods without a node, in the words that the operator wrote."""
    found = facts.false("Scheduled", "PodsRefused", "Gated", "Unschedulable", "NodeSilent")
    if found is None or not found.get("message"):
        return None
    fix = FIXES["placing"].get(found["reason"]) or fix_by_words("scheduler", found["message"])
    idle = facts.status.get("idle") or {}  # it names the pod that the condition is about
    about = idle if idle.get("cause") == found["reason"] else {}
    return said(facts, found, fix, about.get("role", ""), about.get("pod", ""))


def _preparing(facts: JobFacts) -> Diagnosis | None:
    found = facts.false("Prepared")
    if found is None or found["reason"] == "NotStarted":
        return None
    return said(facts, found, f"`kubectl logs job/{facts.name}-prepare` says how far it is", "prepare")


def _held_up(facts: JobFacts) -> Diagnosis | None:
    found = facts.false("Progressing", *FIXES["held_up"])
    return said(facts, found, FIXES["held_up"][found["reason"]], "trainer") if found is not None else None


def _controllers_words(facts: JobFacts) -> Diagnosis | None:
    """Cause by the table of a run, from what the operator heard of the controller."""
    idle = facts.status.get("idle") or {}
    if idle.get("cause") not in FIXES["controller"]:
        return None
    since = facts.since(idle.get("since"))
    fix = FIXES["controller"][idle["cause"]]
    return Diagnosis(idle["cause"], idle["text"], fix, idle.get("role", ""), since_s=since, pod=idle.get("pod", ""))


def _while_false(kind: str, *reasons: str, fix: str = "", place: str = "") -> Callable[[JobFacts], Diagnosis | None]:
    """The cause that is a condition's own sentence while it is false, for one of the reasons if any are named."""

    def cause(facts: JobFacts) -> Diagnosis | None:
        found = facts.false(kind, *reasons)
        return said(facts, found, fix, place) if found is not None else None

    return cause


_LOADS = "`kubectl logs` of its pods; a model takes its time to load: pods of {} become ready by themselves"
_AT_LAST = (
    _while_false("Complete", "Auditing", place="finish"),
    _while_false("Scheduled", "PodsMissing", fix="pods are being made; `kubectl get events` says what holds them up"),
    _while_false("GenerationReady", "NoReplicaReady", fix=_LOADS.format("generation"), place="generation"),
    _while_false("RewardReady", "NoReplicaReady", "Verifying", fix=_LOADS.format("reward"), place="reward"),
    _while_false(
        "TrainerReady", "PodsNotReady", "Forming", "Restarting",
        fix="a gang trains when all its pods are in it; their logs say more", place="trainer",
    ),
    _while_false("Progressing", place="trainer"),
)  # fmt: skip


def _trains(facts: JobFacts) -> Diagnosis:
    progress = facts.status.get("progress") or {}
    text = f"nothing is wrong: it is at step {progress.get('step', 0)} of {progress.get('maxSteps', 0)}"
    if (last := moment(progress.get("lastReportTime"))) is not None:
        text += f", the last was reported {max(0.0, facts.now - last):.0f} s ago"
    return Diagnosis("none", text)


JOB_CAUSES: tuple[Callable[[JobFacts], Diagnosis | None], ...] = (
    _managed_elsewhere, _unseen, _behind, _failed, _complete, _refused, _suspension,
    *VOLUME_CAUSES, _placing, *PLACED_CAUSES, _preparing, _held_up, _controllers_words,
    *_AT_LAST, _trains,
)  # fmt: skip
