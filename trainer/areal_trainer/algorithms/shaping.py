"""Reward shaping: overlong penalty, bias, scale and clipping, before any baseline.

Pure, in float64. Whether a group is flat is decided from the raw rewards (`advantages`), so shaping never makes a
signal of a group without one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class OverlongPenalty:
    """Soft punishment of long answers (DAPO, arXiv 2503.14476, eq. 13): from 0 down to −factor, and no lower."""

    max_tokens: int  # L_max: the longest answer that is expected
    window: int  # L_win: from L_max − L_win on, the penalty grows linearly
    factor: float = 1.0  # the penalty at L_max and beyond

    def __post_init__(self) -> None:
        if self.window < 1 or self.max_tokens < self.window:
            raise ValueError(f"an overlong window of {self.window} doesn't fit into {self.max_tokens} tokens")


@dataclass(frozen=True)
class ShapingOptions:
    """r ← clip((r + penalty + bias)·scale, ±clip); the defaults change nothing."""

    bias: float = 0.0
    scale: float = 1.0
    clip: float | None = None
    overlong: OverlongPenalty | None = None


def shape_rewards(
    rewards: NDArray[np.float64], action_tokens: NDArray[np.int64], options: ShapingOptions
) -> NDArray[np.float64]:
    """The shaped rewards, [sequences].

    Args:
        rewards: raw, [sequences]
        action_tokens: sampled tokens of each sequence, [sequences]
    """
    shaped: NDArray[np.float64] = np.array(rewards, dtype=np.float64)
    if options.overlong is not None:
        limit = options.overlong
        over = action_tokens - (limit.max_tokens - limit.window)
        shaped = shaped - np.clip(over / limit.window, 0.0, 1.0) * limit.factor
    shaped = (shaped + options.bias) * options.scale
    return shaped if options.clip is None else np.clip(shaped, -options.clip, options.clip)
