"""Two lines around an activation on an interval: a relaxation chooses the slopes, the activation the offsets.

- `parallel`: both lines have the chord's slope (the paper's relaxation, Appendix A-A): one pass serves both sides.
- `adaptive`: CROWN's slopes, the lower and the upper chosen apart.

Any slope is sound, because the offset is the extreme value of `f(z) - slope z` (Eq. (8) and (13) of the paper).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from polycert.rules.activation import Activation, Lines
from polycert.sets.interval import Interval
from polycert.sets.rounding import Rounding, at_least, at_most

Relaxation = Callable[[Activation, Interval, Rounding | None], Lines]


def parallel(activation: Activation, given: Interval, rounding: Rounding | None = None) -> Lines:
    """One slope for both lines, analytic and differentiable."""
    slope, (low, high) = activation.parallel(given.lower, given.upper)
    return _lines(slope, low, slope, high, _error(activation, slope, given, rounding))


def adaptive(activation: Activation, given: Interval, rounding: Rounding | None = None) -> Lines:
    """CROWN's slopes; for S-shaped functions found by a search that carries no gradient."""
    return lines_of(activation, *activation.adaptive(given.lower, given.upper), given, rounding)


def lines_of(
    activation: Activation, low_slope: Tensor, high_slope: Tensor, given: Interval, rounding: Rounding | None
) -> Lines:
    """Two lines with any slopes: the offsets make them sound."""
    low = activation.offset_range(low_slope, given.lower, given.upper).lower
    high = activation.offset_range(high_slope, given.lower, given.upper).upper
    steepest = torch.maximum(low_slope.abs(), high_slope.abs())
    return _lines(low_slope, low, high_slope, high, _error(activation, steepest, given, rounding))


def _lines(low_slope: Tensor, low: Tensor, high_slope: Tensor, high: Tensor, error: Tensor | None) -> Lines:
    """Lines whose offsets may have overflowed: in a rigorous pass those say nothing."""
    if error is not None:
        low, high = at_least(low), at_most(high)
    return Lines(low_slope, low, high_slope, high, error)


def _error(activation: Activation, slope: Tensor, given: Interval, rounding: Rounding | None) -> Tensor | None:
    """What rounding and the library's functions may take from an offset."""
    if rounding is None:
        return None
    return rounding.library(activation.sizes(slope, given))


RELAXATIONS: dict[str, Relaxation] = {"parallel": parallel, "adaptive": adaptive}
