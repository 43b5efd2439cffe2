"""Fleets that follow their trainers: what is watched, what is decided, and that it comes to rest."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from itertools import pairwise

import pytest
from areal.observe.live import IdleCause
from areal.plan.cluster_names import LABEL_POD_INDEX, SURGE_FROM, Role
from areal.spec.serving import ElasticFleet
from areal.v1 import generation_pb2 as generation
from areal.v1 import rollout_pb2 as rollout
from areal_operator.operator.decide import decide
from areal_operator.operator.decision import Converge
from areal_operator.operator.elastic import FleetWatch, resized, watched
from areal_operator.operator.fault_owner import unbound, unplaced
from areal_operator.operator.observe import observe
from areal_operator.operator.observed import QueueEntry
from hypothesis import given
from hypothesis import strategies as st
from operator_stage import Stage
from operator_values import NOW, remembered, seen

LIMITS = ElasticFleet(min_replicas=1, max_replicas=1024)


def answer(servers: int, step: int = 5, waits: str = "") -> rollout.GetRolloutStatusResponse:
    fleet = [generation.ServerState(live=True, version=1)] * servers
    return rollout.GetRolloutStatusResponse(fleet=fleet, trainer_step=step, batch_waits=waits)


def watch(
    servers: int, *, starved: float = 0.0, gated: float = 0.0, seconds: float = 300.0, steps: int = 9
) -> FleetWatch:
    return FleetWatch(servers, 0.0, seconds, 1, 1 + steps, starved * seconds, gated * seconds)


@pytest.mark.parametrize(
    ("servers", "seen", "wanted"),
    [
        (4, watch(4, starved=0.3), 6),
        (4, watch(4, starved=0.9), 8),  # at most twice as many at once
        (4, watch(4, starved=0.1), 4),
        (4, watch(4, starved=0.3, seconds=299.0), 4),
        (4, watch(4, starved=0.3, steps=2), 4),
        (4, watch(3, starved=0.3), 4),  # those that were asked for aren't there yet
        (4, None, 4),
        (8, watch(8, gated=0.4), 6),
        (8, watch(8, gated=0.1), 8),
        (8, watch(8, gated=0.95), 4),  # at most half of them at once
        (1, watch(1, gated=0.95), 1),
        (2, watch(2, gated=0.3), 2),  # one alone would keep training waiting
        (4, watch(4), 4),
    ],
)
def test_a_fleet_is_judged_by_a_whole_window_at_its_size(servers: int, seen: FleetWatch | None, wanted: int) -> None:
    found, why = resized(LIMITS, servers, seen)
    assert found == wanted
    assert bool(why) == (wanted != servers)
    if why:
        assert f"{servers} → {wanted} servers" in why


def test_bounds_hold_at_once() -> None:
    limits = ElasticFleet(min_replicas=2, max_replicas=6)
    assert resized(limits, 9, None)[0] == 6
    assert resized(limits, 1, None)[0] == 2
    assert resized(limits, 6, watch(6, starved=0.5)) == (6, "")
    assert resized(limits, 2, watch(2, gated=0.9)) == (2, "")


def test_time_counts_for_what_holds_generation_up() -> None:
    seen = watched(None, answer(2), None, 0.0)
    seen = watched(seen, answer(2, waits="step 5 waits"), None, 2.0)
    seen = watched(seen, answer(2, waits="step 5 waits"), IdleCause.CONCURRENCY, 4.0)
    assert (seen.starved_s, seen.gated_s) == (4.0, 0.0)
    for cause in (IdleCause.NO_WORKER, IdleCause.BYTES_FULL, IdleCause.ONE_VERSION, IdleCause.STALLED):
        seen = watched(seen, answer(2, waits="step 5 waits"), cause, seen.at + 2.0)
    assert (seen.starved_s, seen.gated_s) == (4.0, 0.0), "more servers would change none of that"
    seen = watched(seen, answer(2, waits="a late group"), IdleCause.GATE_CLOSED, seen.at + 2.0)
    assert (seen.starved_s, seen.gated_s) == (4.0, 2.0)
    assert (seen.seconds, seen.servers, seen.first_step) == (14.0, 2, 5)


@pytest.mark.parametrize(
    ("later", "now"),
    [(answer(3, 6), 2.0), (answer(2, 4), 2.0), (answer(2, 6), 31.0)],
    ids=["size", "restore", "silence"],
)
def test_a_watch_begins_anew(later: rollout.GetRolloutStatusResponse, now: float) -> None:
    before = FleetWatch(2, -600.0, 0.0, 1, 5, 60.0, 0.0)
    assert watched(before, later, None, now).seconds == 0.0


@given(st.floats(0.2, 200.0), st.integers(1, 300), st.integers(1, 8), st.integers(8, 300))
def test_from_any_start_a_fleet_comes_to_rest_where_training_waits_little(
    demand: float, servers: int, fewest: int, most: int
) -> None:
    limits = ElasticFleet(min_replicas=fewest, max_replicas=most)
    sizes = [servers]
    for _ in range(40):
        shown = watch(servers, starved=max(0.0, 1 - servers / demand), gated=max(0.0, 1 - demand / servers))
        servers, _ = resized(limits, servers, shown)
        sizes.append(servers)
    assert len(set(sizes[14:])) == 1, sizes
    turns = [later > now for now, later in pairwise(sizes) if later != now]
    assert sum(a != b for a, b in pairwise(turns)) <= 1, f"to and fro: {sizes}"
    assert servers in (fewest, most) or servers >= 0.9 * demand
    assert servers == fewest or servers <= math.ceil(demand * 1.05) or servers == sizes[0]


def stage_of(demand: float, start: int, **limits: float) -> Stage:
    fleet = {"replicas": start, "elastic": {"minReplicas": 1, "maxReplicas": 12, "windowSeconds": 300, **limits}}
    stage = Stage(generation=fleet, algorithm={"maxSteps": 100_000})
    stage.operator.roles.demand = demand
    stage.until_training()
    return stage


def size(stage: Stage) -> int:
    return int(stage.status["generation"]["readyReplicas"])


@pytest.mark.parametrize(("demand", "start", "least", "most"), [(5.0, 1, 5, 6), (2.4, 9, 3, 3), (40.0, 2, 12, 12)])
def test_a_job_s_fleet_follows_its_trainer(demand: float, start: int, least: int, most: int) -> None:
    stage = stage_of(demand, start)
    stage.run(lambda: least <= size(stage) <= most, limit=800)
    for _ in range(200):
        stage.step()
        assert least <= size(stage) <= most
    told = [message for _, reason, message in stage.operator.events if reason == "FleetResized"]
    assert told
    assert told[-1].endswith(f"→ {size(stage)} servers")
    assert stage.status["generation"]["wanted"] == size(stage)
    desired = {role["name"]: role["desired"] for role in stage.status["roles"]}
    assert desired["generation"] == size(stage)
    assert stage.training.epoch == 1, "training never stopped for it"


def test_of_a_queue_a_fleet_takes_no_more_than_the_job_asks_for_and_gives_back_what_it_can() -> None:
    limits = {"minReplicas": 1, "maxReplicas": 12}
    base = seen(remembered(servers=2), spec={"generation": {"replicas": 2, "elastic": limits}})

    def wanted(watch: FleetWatch, queued: bool) -> int:
        reports = replace(base.reports, controller=replace(base.reports.controller, watch=watch))
        admitted = {"status": {"conditions": [{"type": "Admitted", "status": "True"}]}}
        queue = QueueEntry("team", workload=admitted) if queued else None
        decision = decide(replace(base, reports=reports, queue=queue), NOW)
        assert isinstance(decision, Converge)
        return decision.state.servers

    assert wanted(watch(2, starved=0.5), queued=False) == 4
    assert wanted(watch(2, starved=0.5), queued=True) == 2
    assert wanted(watch(2, gated=0.6), queued=True) == 1


def test_another_operator_and_a_rest_keep_the_size() -> None:
    stage = stage_of(5.0, 1)
    stage.run(lambda: size(stage) >= 5, limit=800)
    found = size(stage)
    stage.new_operator()
    for _ in range(10):
        stage.step()
        assert size(stage) == found
    stage.edit(lambda spec: spec.update(suspend=True))
    stage.run(lambda: stage.summary == "Suspended")
    stage.edit(lambda spec: spec.update(suspend=False))
    stage.run(lambda: stage.summary == "Running")
    assert len(stage.pods(Role.GENERATION)) == found


def test_an_owner_who_takes_the_bounds_away_has_the_fleet_again() -> None:
    stage = stage_of(5.0, 1)
    stage.run(lambda: size(stage) >= 5, limit=800)
    stage.edit(lambda spec: (spec["generation"].pop("elastic"), spec["generation"].update(replicas=2)))
    stage.run(lambda: size(stage) == 2)
    assert not {"wanted", "why"} & stage.status["generation"].keys(), "nobody follows the trainer any more"
    for _ in range(100):
        stage.step()
        assert size(stage) == 2


def surge_stage(demand: float, start: int, fewest: int, **patch: object) -> Stage:
    fleet = {"replicas": start, "elastic": {"minReplicas": fewest, "maxReplicas": 12, "windowSeconds": 300}}
    spot = {"nodeSelector": {"pool": "spot"}, **patch}
    stage = Stage(generation=fleet, podTemplate={"surge": spot}, algorithm={"maxSteps": 100_000})
    stage.operator.roles.demand = demand
    stage.until_training()
    return stage


def ordinals(stage: Stage) -> tuple[set[int], set[int]]:
    """Ordinals of the servers of the fleet's own set, and of those of the surge pool."""
    found: dict[str, set[int]] = {"digits-generation": set(), "digits-surge": set()}
    for pod in stage.pods(Role.GENERATION):
        if "deletionTimestamp" not in pod["metadata"]:
            found[pod["metadata"]["ownerReferences"][0]["name"]].add(int(pod["metadata"]["labels"][LABEL_POD_INDEX]))
    return found["digits-generation"], found["digits-surge"]


