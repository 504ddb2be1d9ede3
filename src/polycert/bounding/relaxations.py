"""Two lines around an activation on an interval: a relaxation chooses the slopes, the activation the offsets.

- `parallel`: both lines have the chord's slope (the paper's relaxation, Appendix A-A): one pass serves both sides.
- `adaptive`: CROWN's slopes, the lower and the upper chosen apart.

Any slope is sound, because the offset is the extreme value of `f(z) - slope z` (Eq. (8) and (13) of the paper).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.forms import Form
from polycert.rules import Activation, Lines
from polycert.sets.interval import Interval, Rounding, at_least, at_most

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


FEW_UNITS = 1 / 8  # of a layer: above this share, all of them at once cost less than the chosen ones


class CentredOffsets(NamedTuple):
    """Of two lines around an activation: halfway between them at 0, and half their distance there."""

    middle: Tensor
    half_gap: Tensor


class NonzeroOffsets(NamedTuple):
    """The units of each sample whose lines do not pass through 0, filled up with others where a sample has fewer."""

    units: Tensor  # [batch, count]
    offsets: CentredOffsets  # [batch, count] each


class LineOffsets(NamedTuple):
    """The offsets of an activation's lines: at all units, and at those that have any if they are few."""

    all: CentredOffsets
    few: NonzeroOffsets | None

    @staticmethod
    def of(lines: Lines) -> LineOffsets:
        """Looked up once for all rows that pass the activation."""
        whole = CentredOffsets(lines.middle, lines.half_gap)
        bent = ((lines.lower_offset != 0) | (lines.upper_offset != 0)).flatten(1)
        units = _few(bent)
        if units is None:
            return LineOffsets(whole, None)
        return LineOffsets(
            whole, NonzeroOffsets(units, CentredOffsets(*(part.flatten(1).gather(1, units) for part in whole)))
        )

    def met_by(self, form: Form) -> tuple[Form, CentredOffsets]:
        """The rows and the offsets to multiply: at the few units that have any, where those are cheap to pick."""
        picked = None if self.few is None else form.at(self.few.units)
        return (form, self.all) if self.few is None or picked is None else (picked, self.few.offsets)


def _few(bent: Tensor) -> Tensor | None:
    """The bent units of each sample and, where others have more, some that are not, `[batch, count]`; None if many."""
    most = FEW_UNITS * bent.shape[1]
    if bent.shape[0] == 1:
        units = bent.squeeze(0).nonzero().T
        return units if units.shape[1] <= most else None
    count = int(bent.sum(1).max())
    return bent.byte().topk(count, dim=1).indices if count <= most else None
