"""A job that waits in a Kueue queue: nothing runs before it is admitted, and its quota goes back after its pods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from areal.plan.cluster_names import Role
from areal_operator.kube.resources import WORKLOADS, Json
from areal_operator.operator import decide, effects, quota
from areal_operator.operator.admission import RunnableJob
from areal_operator.operator.children import workloads
from areal_operator.operator.children.kueue import CORE, quota_request
from areal_operator.operator.decision import Suspend
from areal_operator.operator.job_state import Rest
from areal_operator.operator.observed import Observation
from operator_stage import KEY, Stage
from operator_values import admitted
from support import scripted_queue as kueue
from support.cluster_jobs import CPU_RUNTIME, large_wanted, quickstart, quickstart_wanted, wanted, with_pod_template
from support.fake_operator import Write

LABEL = {"kueue.x-k8s.io/queue-name": "team-gpus"}
PLACE = ("Workload", *KEY)


class QueueStage(Stage):
    """A job with a queue's label, and the queue that a test plays."""

    def __init__(self, *, labels: dict[str, str] | None = None, **spec: Any) -> None:
        super().__init__(**spec)
        self.label(LABEL if labels is None else labels)

    def label(self, labels: dict[str, str]) -> None:
        self.cluster.api.put({**self.job, "metadata": {**self.job["metadata"], "labels": labels}})

    @property
    def workload(self) -> Json:
        return self.cluster.api.objects[PLACE]

    @property
    def queued(self) -> bool:
        return PLACE in self.cluster.api.objects

    def kueue(self, turn: Callable[..., Json], **options: Any) -> None:
        """Kueue writes."""
        self.cluster.api.put(turn(self.workload, **options))

    def until_admitted(self) -> None:
        self.run(lambda: self.queued)
        self.kueue(kueue.admitted)

    @property
    def pods_there(self) -> list[str]:
        over = ("Succeeded", "Failed")
        return [pod["metadata"]["name"] for pod in self.cluster.pods() if pod["status"]["phase"] not in over]


def merges(stage: QueueStage) -> list[Write]:
    return [write for write in stage.operator.writes if write.verb == "merge"]


# The story of one job, which every mutant below must spoil


def a_job_waits_runs_is_evicted_and_comes_back() -> QueueStage:
    stage = QueueStage()
    for _ in range(5):
        stage.step()
        assert not stage.pods_there, "nothing runs before it is admitted"
        assert not stage.cluster.api.all("Job")
    assert stage.workload["spec"]["queueName"] == "team-gpus"
    assert stage.summary == "Queued"
    stage.kueue(kueue.waits)
    stage.step()
    scheduled = stage.condition("Scheduled")
    assert (scheduled["reason"], scheduled["message"]) == (
        "QuotaPending",
        f"waits for quota in queue team-gpus: {kueue.MORE}",
    )
    assert stage.status["idle"]["cause"] == "QuotaPending"
    stage.kueue(kueue.reserved)
    stage.step()
    assert not stage.pods_there, "an admission check is not over"
    stage.kueue(kueue.admitted)
    stage.until_training()
    stage.step()
    assert kueue.condition(stage.workload, "PodsReady")["status"] == "True"

    stage.kueue(kueue.evicted)
    seen = []
    while kueue.condition(stage.workload, "QuotaReserved")["status"] == "True":
        stage.step()
        seen.append((stage.summary, bool(stage.pods_there)))
        assert len(seen) < 100
        if kueue.condition(stage.workload, "QuotaReserved")["status"] == "False":
            assert not stage.pods_there, "the quota went back before the pods had gone"
    assert seen[0] == ("Suspending", True), "the trainers save first"
    assert stage.training.checkpoint == stage.training.step > 0, "nothing that was trained is lost"
    assert stage.workload["status"].get("admission") is None
    assert kueue.condition(stage.workload, "Requeued")["status"] == "True"
    assert kueue.condition(stage.workload, "PodsReady")["status"] == "False"
    stage.step()
    assert stage.summary == "Queued"
    assert stage.status["attempts"]["restarts"] == 0, "an eviction is no failure"

    saved = stage.training.step
    stage.kueue(kueue.admitted)
    stage.until_training(saved + 1)
    assert stage.job["spec"] == QueueStage().job["spec"], "the job's spec is its author's"
    stage.run(lambda: stage.summary == "Complete")
    stage.run(lambda: kueue.condition(stage.workload, "Finished").get("status") == "True", limit=1000, seconds=60)
    assert kueue.condition(stage.workload, "Finished")["reason"] == "Succeeded"
    assert not [pod for pod in stage.cluster.pods() if pod["status"]["phase"] == "Running"]
    return stage


