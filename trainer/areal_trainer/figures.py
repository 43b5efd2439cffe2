"""Figures that a user's code names: of samples, of `compute_advantages`, of `compute_loss`.

Owns what a figure may be: a finite number under a name of plain letters. A figure that isn't one is refused where it
was made, so that no chart is quietly empty.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from areal.errors import DataError
from areal.v1 import common_pb2 as common
from areal.workflow.episode import FIGURE_NAMES, MOST_FIGURES, is_figure_name


def sample_means(samples: Sequence[common.Sample]) -> dict[str, float]:
    """Mean of each figure that rewards and workflows named, over the samples that have it."""
    found: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in sample.verdict.figures.items():
            found.setdefault(name, []).append(value)
    return {name: float(np.mean(found[name])) for name in sorted(found)}


def checked(hook: str, figures: Mapping[Any, Any]) -> dict[str, float]:
    """What a hook wrote into `batch.figures`, as numbers. Raises DataError that names the hook and the figure."""
    if len(figures) > MOST_FIGURES:
        raise DataError(f"{hook} names {len(figures)} figures", fix=f"keep the {MOST_FIGURES} that matter")
    return {_name(hook, name): _number(hook, name, value) for name, value in figures.items()}


class FigureMeans:
    """Means of what `compute_loss` names, over this rank's micro-batches, weighed by their tokens."""

    def __init__(self) -> None:
        self._sums: dict[str, float | torch.Tensor] = {}
        self._tokens: dict[str, int] = {}

    def add(self, figures: Mapping[Any, Any], tokens: int) -> None:
        """Count one micro-batch; tensors stay on their device until `means`."""
        for name, value in figures.items():
            known = _name("compute_loss", name)
            one = value.detach().double() if isinstance(value, torch.Tensor) else float(value)
            self._sums[known] = self._sums.get(known, 0.0) + one * tokens
            self._tokens[known] = self._tokens.get(known, 0) + tokens

    def means(self) -> dict[str, float]:
        """By name. Raises DataError for one that is no finite number."""
        return checked("compute_loss", {name: self._sums[name] / max(self._tokens[name], 1) for name in self._sums})


def _name(hook: str, name: Any) -> str:
    if not is_figure_name(name):
        raise DataError(f"{hook} names a figure {name!r:.80}", fix=f"name it {FIGURE_NAMES}")
    return str(name)


def _number(hook: str, name: str, value: Any) -> float:
    try:
        number = float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        number = float("nan")
    if not np.isfinite(number):
        raise DataError(f"{hook}: the figure {name} is {value!r:.80}", fix="give a finite number, or a tensor of one")
    return number
