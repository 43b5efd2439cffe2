"""Learning rate as a function of the step. Pure, so a restart needs no state of it."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RateSchedule:
    """Warm-up from 1/warmup_steps of `peak`, then decay to `min_ratio`·peak at the last step."""

    peak: float
    warmup_steps: int = 5
    kind: Literal["linear", "constant", "cosine"] = "linear"
    min_ratio: float = 0.1

    def at(self, step: int, max_steps: int) -> float:
        """The rate of the 0-based `step`. Steps beyond the end keep the last rate."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.kind == "constant":
            return self.peak
        span = max(1, max_steps - 1 - self.warmup_steps)
        progress = min(1.0, (step - self.warmup_steps) / span)
        shape = 1.0 - progress if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.peak * (self.min_ratio + (1.0 - self.min_ratio) * shape)