def test_a_job_waits_runs_is_evicted_and_comes_back() -> None:
    stage = a_job_waits_runs_is_evicted_and_comes_back()
    assert stage.summary == "Complete"


def pods_are_made_before_admission(patch: pytest.MonkeyPatch) -> None:
    """Reserved quota is taken for admission."""
    patch.setattr(decide.quota, "held_back", lambda seen: not (seen.queue and seen.queue.true("QuotaReserved")))


def pods_are_made_at_once(patch: pytest.MonkeyPatch) -> None:
    """The queue is not asked."""
    patch.setattr(decide.quota, "held_back", lambda seen: False)


def an_eviction_is_not_seen(patch: pytest.MonkeyPatch) -> None:
    """`Admitted`, which Kueue leaves true, is all that is read."""
    patch.setattr(decide.quota, "held_back", lambda seen: not (seen.queue and seen.queue.true("Admitted")))


def quota_goes_back_before_the_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """The quota goes back as soon as the job is told to rest."""
    real = quota.step_of

    def step_of(seen: Observation, decision: Any) -> quota.QuotaStep:
        early = isinstance(decision, Suspend) and seen.queue and seen.queue.true("QuotaReserved")
        return "give back" if early else real(seen, decision)

    patch.setattr(effects.quota, "step_of", step_of)


