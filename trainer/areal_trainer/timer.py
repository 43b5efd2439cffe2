"""Wall time by phase: where a step's seconds went."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from areal_trainer.engine.group import RankGroup

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
