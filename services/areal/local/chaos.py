"""Fault injection into a run that goes on: roles are killed or stopped, and what each fault costs is measured.

Owns the recovery's stamps as a run's own files tell them: `live.json`, which `areal run` writes about once a second,
and the trainer's steps. Roles and moments are drawn by a seed. Only processes that the run itself names are touched,
and one that was stopped goes on whatever happens here.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from areal.errors import ConfigError, InfraError
from areal.local.inspect import going_on
from areal.local.log_stream import fits
from areal.observe.live import Live, LiveRole, read_live
from areal.plan import RunLayout
from areal.processes.core import ChildPhase
from areal.record.fault_cost import FaultCost

BEFORE = 12  # steps before the fault that tell the old pace
SLOWER = 1.2  # times that is still the old pace
IN_A_ROW = 4  # steps that are timed together: some of them save a checkpoint, and take longer
KILL, STOP = "kill", "stop"
_LOOK_S = 0.1
_PATIENCE_S = 60.0  # for the old pace, once a new step is trained
_LOST_S = 600.0  # for a new step


@dataclass(frozen=True)
class Step:
    """A trained step, by the trainer that made it."""

    at: float  # unix seconds
    step: int
    fence: int
    wall_s: float = 0.0

    @staticmethod
    def of(line: str) -> "Step | None":
        """The step of a line of metrics; None of a torn one."""
        try:
            row: Mapping[str, Any] = json.loads(line)
            return Step(float(row["at"]), int(row["step"]), int(row["fence"]), float(row["wall_s"]))
        except (ValueError, KeyError):
            return None


def paces(steps: Sequence[Step], began: float, since: float) -> tuple[float | None, float | None, float | None]:
    """Seconds from `began` to the first step not trained before, and to the first of four at the old pace.

    Both end after `since`. And the longest time between two steps from `began` to the last of them.
    """
    before = [one for one in steps if one.at <= began]
    if len(before) < 2:
        return None, None, None
    newest = max(one.step for one in before)
    bound = SLOWER * IN_A_ROW * old_pace(steps, began)
    new = next((one.at for one in steps if one.at > since and one.step > newest), None)
    after = [(a.at, b) for a, b in pairwise(steps) if b.at > began]
    back = None
    for at in range(len(after) - IN_A_ROW + 1):
        run = after[at : at + IN_A_ROW]
        begin, first = run[0]
        if first.at > since and all(one.step > newest for _, one in run) and run[-1][1].at - begin <= bound:
            back = first.at
            break
    until = back or new or since
    pause = max((b.at - max(a, began) for a, b in after if b.at <= until), default=None)
    told = [None if at is None else round(at - began, 3) for at in (new, back)]
    return told[0], told[1], None if pause is None else round(pause, 3)


def old_pace(steps: Sequence[Step], began: float) -> float:
    """Seconds a step before the fault: the median of the last steps, each timed with the three before it."""
    times = [one.at for one in steps if one.at <= began][-BEFORE - 1 :]
    spans = [(b - a) / IN_A_ROW for a, b in zip(times, times[IN_A_ROW:], strict=False)]
    return median(spans) if spans else (times[-1] - times[0]) / max(1, len(times) - 1)


def inject(
    run_dir: Path,
    roles: Sequence[str],
    *,
    times: int,
    stop_s: float | None,
    seed: int,
    tell: Callable[[FaultCost], None],
) -> list[FaultCost]:
    """Put `times` faults into each role that `roles` name, one after another; `tell` hears what each cost.

    A role is killed, or stopped for `stop_s` seconds. The next fault comes when the pace of before is back and two more
    steps are trained. Raises ConfigError where no such run or role goes on here, InfraError when the run ends.
    """
    layout = RunLayout(run_dir.absolute())
    draw, steps = random.Random(seed), _Steps(layout.metrics)
    names = _victims(going_on(layout), roles)
    _await(layout, lambda: len(steps.read()) > IN_A_ROW, "its first steps")
    costs: list[FaultCost] = []
    for _ in range(times):
        for name in draw.sample(names, len(names)):
            time.sleep(draw.uniform(0, 2 * old_pace(steps.read(), time.time())))
            costs.append(_one(layout, steps, name, stop_s))
            tell(costs[-1])
            if not costs[-1].recovered:
                return costs
            further = steps.newest() + 2
            _await(layout, partial(lambda least: steps.newest() >= least, further), "two more steps")
    return costs


def _victims(live: Live, roles: Sequence[str]) -> list[str]:
    """Names of the roles asked for; without any, of all that have a process."""
    here = [role.name for role in live.roles if role.pid and role.phase == ChildPhase.READY]
    if live.host not in ("", os.uname().nodename):
        raise ConfigError(f"the run's processes are on {live.host}", fix="call it there")
    for role in roles:
        if not any(fits(name, role) for name in here):
            raise ConfigError(f"no role {role!r} is ready in this run", fix=f"name one of {', '.join(here)}")
    return [name for name in here if not roles or any(fits(name, role) for role in roles)]


def _one(layout: RunLayout, steps: "_Steps", name: str, stop_s: float | None) -> FaultCost:
    """One fault, from the moment before it to the old pace."""
    _await(layout, lambda: _role(going_on(layout), name).phase == ChildPhase.READY, f"{name} to be ready")
    role = _role(going_on(layout), name)
    if role.warning:
        raise ConfigError(f"{name} is not hurt again: {role.warning}", fix="go on when these restarts are forgotten")
    try:
        family = {process.pid for process in psutil.Process(role.pid).parents()}
    except psutil.NoSuchProcess:
        family = set()
    if _state(layout).pid not in family:  # the pid may be another's by now
        raise InfraError(f"{name} ended by itself", fix=f"see `areal why {layout.root}`")
    began, at = time.time(), time.monotonic()
    detected = replaced = None
    told: tuple[float | None, ...] = (None, None, None)
    with _hurt(role, stop_s) as goes_on:
        while time.monotonic() - at < _LOST_S:
            time.sleep(_LOOK_S)
            since = round(time.time() - began, 3)
            over = goes_on(since)
            now = _role(_state(layout), name)
            new = now.restarts > role.restarts or now.pid not in (0, role.pid)
            if detected is None and (new or now.phase != ChildPhase.READY or now.stopped or now.silent_s):
                detected = since
            back = new if stop_s is None else over and not (now.stopped or now.silent_s)
            if replaced is None and back and now.phase == ChildPhase.READY:
                replaced = since
            if replaced is not None:
                told = paces(steps.read(), began, began + replaced)
                if told[1] is not None or (told[0] is not None and since > told[0] + _PATIENCE_S):
                    break
    return FaultCost(name, KILL if stop_s is None else f"{STOP} {stop_s:g} s", began, detected, replaced, *told)


@contextmanager
def _hurt(role: LiveRole, stop_s: float | None) -> Iterator[Callable[[float], bool]]:
    """Kill a role's process, or stop it; what is yielded lets it go on after its time, and says whether it does."""
    with suppress(ProcessLookupError):
        os.kill(role.pid, signal.SIGKILL if stop_s is None else signal.SIGSTOP)

    def goes_on(since: float) -> bool:
        if stop_s is None or since < stop_s:
            return stop_s is None
        with suppress(ProcessLookupError):
            os.kill(role.pid, signal.SIGCONT)
        return True

    try:
        yield goes_on
    finally:
        goes_on(float("inf"))


