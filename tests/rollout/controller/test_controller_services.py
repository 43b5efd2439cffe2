"""Unserved roles of a running job, and how long they count: servers, workers, a service that workers call."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from areal.rollout.contract.values import SampleDone, WorkerReport, WorkReport
from areal.rollout.controller.fleet import BRIEF_S, ServiceWatch, UnservedRole
from areal.rollout.controller.inputs import AttachTrainer, ServerBeat, WorkerBeat
from areal.rollout.controller.service import RolloutService
from areal.v1 import rollout_pb2 as rollout
from controller_bench import Bench, started
from hypothesis import given
from hypothesis import strategies as st


def passes(bench: Bench, seconds: float, *, silent: str = "", workers: bool = True, lost: str = "") -> None:
    """Time passes; everybody beats but the servers of `silent`, and the worker says for what it waits."""
    began = bench.now
    while bench.now < began + seconds:
        bench.now += 0.25
        for name, server in list(bench.core.fleet.servers.items()):
            if name not in silent:
                bench.core.take(ServerBeat(replace(server.report, progress=server.report.progress + 1)), bench.now)
        if workers:
            report = WorkerReport(
                "w", "1", 100, lost=lost, lost_role=lost and "reward", lost_s=bench.now - began if lost else 0.0
            )
            bench.core.take(WorkerBeat(report), bench.now)
        bench.core.tick(bench.now)
        bench.run()


def lack(bench: Bench) -> tuple[str, float] | None:
    """Its words, and the whole seconds."""
    found = bench.core.services.unserved
    return (found.text, float(int(bench.core.attention - found.since))) if found else None


def running() -> Bench:
    bench = started()
    bench.ask(AttachTrainer(1, 0))
    passes(bench, 3.0)
    return bench


def test_a_job_that_runs_lacks_nothing() -> None:
    assert lack(running()) is None


def test_a_job_that_begins_lacks_nothing_that_was_never_there() -> None:
    bench = Bench()
    passes(bench, 30.0, workers=False)
    assert lack(bench) is None


def test_no_server_is_said_with_the_time_since_the_last_one_answered() -> None:
    bench = running()
    bench.server(0, "t")
    passes(bench, 8.0, silent="st")
    assert lack(bench) == ("no generation server answered", 8.0)


def test_of_two_silences_the_shorter_counts_and_of_two_waits_the_longer() -> None:
    bench = running()
    bench.server(0, "t")
    passes(bench, 3.0, silent="s")
    passes(bench, 8.0, silent="st")
    assert lack(bench) == ("no generation server answered", 8.0)
    crew = running().core.crew
    for name, waits_s, at in (("w", 8.0, 3.0), ("v", 2.0, 4.0)):
        crew.beat(at, WorkerReport(name, "1", 100, lost="reward:1 to score", lost_role="reward", lost_s=waits_s))
    assert crew.unserved(4.0) == UnservedRole("w waited for reward:1 to score", 0.0, "reward")
    crew.beat(10.0, WorkerReport("v", "1", 100))
    crew.tick(30.0)
    assert crew.unserved(30.0) == UnservedRole("no rollout worker answered", 10.0)


def test_one_server_of_two_is_enough() -> None:
    bench = running()
    bench.server(0, "t")
    passes(bench, 8.0, silent="t")
    assert bench.core.fleet.states() == {"ready": 1, "gone": 1}
    assert lack(bench) is None


def test_an_engine_that_is_down_is_no_server_though_its_agent_answers() -> None:
    bench = running()
    bench.server(0, live=False, ready=False)
    passes(bench, 8.0)
    assert lack(bench) == ("no generation server answered", 8.0)


def test_no_worker_is_said() -> None:
    bench = running()
    passes(bench, 8.0, workers=False)
    assert lack(bench) == ("no rollout worker answered", 8.0)


def test_what_a_worker_waits_for_is_said_until_another_has_a_sample_done() -> None:
    bench = running()
    passes(bench, 8.0, lost="reward:1 to score")
    assert lack(bench) == ("w waited for reward:1 to score", 8.0)
    other = running()
    scored = SampleDone(0, 0, 1.0, 0, 0, 1, 5)
    other.core.take(WorkerBeat(WorkerReport("v", "1", 100, WorkReport(done=(scored,)))), other.now)
    report = WorkerReport("w", "1", 100, lost="reward:1 to score", lost_s=60.0)
    other.core.take(WorkerBeat(report), other.now)
    other.core.tick(other.now)
    assert lack(other) == ("w waited for reward:1 to score", 0.0)


def test_it_is_kept_until_a_step_and_a_brief_one_is_forgotten() -> None:
    bench = running()
    passes(bench, BRIEF_S - 2, lost="reward:1 to score")
    passes(bench, 1.0)
    assert lack(bench) is None
    passes(bench, 8.0, lost="reward:1 to score")
    assert bench.core.services.unserved is not None
    assert bench.core.services.unserved.role == "reward"
    passes(bench, 20.0)
    assert lack(bench) == ("w waited for reward:1 to score", 28.0)
    assert bench.core.services.unserved.role == "", "it answers again"
    bench.core.desk._position.step += 1
    passes(bench, 0.25)
    assert lack(bench) is None


def test_a_finished_trainer_lacks_nothing() -> None:
    bench = running()
    passes(bench, 8.0, workers=False)
    bench.core.desk.finished = True
    bench.core.desk._position.step += 1
    passes(bench, 1.0, workers=False)
    assert lack(bench) is None


async def test_the_status_answers_with_it() -> None:
    bench = running()
    loop: Any = SimpleNamespace(streams=None, evaluations=SimpleNamespace(results=()), ledger_silent_s=0.5)
    service, asked = RolloutService("job", bench.core, loop, 1), rollout.GetRolloutStatusRequest()
    context: Any = None
    answer = await service.GetRolloutStatus(asked, context)
    assert (answer.unserved, answer.unserved_s, answer.ledger_silent_s) == ("", 0.0, 0.5)
    passes(bench, 8.0, workers=False)
    answer = await service.GetRolloutStatus(asked, context)
    assert (answer.unserved, int(answer.unserved_s)) == ("no rollout worker answered", 8)
    passes(bench, 8.0, lost="reward:1 to score")
    answer = await service.GetRolloutStatus(asked, context)
    assert (answer.unserved, answer.unserved_role) == ("w waited for reward:1 to score", "reward")


@given(st.lists(st.tuples(st.floats(0.25, 30.0), st.booleans(), st.booleans()), max_size=30))
def test_a_lack_is_as_old_as_it_is_said_to_be_and_none_outlives_a_step(course: list[tuple[float, bool, bool]]) -> None:
    watch, now, step, since = ServiceWatch(), 0.0, 0, None
    watch.look(now, None, step)
    for seconds, lacking, steps in course:
        now += seconds
        step += steps
        since = now if lacking and since is None else since
        watch.look(now, UnservedRole("x", now) if lacking else None, step)
        if not lacking and steps:
            since = None
        if lacking:
            assert watch.unserved == UnservedRole("x", since)
        elif steps:
            assert watch.unserved is None
        elif watch.unserved is None:
            since = None
        else:
            assert watch.unserved == UnservedRole("x", since)
            assert now - watch.unserved.since >= BRIEF_S
