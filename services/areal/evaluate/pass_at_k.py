"""pass@k: how likely one of k samples is right, estimated without bias from n >= k samples."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import comb


def pass_at_k(samples: int, right: int, k: int) -> float:
    """1 − C(n−c, k) / C(n, k) for n samples of which c are right (Chen et al. 2021, arXiv 2107.03374, eq. 1)."""
    if not 0 <= right <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {right} right samples among {samples} means nothing")
    return float(1 - Fraction(comb(samples - right, k), comb(samples, k)))


def mean_pass_at_k(tasks: Iterable[tuple[int, int]], k: int) -> float | None:
    """The mean over tasks, each (samples, right); None when some task has fewer than k samples, or there is none."""
    counted = list(tasks)
    if not counted or any(samples < k for samples, _ in counted):
        return None
    return sum(pass_at_k(samples, right, k) for samples, right in counted) / len(counted)
