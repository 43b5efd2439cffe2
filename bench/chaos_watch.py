"""Stamps of a fault: records of a run as they appear in its files, on one clock, and the recovery that they tell.

Owns what counts as detected, replaced, useful and back of each role. All stamps are the machine's wall clock: a record
of a log is stamped when it is seen, at most `PERIOD_S` and one turn of a loaded scheduler after it was written, a step
by the trainer itself. `recovery` is pure.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from areal.errors import Cause
from areal.local.chaos import Step, paces
from areal.observe.causes import why
from areal.observe.live import read_live

PERIOD_S = 0.01
ASK_S = 0.25  # how often `areal why` is asked where `areal run` writes nothing new: a full disk lets it write nothing


@dataclass(frozen=True)
class Sight:
    """One record: where it stands, and its text."""

    at: float
    source: str
    text: str


Sign = tuple[str, str]
"""Source and pattern of a record."""


@dataclass(frozen=True)
class Signs:
    """Records that tell of a role's fault. The launcher's own line at a restart counts as detection for all."""

    name: str  # as the run names the role
    detected: Sequence[Sign]
    replaced: Sequence[Sign]
    useful: Sequence[Sign]


_ENGINE = Signs(
    "generation-0",
    [("generation-0", r"requests lost their engine|the engine is gone")],
    [("generation-0", r"the engine answers after")],
    [("generation-0", r"canary of |holds ")],  # tokens that it scored of the newest weights
)
SIGNS = {
    "redis": Signs(
        "redis",
        [("controller", r"Redis is away|Redis restarted"), ("worker-0", r"the ledger (is away|restarted)")],
        [("redis", r"Ready to accept connections")],
        [("store", "")],  # the first write of a client in its append-only file
    ),
    "controller": Signs(
        "controller",
        [(name, r"no stream to controller") for name in ("worker-0", "generation-0", "trainer")],
        [("controller", r"controller f\d+ starts")],
        [("journal", r'"kind":"assign"')],  # the first batch that it gives the trainer
    ),
    "worker": Signs(
        "worker-0",
        [],
        [("controller", r"worker 'worker-0' opened a stream")],
        [("episodes", "")],  # the first episode in its recording, which is written twice a second
    ),
    "agent": Signs(
        "generation-0",
        [(name, r"no stream to generation-0|the stream to generation-0 ended") for name in ("worker-0", "controller")],
        [("generation-0", r"serving on port")],
        _ENGINE.useful,
    ),
    "engine": _ENGINE,
    "reward": Signs(
        "reward-custom",
        [("worker-0", r"scoring failed")],
        [("reward-custom", r"serving .* on port")],
        [("episodes", "")],  # an episode is complete with its score
    ),
    "trainer": Signs("trainer", [], [("controller", r"trainer f\d+ attached")], [("step", "")]),
    "run": Signs("areal run", [], [], [("step", "")]),
}


@dataclass(frozen=True)
class Recovery:
    """Seconds from the fault on; None where nothing of it was seen."""

    detected: float | None = None
    replaced: float | None = None
    useful: float | None = None
    old_step: float | None = None  # the first step that had not been trained before
    old_pace: float | None = None  # the first of four that together had the pace of before
    pause: float | None = None  # the longest time between two steps until then

    @property
    def whole(self) -> bool:
        return self.old_pace is not None


class Watch(threading.Thread):
    """Reads what a run writes, from now on, until `close`."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(daemon=True, name="watch")
        self._dir = run_dir
        self._done = threading.Event()
        self._offsets: dict[Path, int] = {}
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._seen: list[Sight] = []
        self._steps: dict[tuple[int, int], Step] = {}
        self._live = 0
        self._asked = 0.0
        self.why = ""
        for path in self._files():
            if path.name != "metrics.jsonl":
                with suppress(OSError):
                    self._offsets[path] = path.stat().st_size

    def close(self) -> None:
        self._done.set()
        if self.is_alive():
            self.join(10)

    def seen(self, since: float = 0.0) -> list[Sight]:
        """Records from `since` on, in their order."""
        with self._lock:
            return [one for one in self._seen if one.at >= since]

    def steps(self) -> list[Step]:
        """Steps in the order of their training; one that was trained again stands there twice."""
        with self._lock:
            return sorted(self._steps.values(), key=lambda one: one.at)

    def run(self) -> None:
        while not self._done.wait(PERIOD_S):
            for path in self._files():
                self._read(path)
            self._grown("store", self._dir / "redis" / "appendonlydir", "*.aof")
            self._grown("episodes", self._dir / "trajectories", "*.rec")
            self._ask()

    def _files(self) -> list[Path]:
        return [*self._dir.glob("logs/*.log"), self._dir / "metrics.jsonl", self._dir / "journal" / "controller.jsonl"]

    def _read(self, path: Path) -> None:
        begin = self._offsets.get(path, 0)
        try:
            size = path.stat().st_size
            if size < begin:  # cut, and written anew from there
                begin = self._offsets[path] = 0 if path.name == "metrics.jsonl" else size
            if size == begin:
                return
            with path.open("rb") as file:
                file.seek(begin)
                whole = file.read(size - begin).rpartition(b"\n")[0]
        except OSError:
            return
        now = time.time()
        self._offsets[path] = begin + (len(whole) + 1 if whole else 0)
        lines = whole.decode(errors="replace").splitlines()
        with self._lock:
            if path.name == "metrics.jsonl":
                for step in filter(None, map(Step.of, lines)):
                    self._steps.setdefault((step.fence, step.step), step)
            else:
                source = "journal" if path.parent.name == "journal" else path.stem
                self._seen += [Sight(now, source, line) for line in lines]

    def _grown(self, source: str, folder: Path, pattern: str) -> None:
        size = 0
        for path in folder.glob(pattern):
            with suppress(OSError):
                size += path.stat().st_size
        if size > self._sizes.get(source, size):
            with self._lock:
                self._seen.append(Sight(time.time(), source, str(size)))
        self._sizes[source] = size

    def _ask(self) -> None:
        """The cause that `areal why` names, each time that it is another one."""
        path = self._dir / "live.json"
        try:
            stamp = path.stat().st_mtime_ns
        except OSError:
            return
        now = time.monotonic()
        if stamp == self._live and now < self._asked + ASK_S:
            return
        self._live, self._asked = stamp, now
        live = read_live(path)
        if live is None:
            return
        found = why(live)
        text = "" if found.cause == Cause.NONE else f"{found.cause} {found.role}"
        if text != self.why:
            self.why = text
            with self._lock:
                self._seen.append(Sight(time.time(), "why", text))


