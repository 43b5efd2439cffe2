"""Spans of the trainer: the step that trained a group, by phase, and the publication of what came of it.

Rank 0 only. A group's trace ends with a link to the trace of the first version that holds its gradient; below that lie
the swaps of all servers.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from areal.observe.traces import NO_TRACES, Traces

from areal_trainer.engine.group import RankGroup

_BETWEEN = ("wait", "publish", "checkpoint")  # phases between two steps
_MOST_LINKS = 128  # of a version to the groups that it learnt from: as many as OpenTelemetry's SDK keeps


@dataclass
class _SpanPhase:
    name: str
    began: float
    ended: float


class StepSpans:
    """Collects the phases of a step and gives them to every traced group of its batch."""

    def __init__(self, traces: Traces = NO_TRACES, clock: Callable[[], float] = time.time) -> None:
        self.traces = traces
        self._clock = clock
        self._phases: list[_SpanPhase] = []
        self._unpublished: list[int] = []  # traced groups whose gradient no version holds yet
        self._publishing: tuple[str, float, list[int]] | None = None

    def spent(self, phase: str, seconds: float) -> None:
        """A slice of a phase has passed; slices that follow each other are one."""
        if not self.traces.on:
            return
        if phase in _BETWEEN:
            self._phases.clear()  # looks that found no batch
            return
        ended = self._clock()
        if self._phases and self._phases[-1].name == phase:
            self._phases[-1].ended = ended
        else:
            self._phases.append(_SpanPhase(phase, ended - seconds, ended))

    def beside(self, other: Callable[[str, float], None]) -> Callable[[str, float], None]:
        """`spent`, after another that is told the same."""

        def both(phase: str, seconds: float) -> None:
            other(phase, seconds)
            self.spent(phase, seconds)

        return both

    def trained(self, step: int, groups: Iterable[int], *, learned: bool) -> None:
        """A batch is consumed: its phases are those since the batch before."""
        phases, self._phases = self._phases, []
        wanted = [group for group in groups if self.traces.wants(group)]
        if not wanted or not phases:
            return
        began = phases[0].began
        for group in wanted:
            own = self.traces.step(group, step)
            self.traces.emit(
                "step",
                began,
                self._clock(),
                own=own,
                parent=self.traces.group(group),
                attributes={"step": step, "learned": learned},
            )
            for phase in phases:
                self.traces.emit(phase.name, phase.began, phase.ended, parent=own)
        self._unpublished += wanted

    def publishing(self, policy_id: str) -> None:
        """A publication begins: it holds what was trained so far."""
        if self.traces.on:
            self._publishing = policy_id, self._clock(), self._unpublished
            self._unpublished = []

    def published(self, policy_id: str) -> None:
        """It is announced. Called from the thread that publishes."""
        if self._publishing is None or self._publishing[0] != policy_id:
            return
        _, began, groups = self._publishing
        ended, version = self._clock(), self.traces.policy(policy_id)
        roots = [self.traces.group(group) for group in groups]
        self.traces.emit(
            "version", began, ended, own=version, links=roots[:_MOST_LINKS], attributes={"policy": policy_id}
        )
        for root in roots:
            self.traces.emit("publish", began, ended, parent=root, links=[version], attributes={"policy": policy_id})


# ---- Wall time by phase: where a step's seconds went


PHASES = ("wait", "take", "prox", "train", "publish", "checkpoint")


class PhaseTimer:
    """Adds up seconds by name until they are taken. Phases do not nest."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self.doing: Callable[[str], None] = lambda _: None
        self.spent: Callable[[str, float], None] = lambda _phase, _seconds: None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time as `name`."""
        began = self._clock()
        self.doing(name)
        try:
            yield
        finally:
            seconds = self._clock() - began
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            self.spent(name, seconds)

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call."""
        taken, self._seconds = self._seconds, {}
        return taken


def seconds_by_rank(seconds: Mapping[str, float], ranks: RankGroup) -> list[list[float]]:
    """[ranks][phases] What every rank spent, in the order of PHASES; `seconds` is this rank's. All ranks call it."""
    if ranks.world_size == 1:
        return [[seconds.get(phase, 0.0) for phase in PHASES]]
    found = torch.zeros(ranks.world_size, len(PHASES), dtype=torch.float64)
    found[ranks.rank] = torch.tensor([seconds.get(phase, 0.0) for phase in PHASES], dtype=torch.float64)
    ranks.add_all(found)
    return [[float(value) for value in row] for row in found.tolist()]
