"""The verdict on a canary: how far a server's log-probabilities are from the trainer's, and whether that is too far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from areal.weights.manifest import Canary


@dataclass(frozen=True)
class Difference:
    """Absolute differences of log-probabilities; infinite where they can't be compared."""

    mean: float
    worst: float


def difference(scored: Sequence[float], expected: Sequence[float]) -> Difference:
    """Of two lists token by token; infinite when lengths differ or a value is not a number."""
    if len(scored) != len(expected):
        return Difference(math.inf, math.inf)
    values = [abs(ours - theirs) for ours, theirs in zip(scored, expected, strict=True)]
    if not all(math.isfinite(value) for value in values):
        return Difference(math.inf, math.inf)
    return Difference(sum(values) / max(len(values), 1), max(values, default=0.0))


def problem(canary: Canary, found: Difference) -> str | None:
    """Why a server that scores the canary with this difference holds other weights; None when it passes."""
    if canary.mean_tolerance is not None and not found.mean <= canary.mean_tolerance:
        return (
            f"log-probabilities differ from the trainer's by {found.mean:.3g} in the mean, "
            f"more than {canary.mean_tolerance:.3g} (worst {found.worst:.3g})"
        )
    if not found.worst <= canary.tolerance:
        return (
            f"log-probabilities differ from the trainer's by {found.worst:.3g}, more than {canary.tolerance:.3g} "
            f"(mean {found.mean:.3g})"
        )
    return None