def test_what_a_fleet_has_above_its_fewest_is_in_the_surge_pool_and_goes_first() -> None:
    stage = surge_stage(5.0, 2, fewest=2)
    assert ordinals(stage) == ({0, 1}, set())
    stage.run(lambda: size(stage) >= 5, limit=800)
    grown = size(stage) - 2
    assert ordinals(stage) == ({0, 1}, set(range(SURGE_FROM, SURGE_FROM + grown)))
    stage.operator.roles.demand = 0.5
    stage.run(lambda: size(stage) == 2, limit=1600)
    assert ordinals(stage) == ({0, 1}, set())
    assert stage.training.epoch == 1


def test_no_two_servers_ever_have_one_ordinal_however_the_bounds_change() -> None:
    stage = surge_stage(6.0, 6, fewest=1)
    for fewest in (4, 2, 6, 1):
        stage.edit(lambda spec, fewest=fewest: spec["generation"]["elastic"].update(minReplicas=fewest))
        for _ in range(6):
            stage.step()
            named = [pod["metadata"]["labels"][LABEL_POD_INDEX] for pod in stage.pods(Role.GENERATION)]
            assert len(named) == len(set(named)), named
        own, spot = ordinals(stage)
        assert own == set(range(fewest))
        assert len(own) + len(spot) == 6


