"""What the controller believes of a generation server, and what workers are told of it."""

from __future__ import annotations

import pytest
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.rollout.controller import service
from areal.rollout.controller.fleet import ServerFleet
from areal.rollout.controller.gauges import Gauges
from areal.rollout.controller.inputs import ServerReport
from controller_bench import started


def report(**fields: object) -> ServerReport:
    values = {"version": 3, "ready": True, "live": True, **fields}
    return ServerReport("s", "1", "a:1", "3.f1", **values)  # type: ignore[arg-type]


def told(fleet: ServerFleet) -> tuple[bool, bool]:
    """(live, ready) as workers hear it."""
    server = fleet.servers["s"]
    state = service.server_state(server.report, live=server.live, ready=server.ready)
    return state.live, state.ready


@pytest.mark.parametrize(
    ("late_s", "expected"), [(0.4, (True, True)), (1.2, (True, False)), (2.4, (True, False)), (2.6, (False, False))]
)
def test_a_late_server_gets_no_new_requests_and_only_a_dead_one_loses_its_own(
    late_s: float, expected: tuple[bool, bool]
) -> None:
    fleet = ServerFleet()
    fleet.beat(0.0, report())
    fleet.tick(late_s)
    assert told(fleet) == expected


def test_a_server_that_swaps_weights_is_alive_and_takes_no_new_requests() -> None:
    fleet = ServerFleet()
    fleet.beat(0.0, report())
    fleet.changed = False
    fleet.beat(0.5, report(ready=False))
    assert told(fleet) == (True, False)
    assert fleet.changed
    assert fleet.newest_version is None


def test_a_server_without_an_engine_is_not_alive() -> None:
    fleet = ServerFleet()
    fleet.beat(0.0, report(live=False, ready=False))
    assert told(fleet) == (False, False)


def test_a_server_that_drains_is_named_as_draining() -> None:
    bench = started()
    assert bench.core.fleet.states() == {"ready": 1}
    bench.server(0, draining=True)
    bench.server(-1, "other")
    assert bench.idle.text == "no generation server is ready (1 draining, 1 not ready) with weights 0.f1"
    bench.now += 30.0
    for _ in range(20):
        bench.now += 0.5
        bench.core.tick(bench.now)
    assert bench.idle.text == "no generation server is ready (2 gone) with weights 0.f1"


def test_a_wait_shows_the_numbers_of_now_and_keeps_its_age() -> None:
    bench, now = started(), 0.0
    waits = WaitRegistry("controller", lambda: now)
    gauges = Gauges(RoleMetrics("controller", "job"), waits, ProgressCounter())
    bench.server(0, draining=True)
    gauges.show(bench.core, 1.0)
    now = 5.0
    bench.server(1, draining=True)
    bench.server(1, "other", draining=True)
    gauges.show(bench.core, 2.0)
    (wait,) = waits.list()
    assert (wait.waits_for, wait.age_s) == (bench.idle.text, 5.0)
    assert "2 draining" in wait.waits_for