class _Steps:
    """Steps of a run, read on from where they were."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self._found: dict[tuple[int, int], Step] = {}

    def read(self) -> list[Step]:
        """In the order of their training; one that was trained again stands there twice."""
        with suppress(OSError), self._path.open("rb") as file:
            self._read = self._read if self._path.stat().st_size >= self._read else 0  # cut at a checkpoint
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
            self._read += len(whole) + 1 if whole else 0
            for step in filter(None, map(Step.of, whole.decode(errors="replace").splitlines())):
                self._found.setdefault((step.fence, step.step), step)
        return sorted(self._found.values(), key=lambda one: one.at)

    def newest(self) -> int:
        """The number of the furthest."""
        return max(one.step for one in self.read())


def _state(layout: RunLayout) -> Live:
    live = read_live(layout.live)
    if live is None or not live.goes_on:
        raise InfraError("the run ended meanwhile", fix=f"see `areal why {layout.root}`")
    return live


def _role(live: Live, name: str) -> LiveRole:
    return next((role for role in live.roles if role.name == name), LiveRole(name, ChildPhase.STOPPED))


def _await(layout: RunLayout, ready: Callable[[], bool], what: str) -> None:
    """Wait for it while the run goes on. Raises InfraError."""
    until = time.monotonic() + _LOST_S
    while not ready():
        _state(layout)
        if time.monotonic() > until:
            raise InfraError(f"the run waits for {what} since {_LOST_S:g} s", fix=f"see `areal why {layout.root}`")
        time.sleep(_LOOK_S)
