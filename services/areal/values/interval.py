"""95 % intervals: of the mean of a few values (Student's t), of a share (Wilson). Pure."""

import math
from collections.abc import Sequence
from statistics import stdev

_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # Student's t, two-sided, by degrees of freedom from 1
_Z95 = 1.959964  # of the normal distribution


def student_half(values: Sequence[float]) -> float | None:
    """Half the interval of the mean of `values`; None of fewer than two."""
    n = len(values)
    return _T95[min(n - 1, len(_T95)) - 1] * stdev(values) / math.sqrt(n) if n > 1 else None


def wilson(share: float, count: int) -> tuple[float, float]:
    """The smallest and largest share that go with `share` seen in `count` (E. B. Wilson, 1927)."""
    spread = _Z95 * _Z95 / count
    middle = share + spread / 2.0
    half = math.sqrt(spread * (share * (1.0 - share) + spread / 4.0))
    return (middle - half) / (1.0 + spread), (middle + half) / (1.0 + spread)
