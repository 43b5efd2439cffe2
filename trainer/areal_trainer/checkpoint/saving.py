"""A checkpoint that is being written: what is known of it, and the wait for its end."""

import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path

from areal.errors import InfraError
from areal.observe.waits import WaitRegistry

from areal_trainer.engine.group import RankGroup, wait_together

DEADLINE_S = 1800.0  # 400 GB over eight ranks at 30 MB/s each


@dataclass(frozen=True)
class RunPosition:
    """How far the run is, and under which fence: goes into the record."""

    step: int
    fence: int


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint on disk, and how long it took from the copy to its name."""

    position: RunPosition
    path: Path
    wall_s: float

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(file.stat().st_size for file in self.path.iterdir())


class Saving:
    """A rank's view of a checkpoint under way. It is on disk once rank 0 has sealed it."""

    def __init__(
        self, position: RunPosition, future: Future[SavedCheckpoint], ranks: RankGroup, waits: WaitRegistry
    ) -> None:
        self.position = position
        self._future = future
        self._ranks = ranks
        self._waits = waits
        self._deadline = time.monotonic() + DEADLINE_S

    def done(self, within_s: float = 0.0) -> SavedCheckpoint | None:
        """Checkpoint that was saved, on rank 0; None while it is written. Raises what went wrong with it."""
        try:
            return self._future.result(within_s)
        except FutureTimeoutError:
            return None

    def wait(self) -> SavedCheckpoint:
        """Wait until it is on disk. A collective. Raises what went wrong with it."""
        words = f"the checkpoint of step {self.position.step} to be written and sealed"
        with self._waits.waiting("checkpoint", words, deadline_s=DEADLINE_S):
            wait_together(self._ranks, self._sealed)
            return self._future.result()  # of the other ranks: their part was over before rank 0 sealed

    def _sealed(self, within_s: float) -> bool:
        if self.done(within_s) is None:
            if time.monotonic() > self._deadline:
                raise InfraError(
                    f"writing the checkpoint of step {self.position.step} takes longer than {DEADLINE_S:.0f} s",
                    fix="check the run's volume",
                )
            return False
        return True
