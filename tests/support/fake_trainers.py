"""Launchers and trainers of a fake cluster: what a gang does with the epochs it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from areal.processes.core import ChildPhase
from areal_operator.operator.hot_fields import HotFields

WORKS = (ChildPhase.STARTING, ChildPhase.READY)


@dataclass
class Launcher:
    """A trainer's launcher: one run of the pod's container."""

    phase: ChildPhase = ChildPhase.IDLE
    epoch: int = 0
    code: int = 0

    def restart(self, epoch: int) -> bool:
        """As `areal.processes` does it: told twice is told once, an older epoch is refused."""
        if epoch < self.epoch or self.phase is ChildPhase.STOPPED:
            return False
        if epoch > self.epoch:
            self.epoch, self.phase, self.code = epoch, ChildPhase.STARTING, 0
        return True


@dataclass
class Training:
    """What one job's trainers have done."""

    max_steps: int = 12
    step: int = 0
    made: int = 0  # in this epoch
    made_by_epoch: dict[int, int] = field(default_factory=dict)
    checkpoint: int = 0
    checkpoint_every: int = 5
    epoch: int = 0  # that trains
    hung: bool = False
    hot: HotFields | None = None  # in force at the controller; None: no controller ran yet

    def advance(self, launchers: Sequence[Launcher], size: int) -> None:
        """One tick of the launchers that can be reached; `size` make the gang whole."""
        working = [launcher for launcher in launchers if launcher.phase in WORKS]
        ready = [launcher for launcher in launchers if launcher.phase is ChildPhase.READY]
        epochs = {launcher.epoch for launcher in working}
        if ready and (len(working) < size or len(epochs) > 1):  # a peer is gone: collectives fail
            for launcher in ready:
                launcher.phase, launcher.code = ChildPhase.BACKING_OFF, 1
        elif size and len(working) == size and len(epochs) == 1:
            for launcher in working:
                launcher.phase = ChildPhase.READY
            if epochs != {self.epoch}:
                self.epoch, self.step, self.made, self.hung = epochs.pop(), self.checkpoint, 0, False
            elif not self.hung:
                self._train(working)

    def _train(self, launchers: Sequence[Launcher]) -> None:
        self.step += 1
        self.made += 1
        self.made_by_epoch[self.epoch] = self.made
        finished = self.step >= self.max_steps
        if finished or self.step % self.checkpoint_every == 0:
            self.checkpoint = self.step
        if finished:
            for launcher in launchers:
                launcher.phase = ChildPhase.COMPLETE
