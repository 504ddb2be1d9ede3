"""The lines of one activation while their slopes are searched, with one row for each sample.

A row uses one line of each unit: the one on its own side where its coefficient is positive, and the other one where it
is negative. So the bound is the value of an affine function at its worst point, and its derivative by the slope of a
line is `coefficient * (z - t)`. Here z is the value before the activation at the worst point, and t is the point where
the line touches the function: its offset falls by t per unit of slope.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.bounding.backward import LOWER, UPPER
from polycert.bounding.relaxations import few_units
from polycert.forms import Dense, Form
from polycert.rules import Activation, Lines
from polycert.sets.interval import Interval

KEPT, KEPT_SQUARES = 0.7, 0.9  # what Adam's averages of gradients and of their squares keep in each step
SHARES = (1 / 64, *(k / 8 for k in range(1, 8)), 63 / 64)  # of a smooth function's interval, where secants are taken
NUDGE = 1e-4  # of a range: where a line has the slope of a piece it touches at many points, and next to it at one
ROOM = 1e-5  # a range that is narrower than this share of its slopes is due to rounding


class SlopeRanges(NamedTuple):
    """The slopes that are of use for the lower and for the upper line of each unit, `[batch, *shape]`."""

    lower: Interval
    upper: Interval


def useful_slopes(op: Activation, given: Interval, lines: Lines) -> SlopeRanges:
    """The slopes of all lines that no other sound line beats on the whole interval, and those of `lines`.

    Such a lower line touches the greatest convex function below the activation. Its slope lies between the least slope
    of a secant through the lower end and the greatest slope of a secant through the upper end. For upper lines it is
    the other way round. Lines whose range is a single slope do not move.
    """
    from_lower, to_upper = _secants(op, given)
    below = _range(op, given, from_lower.amin(0), to_upper.amax(0), lines.lower_slope)
    above = _range(op, given, to_upper.amin(0), from_lower.amax(0), lines.upper_slope)
    return SlopeRanges(below, above)


def _secants(op: Activation, given: Interval) -> tuple[Tensor, Tensor]:
    """Slopes of secants through the lower and through the upper end, `[points, batch, *shape]` each.

    They are extreme at the ends of the pieces of a piecewise linear function. Of others a few points are taken.
    """
    (lower, upper), chord = given, op.chord(*given)
    if op.pieces is not None:
        points = [torch.full_like(lower, end).clamp(lower, upper) for end in op.pieces.ends]
        least = torch.zeros_like(lower)
    else:
        points = [lower + share * (upper - lower) for share in SHARES]
        least = math.sqrt(torch.finfo(lower.dtype).eps) * given.magnitude.clamp(min=1)  # values closer than this cancel
    first, last = op.forward(lower), op.forward(upper)
    from_lower, to_upper = [chord], [chord]
    for z in points:
        value = op.forward(z)
        from_lower.append(torch.where(z - lower > least, (value - first) / (z - lower), chord))
        to_upper.append(torch.where(upper - z > least, (last - value) / (upper - z), chord))
    return torch.stack(from_lower), torch.stack(to_upper)


def _range(op: Activation, given: Interval, low: Tensor, high: Tensor, slope: Tensor) -> Interval:
    """The slopes from `low` to `high` and the given one; the given one alone for units that are stable."""
    if op.pieces is not None:
        low, high = (end.clamp(min(op.pieces.slopes), max(op.pieces.slopes)) for end in (low, high))
    moves = high - low > ROOM * (low.abs() + high.abs())  # false for slopes that are not finite
    stable = op.stable(given)
    if stable is not None:
        moves &= ~stable
    return Interval(
        torch.where(moves, torch.minimum(low, slope), slope), torch.where(moves, torch.maximum(high, slope), slope)
    )


def _kink(op: Activation, side: int) -> float | None:
    """The point through which all lines of use on this side go, of a function with one kink; None if there is none."""
    if op.pieces is None or len(op.pieces.bends) != 1:
        return None
    ((at, change),) = op.pieces.bends
    return at if (change > 0) == (side == LOWER) else None


class FreeLine:
    """One line of some units, `[rows, units]`, whose slope climbs inside its range."""

    def __init__(
        self, op: Activation, side: int, given: Interval, slope: Tensor, offset: Tensor, span: Interval
    ) -> None:
        self.op, self.side, self.given, self.span = op, side, given, span
        self.slope = self.best = slope
        self.offset = offset
        self.range = span.upper - span.lower
        self.moves = bool((self.range > 0).any())
        self._kink = _kink(op, side)
        self._touching = torch.zeros_like(slope)
        self._mean, self._square = torch.zeros_like(slope), torch.zeros_like(slope)

    def place(self) -> None:
        """Compute the offsets for the slopes as they are, and the points where the lines touch the function."""
        if not self.moves:
            return
        if self._kink is not None:
            self._touching = torch.full_like(self.slope[:1, :1], self._kink)
            self.offset = self.op.forward(self._touching) - self.slope * self._kink
        elif self.op.pieces is None:
            self.offset, self._touching = self._offset_and_touching(self.slope)
        else:
            nudge = NUDGE * self.range
            inside = torch.minimum(torch.maximum(self.slope, self.span.lower + nudge), self.span.upper - nudge)
            self._touching = self._offset_and_touching(inside)[1]
            self.offset = self._end(self.op.offset_range(self.slope, *self.given))

    def _offset_and_touching(self, slope: Tensor) -> tuple[Tensor, Tensor]:
        """The offset for a slope, and minus its derivative, which is the touching point."""
        with torch.enable_grad():
            variable = slope.detach().requires_grad_()
            offset = self._end(self.op.offset_range(variable, *self.given))
            (falls,) = torch.autograd.grad(offset.sum(), variable)
        return offset.detach(), -falls

    def _end(self, given: Interval) -> Tensor:
        """The end of the range of `f(z) - slope z` that is this line's offset."""
        return given.lower if self.side == LOWER else given.upper

    def gradient(self, coef: Tensor, z: Tensor) -> Tensor:
        """The derivative by the slopes of `coef` times the line at `z`, if each offset follows its slope."""
        return coef * (z - self._touching)

    def climb(self, gradient: Tensor, rate: float, step: int) -> None:
        """Take a step of Adam (Kingma & Ba, 2015) in units of the range, then go back to the nearest slope inside."""
        if not self.moves:
            return
        gradient = gradient * self.range
        self._mean.lerp_(gradient, 1 - KEPT)
        self._square.lerp_(gradient * gradient, 1 - KEPT_SQUARES)
        size = (self._square / (1 - KEPT_SQUARES**step)).sqrt_().add_(torch.finfo(gradient.dtype).tiny)
        change = self._mean / size * (rate / (1 - KEPT**step))
        self.slope = torch.minimum(torch.maximum(self.slope + change * self.range, self.span.lower), self.span.upper)

    def keep(self, better: Tensor) -> None:
        """Take the slopes of the marked rows for the best so far."""
        if self.moves:
            self.best = torch.where(better[:, None], self.slope, self.best)


