"""Relaxations: a lower and an upper line that enclose an activation f on an interval.

- `parallel`: both lines have the slope of the chord (the paper's relaxation, Appendix A-A). One pass serves both sides.
- `adaptive`: CROWN's slopes, chosen separately for the lower and the upper line.

A relaxation chooses the slopes. Any slope is sound, as the offset is the least or greatest value of `f(z) - slope z` on
the interval (Eq. (8) and (13) of the paper).
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
    """Two lines with the chord's slope, differentiable in the interval's ends."""
    slope, (low, high) = activation.parallel(given.lower, given.upper)
    return _lines(slope, low, slope, high, _error(activation, slope, given, rounding))


def adaptive(activation: Activation, given: Interval, rounding: Rounding | None = None) -> Lines:
    """Two lines with CROWN's slopes. Those of S-shaped functions are found by a search without gradient."""
    return lines_of(activation, *activation.adaptive(given.lower, given.upper), given, rounding)


def lines_of(
    activation: Activation, low_slope: Tensor, high_slope: Tensor, given: Interval, rounding: Rounding | None
) -> Lines:
    """Two lines with the given slopes, and the offsets that make them sound."""
    low = activation.offset_range(low_slope, given.lower, given.upper).lower
    high = activation.offset_range(high_slope, given.lower, given.upper).upper
    steepest = torch.maximum(low_slope.abs(), high_slope.abs())
    return _lines(low_slope, low, high_slope, high, _error(activation, steepest, given, rounding))


def _lines(low_slope: Tensor, low: Tensor, high_slope: Tensor, high: Tensor, error: Tensor | None) -> Lines:
    """The lines; in a rigorous pass (`error` is given) offsets that are not finite become infinite outward."""
    if error is not None:
        low, high = at_least(low), at_most(high)
    return Lines(low_slope, low, high_slope, high, error)


def _error(activation: Activation, slope: Tensor, given: Interval, rounding: Rounding | None) -> Tensor | None:
    """A bound of the rounding error in the offsets, or None if the pass is not rigorous."""
    if rounding is None:
        return None
    return rounding.library(activation.sizes(slope, given))


RELAXATIONS: dict[str, Relaxation] = {"parallel": parallel, "adaptive": adaptive}


SPARSE_SHARE = 1 / 8  # of a layer's units: if more have an offset, products over all units cost less


class CentredOffsets(NamedTuple):
    """The mean of the offsets of both lines, and half of their difference."""

    middle: Tensor
    half_gap: Tensor


class LineOffsets(NamedTuple):
    """The offsets of an activation's lines: of all units and, if few are not 0, of those alone."""

    all: CentredOffsets
    units: Tensor | None  # [batch, count]: units with an offset, and some others for samples that have fewer
    nonzero: CentredOffsets | None  # [batch, count] each

    @staticmethod
    def of(lines: Lines) -> LineOffsets:
        """The offsets of these lines; computed once for all rows that pass the activation."""
        whole = CentredOffsets(lines.middle, lines.half_gap)
        units = few_units(((lines.lower_offset != 0) | (lines.upper_offset != 0)).flatten(1))
        if units is None:
            return LineOffsets(whole, None, None)
        return LineOffsets(whole, units, CentredOffsets(*(part.flatten(1).gather(1, units) for part in whole)))

    def beside(self, form: Form) -> tuple[Form, CentredOffsets]:
        """The rows and the offsets to multiply: of few units if the form can pick their coefficients, else of all."""
        picked = None if self.units is None else form.at(self.units)
        return (form, self.all) if picked is None or self.nonzero is None else (picked, self.nonzero)


def few_units(nonzero: Tensor) -> Tensor | None:
    """The marked units of each sample, filled up with others to the same number, `[batch, count]`; None if many."""
    most = SPARSE_SHARE * nonzero.shape[1]
    if nonzero.shape[0] == 1:
        units = nonzero.squeeze(0).nonzero().T
        return units if units.shape[1] <= most else None
    count = int(nonzero.sum(1).max())
    return nonzero.byte().topk(count, dim=1).indices if count <= most else None