def test_a_job_works_without_the_spot_machines_that_it_would_have() -> None:
    stage = surge_stage(6.0, 2, fewest=2)
    stage.cluster.no_spot = True
    stage.run(lambda: len(ordinals(stage)[1]) >= 2, limit=800)
    step = stage.training.step
    stage.run(lambda: stage.training.step >= step + 5)
    assert stage.summary == "Running"
    scheduled = stage.condition("Scheduled")
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
    assert "digits-surge-1024" in scheduled["message"]
    assert stage.status.get("idle", {}).get("cause") != "Unschedulable", "training doesn't wait for them"
    look = asyncio.run(observe(stage.job, stage.operator.world))
    desired = {Role.GENERATION: 4}
    assert unplaced(look, desired) is None, "a job that stalls beside them isn't excused"
    own = replace(look, pods=tuple(pod for pod in look.pods if pod.name != "digits-generation-1"))
    lack = unplaced(own, desired)
    assert lack is not None
    assert "1 of 2 pods of generation" in lack.text
    refused = {Role.GENERATION: "no PriorityClass spare"}
    assert unplaced(replace(look, refused=refused), desired) is None, "nor one whose surge servers are refused"
    lack = unplaced(replace(own, refused=refused), desired)
    assert lack is not None
    assert "no PriorityClass spare" in lack.text
    trainer = next(pod for pod in look.pods if pod.role is Role.TRAINER)
    bound = next(pod for pod in look.pods if pod.surge).conditions["PodScheduled"]
    homeless = replace(trainer, node="", conditions={"PodScheduled": bound})
    both = replace(look, pods=(*(pod for pod in look.pods if pod is not trainer), homeless))
    assert unbound(both) is homeless, "a trainer without a machine is told before them"


def test_a_changed_template_replaces_one_server_at_a_time_over_both_pools() -> None:
    stage = surge_stage(4.0, 4, fewest=2)
    before = stage.uids(Role.GENERATION)
    assert len(before) == 4
    env = [{"name": "LOG", "value": "1"}]
    stage.edit(lambda spec: spec["podTemplate"].update(generation={"env": env}))
    for _ in range(60):
        stage.step()
        gone = [pod for pod in stage.pods(Role.GENERATION) if "deletionTimestamp" in pod["metadata"]]
        assert len(gone) <= 1
        if not before & stage.uids(Role.GENERATION):
            break
    assert not before & stage.uids(Role.GENERATION), "every server has the new template"
    stage.run(lambda: tuple(map(len, ordinals(stage))) == (2, 2))
    for _ in range(20):
        settled = stage.uids(Role.GENERATION)
        stage.step()
    assert stage.uids(Role.GENERATION) == settled, "and is left alone then"