class FreeLines:
    """Both lines of one activation, one row for each of `sample`, the indices of the samples `[rows]`.

    Where only few units have a line that moves or an offset, these alone are stored. The others keep their slopes.
    """

    def __init__(self, op: Activation, given: Interval, lines: Lines, sample: Tensor) -> None:
        ranges = useful_slopes(op, given, lines)
        marked = (lines.lower_offset != 0) | (lines.upper_offset != 0)
        for low, high in ranges:
            marked |= high > low
        units = few_units(marked.flatten(1))

        def rows(values: Tensor) -> Tensor:
            flat = values.flatten(1)
            return (flat if units is None else flat.gather(1, units))[sample]

        def line(side: int, slope: Tensor, offset: Tensor, span: Interval) -> FreeLine:
            return FreeLine(op, side, bounds, rows(slope), rows(offset), Interval(*map(rows, span)))

        bounds = Interval(*map(rows, given))
        self.shape = tuple(given.lower.shape[1:])
        self.units = None if units is None else units[sample]
        self.lower = line(LOWER, lines.lower_slope, lines.lower_offset, ranges.lower)
        self.upper = line(UPPER, lines.upper_slope, lines.upper_offset, ranges.upper)
        self._given_slopes = lines.lower_slope.flatten(1)[sample], lines.upper_slope.flatten(1)[sample]
        self._slope = self._given_slopes[0]  # of the lines in use, for all units
        self._offset = self.lower.offset  # of the lines in use, for the stored units
        self._coef = self._value = torch.zeros_like(self._offset)  # of the last `relaxed` and `forward`

    def _some(self, values: Tensor) -> Tensor:
        """The entries of the stored units, of `[rows, entries]`."""
        return values if self.units is None else values.gather(1, self.units)

    def _all(self, values: Tensor, others: Tensor) -> Tensor:
        """The values of the stored units among the `others` of the rest, `[rows, entries]`."""
        return values if self.units is None else others.scatter(1, self.units, values)

    def relaxed(self, form: Form, side: int) -> tuple[Form, Tensor]:
        """The rows times the slopes of the lines that they use, and their products with the offsets, `[rows, 1]`."""
        coef = form.dense().coef
        self._coef = self._some(coef.flatten(1))
        use_upper = self._coef < 0 if side == LOWER else self._coef > 0
        for line in (self.lower, self.upper):
            line.place()
        self._offset = torch.where(use_upper, self.upper.offset, self.lower.offset)
        slope = torch.where(use_upper, self.upper.slope, self.lower.slope)
        self._slope = self._all(slope, self._slope)
        return Dense(coef * self._slope.view_as(coef)), (self._coef * self._offset).sum(1, keepdim=True)

    def forward(self, z: Tensor) -> Tensor:
        """The values of the lines in use at `z` `[rows, *shape]`, which is kept for the gradient."""
        flat = z.flatten(1)
        self._value = self._some(flat)
        value = flat * self._slope
        value = value + self._offset if self.units is None else value.scatter_add_(1, self.units, self._offset)
        return value.view_as(z)

    def gradients(self, side: int) -> tuple[Tensor, Tensor]:
        """How much tighter the bound on this side becomes per unit of each lower and of each upper line's slope.

        It holds for the rows and the point that `relaxed` and `forward` were given last.
        """
        coef = self._coef if side == LOWER else -self._coef
        upper = coef.clamp(max=0)
        return self.lower.gradient(coef - upper, self._value), self.upper.gradient(upper, self._value)

    def climb(self, side: int, rate: float, step: int) -> None:
        """Move the slopes to where the bound on this side is tighter."""
        for line, gradient in zip((self.lower, self.upper), self.gradients(side), strict=True):
            line.climb(gradient, rate, step)

    def best_slopes(self) -> tuple[Tensor, Tensor]:
        """The best slopes of all lower and of all upper lines, `[rows, *shape]` each."""
        lower, upper = self._given_slopes
        found = self._all(self.lower.best, lower), self._all(self.upper.best, upper)
        return found[0].reshape(-1, *self.shape), found[1].reshape(-1, *self.shape)