def recovery(
    role: str, seen: Sequence[Sight], steps: Sequence[Step], began: float, ended: float | None = None
) -> Recovery:
    """Stamps of a fault from `began` on. One that is taken out again, at `ended`, is over when its role works again."""
    signs = SIGNS.get(role)
    if signs is None:
        return Recovery(None, None, None, *paces(steps, began, began))
    restart = (signs.name, rf"start \d+ of {re.escape(signs.name)}\b.*, after: ")
    named = ("why", rf"\S+ {re.escape(signs.name)}$")
    itself = (signs.name, r"no stream to |trying again|the ledger is away|Redis is away")  # one that was cut off
    detected = _first(seen, [*signs.detected, restart, named, itself], began)
    replaced = _first(seen, signs.replaced, began)
    since = replaced if ended is None else ended
    useful = None
    if since is not None:
        useful = _first(seen, signs.useful, since)
        if ("step", "") in signs.useful:
            fence = max((one.fence for one in steps if one.at <= began), default=0)
            useful = next((s.at for s in steps if s.at > since and (ended is not None or s.fence > fence)), None)
    after = [None if at is None else round(at - began, 3) for at in (detected, replaced, useful)]
    # a step by it counts as new work, too; of other roles, steps from what was ready before the fault don't
    since = useful - 1e-6 if useful is not None else None
    return Recovery(*after, *(paces(steps, began, since) if since is not None else (None, None, None)))


def _first(seen: Sequence[Sight], signs: Sequence[Sign], since: float) -> float | None:
    for one in seen:
        if one.at > since and any(one.source == source and re.search(text, one.text) for source, text in signs):
            return one.at
    return None


@dataclass
class Quiet:
    """Pace of a run while nothing is wrong with it: steps that no fault came within `far_s` before."""

    far_s: float
    steps: int = 0
    seconds: float = 0.0
    faults: Sequence[float] = field(default_factory=list)

    def add(self, steps: Sequence[Step]) -> None:
        for a, b in pairwise(steps):
            last = max((at for at in self.faults if at <= b.at), default=None)
            if last is None or a.at > last + self.far_s:
                self.steps += 1
                self.seconds += b.at - a.at

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps if self.steps else 0.0


def effective_time(steps: Sequence[Step], begin: float, end: float, step_s: float) -> tuple[float, float, int]:
    """Effective training time ratio from `begin` to `end`: at the quiet pace, by the steps' own seconds; and steps.

    A step that was trained again counts once. At the quiet pace a step is worth `step_s`, however long it waited; by
    their own seconds the steps' waiting for groups counts as training, as in the published definition.
    """
    old = max((one.step for one in steps if one.at <= begin), default=-1)
    kept = {one.step: one for one in steps if begin < one.at <= end and one.step > old}
    wall = end - begin
    own = sum(min(one.wall_s, wall) for one in kept.values())
    return len(kept) * step_s / wall, own / wall, len(kept)
