"""Position of the run: its settings, and how far its trainer is.

One value that all parts of the core read.

Owns nothing itself: `TrainerDesk` writes fence, cursor and step, `Controller` the settings, everybody else reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from areal.rollout.controller.settings import ControllerSettings


@dataclass(slots=True)
class TrainCursor:
    """`cursor` is the first group that the trainer did not take; `step` the version that its taken batches make."""

    settings: ControllerSettings
    fence: int = 0  # of the trainer that told the cursor; 0 is none
    cursor: int = 0
    step: int = 0

    @property
    def max_steps(self) -> int:
        """The run's last version. Below the trainer's version it means that version."""
        return max(self.settings.max_steps, self.step)
