"""`areal chaos`: faults in a run that is played by real processes, and what it says of them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
from areal.cli.main import app
from areal.errors import ConfigError, InfraError
from areal.ledger.audit import AuditReport
from areal.local.chaos import inject
from areal.observe.live import Live, LiveRole, write_live
from areal.record.fault_cost import FaultCost, summary
from typer.testing import CliRunner

STEP_S = 0.04


@dataclass
class PlayedRun:
    """A run directory that goes on: two roles, which are restarted, and a trainer's steps while both are there."""

    place: Path
    forgets: int = 0  # steps that are trained again after a death
    warning: str = ""
    host: str = ""
    deaf: bool = False  # a role that died is not started again
    role: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    def start(self) -> PlayedRun:
        (self.place / "logs").mkdir(parents=True)
        self.step, self.fence = 0, 1
        for name in ("worker-0", "trainer"):
            self._begin(name)
        self.thread = threading.Thread(target=self._play, daemon=True)
        self.thread.start()
        return self

    def end(self) -> None:
        self.over.set()
        self.thread.join(20)
        for process in self.role.values():
            process.kill()
            process.wait(10)

    def _begin(self, name: str) -> None:
        self.role[name] = subprocess.Popen(["sleep", "1000"])

    def _play(self) -> None:
        me = psutil.Process()
        while not self.over.wait(STEP_S):
            for name, process in list(self.role.items()):
                if process.poll() is not None and not self.deaf:
                    self.restarts[name] = self.restarts.get(name, 0) + 1
                    self._begin(name)
                    self.fence += 1
                    self.step -= self.forgets
            stopped = {
                name: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
                for name, process in self.role.items()
                if process.poll() is None
            }
            roles = [
                LiveRole(
                    name, "ready" if process.poll() is None else "backing off", process.pid,
                    self.restarts.get(name, 0), warning=self.warning, stopped=process.pid * stopped.get(name, False),
                )
                for name, process in self.role.items()
            ]  # fmt: skip
            live = Live(time.time(), os.getpid(), me.create_time(), self.step, 10**6, roles=roles, name="played")
            write_live(self.place / "live.json", live)
            if len(stopped) == len(self.role) and not any(stopped.values()):
                self.step += 1
                row = {"at": time.time(), "step": self.step, "fence": self.fence, "wall_s": STEP_S}
                with (self.place / "metrics.jsonl").open("a") as file:
                    file.write(json.dumps(row) + "\n")
        write_live(self.place / "live.json", replace(live, ended=True))


@pytest.fixture
def played(tmp_path):
    made = []

    def start(**fields) -> PlayedRun:
        made.append(PlayedRun(tmp_path / "run", **fields).start())
        return made[-1]

    yield start
    for run in made:
        run.end()