def quota_goes_back_while_pods_end(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint is there, so the pods are taken for gone."""
    real = quota.step_of

    def step_of(seen: Observation, decision: Any) -> quota.QuotaStep:
        ending = isinstance(decision, Suspend) and decision.state.rest is Rest.ENDING
        return "give back" if ending else real(seen, decision)

    patch.setattr(effects.quota, "step_of", step_of)


def the_jobs_own_spec_is_written(patch: pytest.MonkeyPatch) -> None:
    """As Kueue does with Jobs: `suspend` is the switch."""
    real = effects.Effects.keep_place

    async def keep_place(self: effects.Effects, decision: Any) -> None:
        raw = self._seen.raw
        held = quota.held_back(self._seen)
        cluster: Any = self._world.api
        job = cluster.cluster.api.objects[("RLJob", *KEY)]
        if self._seen.admitted is not None and raw["spec"].get("suspend", False) != held:
            cluster.cluster.api.put({**job, "spec": {**job["spec"], "suspend": held}})
        await real(self, decision)

    patch.setattr(effects.Effects, "keep_place", keep_place)


def quota_is_never_given_back(patch: pytest.MonkeyPatch) -> None:
    """The next job waits for ever."""
    patch.setattr(effects.quota, "emptied", lambda seen: False)


MUTANTS = (
    pods_are_made_before_admission,
    pods_are_made_at_once,
    an_eviction_is_not_seen,
    quota_goes_back_before_the_checkpoint,
    quota_goes_back_while_pods_end,
    the_jobs_own_spec_is_written,
    quota_is_never_given_back,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_spoils_the_story(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        a_job_waits_runs_is_evicted_and_comes_back()


# Its variations


def test_a_job_without_the_label_knows_no_queue() -> None:
    stage = QueueStage(labels={})
    stage.until_training()
    assert not stage.queued


def test_fewer_servers_are_admitted_and_no_more_are_made_when_more_are_asked_for() -> None:
    stage = QueueStage(generation={"replicas": 3})
    stage.run(lambda: stage.queued)
    stage.kueue(kueue.admitted, servers=1)
    stage.until_training()
    assert len(stage.pods(Role.GENERATION)) == 1
    stage.edit(lambda spec: spec["generation"].update(replicas=5))
    stage.step()
    stage.step()
    assert len(stage.pods(Role.GENERATION)) == 1
    assert len(stage.pods(Role.TRAINER)) == 2


def test_a_deactivated_job_saves_first_and_says_that_its_quota_is_gone() -> None:
    stage = QueueStage()
    stage.until_admitted()
    stage.until_training()
    stage.kueue(kueue.deactivated)
    stage.step()
    assert stage.summary == "Suspending"
    assert stage.pods_there
    assert "others may have its quota before its pods have saved" in stage.condition("Scheduled")["message"]
    stage.run(lambda: stage.summary == "Queued" and not stage.pods_there)
    stage.run(lambda: kueue.condition(stage.workload, "QuotaReserved")["status"] == "False")
    assert kueue.condition(stage.workload, "Requeued")["status"] == "False", "only who deactivated it lets it queue"
    stage.step()
    assert not stage.pods_there


def test_a_job_that_its_author_suspends_leaves_the_queue_and_queues_anew() -> None:
    stage = QueueStage()
    stage.until_admitted()
    stage.until_training()
    first = stage.workload["metadata"]["uid"]
    stage.edit(lambda spec: spec.update(suspend=True))
    stage.run(lambda: not stage.queued)
    assert not stage.pods_there
    assert stage.summary == "Suspended"
    assert stage.condition("Scheduled")["reason"] == "Suspended"
    stage.edit(lambda spec: spec.update(suspend=False))
    stage.run(lambda: stage.queued)
    assert stage.workload["metadata"]["uid"] != first
    assert not stage.pods_there


def test_a_job_keeps_its_place_without_the_label() -> None:
    stage = QueueStage()
    stage.run(lambda: stage.queued)
    stage.label({})
    stage.step()
    stage.step()
    assert not stage.pods_there
    assert stage.summary == "Queued"


def test_what_changes_while_it_waits_is_asked_for_instead() -> None:
    stage = QueueStage()
    stage.run(lambda: stage.queued)
    stage.kueue(kueue.waits)
    stage.step()
    stage.edit(lambda spec: spec["generation"].update(replicas=1))
    stage.label({"kueue.x-k8s.io/queue-name": "other"})
    stage.step()
    counts = {one["name"]: one["count"] for one in stage.workload["spec"]["podSets"]}
    assert (stage.workload["spec"]["queueName"], counts["generation"]) == ("other", 1)


def test_while_quota_is_held_the_workload_is_not_changed() -> None:
    stage = QueueStage()
    stage.until_admitted()
    stage.until_training()
    before = stage.workload["spec"]
    stage.edit(lambda spec: spec["generation"].update(replicas=1))
    stage.step()
    assert stage.workload["spec"] == before


@pytest.mark.parametrize("source", ["label", "spec"])
def test_priority_is_that_of_its_class(source: str) -> None:
    stage = QueueStage(scheduling={"priorityClassName": "urgent"})
    version, kind = ("kueue.x-k8s.io/v1beta2", "WorkloadPriorityClass")
    if source == "label":
        stage.label({**LABEL, "kueue.x-k8s.io/priority-class": "urgent"})
    else:
        version, kind = ("scheduling.k8s.io/v1", "PriorityClass")
    stage.cluster.api.objects[kind, "", "urgent"] = {
        "apiVersion": version, "kind": kind, "metadata": {"name": "urgent", "uid": "p"}, "value": 700,
    }  # fmt: skip
    stage.run(lambda: stage.queued)
    spec = stage.workload["spec"]
    assert (spec["priority"], spec["priorityClassRef"]) == (
        700,
        {"group": version.partition("/")[0], "kind": kind, "name": "urgent"},
    )


def test_without_kueue_a_job_that_names_a_queue_waits_and_says_why() -> None:
    stage = QueueStage()
    stage.cluster.caches[WORKLOADS].denied = "the server could not find the requested resource"
    stage.step()
    stage.step()
    assert not stage.pods_there
    assert not stage.queued
    assert stage.summary == "Queued"
    assert stage.condition("Scheduled")["message"].endswith("the server could not find the requested resource")


def test_a_job_that_runs_goes_on_when_kueue_is_gone() -> None:
    stage = QueueStage()
    stage.until_admitted()
    stage.until_training()
    stage.cluster.api.drop(PLACE)
    stage.cluster.caches[WORKLOADS].denied = "forbidden"
    step = stage.training.step
    stage.run(lambda: stage.training.step > step + 2)
    assert stage.summary == "Running"


def test_a_flavors_nodes_and_tolerations_reach_the_pods_of_its_set() -> None:
    flavor = {"spec": {"nodeLabels": {"pool": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}}
    given = [{"name": "trainer", "count": 2, "flavors": {"cpu": "default", "nvidia.com/gpu": "h100"}},
             {"name": "generation", "count": 1, "flavors": {"cpu": "default"}},
             {"name": CORE, "count": 1, "flavors": {"cpu": "spot"}}]  # fmt: skip
    flavors = {"h100": flavor, "default": {}, "spot": {"spec": {"nodeLabels": {"pool": "spot"}}}}
    job = quota.granted(admitted(), given, flavors)
    assert job.placement[Role.TRAINER] == {
        "nodeSelector": {"pool": "h100"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    }
    assert Role.GENERATION not in job.placement
    assert {role for role, place in job.placement.items() if place["nodeSelector"] == {"pool": "spot"}} >= {
        Role.REDIS, Role.CONTROLLER, Role.PREPARE, Role.FINISH,
    }  # fmt: skip
    assert (job.replicas[Role.TRAINER], job.replicas[Role.GENERATION]) == (2, 1)


def surge_job(servers: int) -> tuple[Any, Any]:
    """The quickstart with surge servers: its blueprint, and the job as it is admitted without a queue."""
    values = with_pod_template(quickstart(), surge={"nodeSelector": {"pool": "spot"}})
    values["spec"]["generation"] = {"replicas": servers, "elastic": {"minReplicas": 2, "maxReplicas": 8}}
    w = wanted(values, CPU_RUNTIME)
    return w, RunnableJob(w.job, w.resolved, w.runtime, "hash", {Role(name): n for name, n in w.replicas.items()})


def test_surge_servers_are_a_pod_set_of_their_own_that_may_be_admitted_in_part() -> None:
    w, _ = surge_job(5)
    sets = {one["name"]: one for one in quota_request(w, "gpus", {})["spec"]["podSets"]}
    assert (sets["generation"]["count"], sets["surge"]["count"]) == (2, 3)
    assert [name for name, one in sets.items() if "minCount" in one] == ["surge"]
    spot = {name: one["template"]["spec"].get("nodeSelector") for name, one in sets.items()}
    assert spot["surge"] == {"pool": "spot"}
    assert spot["generation"] is None
    w, _ = surge_job(2)
    sets = {one["name"]: one for one in quota_request(w, "gpus", {})["spec"]["podSets"]}
    assert "surge" not in sets
    assert sets["generation"] | {"count": 2, "minCount": 1} == sets["generation"]


def test_surge_servers_go_where_their_flavor_is_and_no_more_come_than_were_admitted() -> None:
    _, job = surge_job(5)
    given = [{"name": "generation", "count": 2, "flavors": {"cpu": "own"}},
             {"name": "surge", "count": 1, "flavors": {"cpu": "spot"}}]  # fmt: skip
    flavors = {name: {"spec": {"nodeLabels": {"flavor": name}}} for name in ("own", "spot")}
    granted = quota.granted(job, given, flavors)
    assert granted.replicas[Role.GENERATION] == 3
    w, _ = surge_job(5)
    made = workloads(replace(w, replicas=granted.replicas, placement=granted.placement))
    found = {one["metadata"]["name"]: one["spec"] for one in made if one["kind"] == "StatefulSet"}
    placed = {
        name.removeprefix("digits-"): (spec["replicas"], spec["template"]["spec"]["nodeSelector"])
        for name, spec in found.items()
        if name.endswith(("-generation", "-surge"))
    }
    assert placed == {"generation": (2, {"flavor": "own"}), "surge": (1, {"pool": "spot", "flavor": "spot"})}


@pytest.mark.parametrize("made_of", [quickstart_wanted, large_wanted])
def test_a_request_counts_every_pod_once_and_at_most_eight_sets(made_of: Callable[[], Any]) -> None:
    w = made_of()
    made = quota_request(w, "gpus", {})
    sets = {one["name"]: one for one in made["spec"]["podSets"]}
    assert len(sets) == len(made["spec"]["podSets"]) <= 8
    assert sets["trainer"]["count"] == w.replicas["trainer"]
    partial = [name for name, one in sets.items() if "minCount" in one]
    assert partial in ([], ["generation"]), "Kueue takes one set in part"
    core = [c["name"] for c in sets[CORE]["template"]["spec"]["containers"]]
    assert len(core) == len(set(core))
    assert "controller-0-main" in core
    counted = {role for role in w.roles if role.value in sets or f"{role}-0-main" in core}
    assert counted == {role for role in w.roles if w.replicas[role]}
    for one in sets.values():
        ours = [c for c in one["template"]["spec"]["containers"] if c["name"].endswith("main")]
        assert ours
        assert all("requests" in c["resources"] for c in ours), "Kueue counts what pods ask for"
