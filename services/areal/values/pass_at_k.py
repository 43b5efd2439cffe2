"""avg@n and pass@k: what n sampled answers of each row say of a policy. Pure."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import comb

RIGHT = 1.0
"""The least score of a right answer."""


def pass_at_k(samples: int, right: int, k: int) -> float:
    """1 − C(n−c, k) / C(n, k) for n samples of which c are right (Chen et al. 2021, arXiv 2107.03374, eq. 1)."""
    if not 0 <= right <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {right} right samples among {samples} means nothing")
    return float(1 - Fraction(comb(samples - right, k), comb(samples, k)))


def mean_pass_at_k(tasks: Iterable[tuple[int, int]], k: int) -> float | None:
    """The mean over tasks, each (samples, right); None when some task has fewer than k samples, or there is none."""
    if not (counted := list(tasks)) or any(samples < k for samples, _ in counted):
        return None
    return sum(pass_at_k(samples, right, k) for samples, right in counted) / len(counted)


def sampled_figures(rows: Sequence[Sequence[float]], samples: int, ks: Iterable[int]) -> dict[str, float]:
    """`avg@n` and each `pass@k` of rows' scores; a row may have fewer than `samples`, then a pass@k may be absent.

    avg@n is the mean over rows of the mean of their scores; rows without any don't count.
    """
    if not (scored := [row for row in rows if row]):
        return {}
    figures = {f"avg@{samples}": sum(sum(row) / len(row) for row in scored) / len(scored)}
    tasks = [(len(row), sum(score >= RIGHT for score in row)) for row in scored]
    passed = {f"pass@{k}": mean_pass_at_k(tasks, k) for k in sorted(set(ks))}
    return figures | {name: value for name, value in passed.items() if value is not None}