def costs_of(run: PlayedRun, *roles: str, **fields) -> list[FaultCost]:
    heard: list[FaultCost] = []
    until = time.monotonic() + 20
    while not (run.place / "metrics.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.02)
    told = inject(run.place, roles, **{"times": 1, "stop_s": None, "seed": 1, "tell": heard.append, **fields})
    assert heard == told
    return told


def test_each_role_is_killed_in_turn_and_its_recovery_is_measured(played):
    run = played(forgets=3)
    costs = costs_of(run, times=2)
    assert sorted(one.role for one in costs[:2]) == sorted(one.role for one in costs[2:]) == ["trainer", "worker-0"]
    assert run.restarts == {"trainer": 2, "worker-0": 2}
    for one in costs:
        assert (one.kind, one.recovered) == ("kill", True)
        assert one.detected is not None
        assert one.new_step is not None
        assert 0 < one.detected <= (one.replaced or 0) <= one.new_step <= (one.old_pace or 0)
        assert (one.pause or 0) >= STEP_S
    (row, _) = summary(costs)
    assert (row["role"], row["faults"], row["new_step"]["seen"]) == ("trainer", 2, 2)


def test_a_stopped_role_goes_on_after_its_time(played):
    run = played()
    before = {name: process.pid for name, process in run.role.items()}
    (cost,) = costs_of(run, "worker", stop_s=1.5)
    assert (cost.role, cost.kind) == ("worker-0", "stop 1.5 s")
    assert cost.detected is not None
    assert cost.replaced is not None
    assert cost.detected <= cost.replaced
    assert cost.replaced >= 1.5
    assert (cost.pause or 0) >= 1.0
    assert {name: process.pid for name, process in run.role.items()} == before
    assert all(psutil.Process(pid).status() != psutil.STATUS_STOPPED for pid in before.values())


def test_a_stopped_role_goes_on_when_the_call_is_cut_off(played, monkeypatch):
    run = played()
    monkeypatch.setattr("areal.local.chaos.paces", lambda *_: pytest.fail("cut off"))
    with pytest.raises(pytest.fail.Exception):
        costs_of(run, "worker", stop_s=0.2)
    assert psutil.Process(run.role["worker-0"].pid).status() != psutil.STATUS_STOPPED


def test_what_never_comes_back_is_said(played, monkeypatch):
    monkeypatch.setattr("areal.local.chaos._LOST_S", 5.0)
    run = played(deaf=True)
    (cost,) = costs_of(run, "worker")
    assert (cost.recovered, cost.replaced, cost.old_pace) == (False, None, None)
    assert cost.detected is not None
    assert summary([cost])[0]["new_step"] is None


def test_a_run_that_ends_meanwhile_is_an_error_with_where_to_look(played):
    run = played()
    with pytest.raises(InfraError, match="ended meanwhile") as told:
        costs_of(run, "worker", times=2, tell=lambda _cost: run.over.set())
    assert "areal why" in told.value.fix


@pytest.mark.parametrize(
    ("fields", "roles", "said"),
    [({}, ("gateway",), "no role 'gateway'"), ({"warning": "5 of 10 restarts"}, ("worker",), "5 of 10 restarts")],
)
def test_what_would_be_hurt_in_vain_is_refused(played, fields, roles, said):
    run = played(**fields)
    with pytest.raises(ConfigError, match=said) as told:
        costs_of(run, *roles)
    assert told.value.fix
    assert run.restarts == {}


def test_a_run_on_another_machine_or_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no run goes on"):
        inject(tmp_path, (), times=1, stop_s=None, seed=0, tell=print)
    live = Live(time.time(), os.getpid(), psutil.Process().create_time(), 1, 9, roles=[LiveRole("trainer", "ready", 1)])
    write_live(tmp_path / "live.json", live)
    text = (tmp_path / "live.json").read_text()
    (tmp_path / "live.json").write_text(text.replace(f'"{platform.node()}"', '"elsewhere"'))
    with pytest.raises(ConfigError, match="elsewhere"):
        inject(tmp_path, (), times=1, stop_s=None, seed=0, tell=print)


def test_a_process_that_is_not_the_runs_is_never_hurt(played):
    run = played()
    stranger = subprocess.Popen(["setsid", "--fork", "sh", "-c", "echo $$; exec sleep 60"], stdout=subprocess.PIPE)
    assert stranger.stdout is not None
    pid, until = int(stranger.stdout.readline()), time.monotonic() + 20
    try:
        while run.step < 8 and time.monotonic() < until:
            time.sleep(0.02)
        run.over.set()
        run.thread.join(10)
        roles = [LiveRole("worker-0", "ready", pid)]
        born = psutil.Process().create_time()
        write_live(run.place / "live.json", Live(time.time(), os.getpid(), born, 9, 99, roles=roles, name="played"))
        with pytest.raises(InfraError, match="ended by itself"):
            costs_of(run)
        assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    finally:
        psutil.Process(pid).kill()


def test_what_was_measured_is_shown_before_the_error_that_ended_it(tmp_path, monkeypatch):
    (tmp_path / "resolved.json").write_text("{}")

    def some(*_args, tell, **_fields):
        tell(FaultCost("trainer", "kill", 0.0, 0.5, 3.0, 4.5, 5.0, 4.0))
        raise InfraError("the run ended meanwhile", fix="look")

    monkeypatch.setattr("areal.local.chaos.inject", some)
    monkeypatch.setattr("areal.ledger.audit.audit", lambda _run: AuditReport())
    done = CliRunner().invoke(app, ["chaos", str(tmp_path)])
    assert isinstance(done.exception, InfraError)
    assert "trainer  kill   1" in done.output
    assert "lost=0 duplicated=0" in done.output


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    error = CliRunner().invoke(app, ["chaos", str(tmp_path)]).exception
    assert isinstance(error, ConfigError)
    assert "no run directory" in error.message
