"""95 % confidence intervals of what is measured on a sample of all inputs."""

from __future__ import annotations

import math

import numpy as np

Z = 1.959963984540054  # the normal distribution's 97.5 % quantile
Pair = tuple[float, float]


def wilson(count: int, total: int) -> Pair:
    """Of an error in per cent, `count` failures among `total` samples (Wilson 1927); sensible at 0 and 100 % too."""
    share, square = count / total, Z * Z / total
    middle = (share + square / 2) / (1 + square)
    half = Z * math.sqrt((share * (1 - share) + square / 4) / total) / (1 + square)
    # At the ends the formula is exact but for rounding.
    low = 0.0 if count == 0 else middle - half
    high = 1.0 if count == total else middle + half
    return 100 * low, 100 * high


def normal(values: np.ndarray) -> Pair:
    """Of the mean of values that are not negative, by the normal distribution; no wider than they allow."""
    mean = float(values.mean())
    half = Z * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return max(mean - half, 0.0), mean + half
