"""The critic's loss: squared or Huber error of a value against its return, clipped around the old value.

Pure. Returns terms a token, as the policy's loss does. A token that the policy's loss rejects still trains the critic.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

_DELTA = 10.0  # where Huber's loss becomes linear


@dataclass(frozen=True)
class ValueOptions:
    """ε_v: how far a value may move from its old one; None is no limit."""

    clip: float | None = 0.5
    kind: Literal["mse", "huber"] = "mse"


def value_loss(values: Tensor, old: Tensor, returns: Tensor, options: ValueOptions) -> tuple[Tensor, Tensor]:
    """max(h(V − G), h(V^c − G)), and where the clipped branch decided, [tokens] each.

    V^c = V_old + clip(V − V_old, ±ε_v); h(x) = x²/2, or Huber's with δ = 10.
    """
    plain = _error(values - returns, options.kind)
    if options.clip is None:
        return plain, torch.zeros_like(plain, dtype=torch.bool)
    limited = _error(old + (values - old).clamp(-options.clip, options.clip) - returns, options.kind)
    return torch.maximum(plain, limited), (limited > plain).detach()


def _error(x: Tensor, kind: str) -> Tensor:
    square = 0.5 * x * x
    return square if kind == "mse" else torch.where(x.abs() < _DELTA, square, _DELTA * (x.abs() - 0.5 * _DELTA))
