"""Functions applied to each entry: what a relaxation of any of them is made of."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from polycert.forms import Shape
from polycert.rules.op import Op
from polycert.sets.interval import Interval, Rounding

if TYPE_CHECKING:
    pass


class Lines(NamedTuple):
    """`lower_slope z + lower_offset - error <= f(z) <= upper_slope z + upper_offset + error` on the unit's interval.

    `error` covers rounding and the library's functions; None without rigour.
    """

    lower_slope: Tensor
    lower_offset: Tensor
    upper_slope: Tensor
    upper_offset: Tensor
    error: Tensor | None = None

    @property
    def shared(self) -> bool:
        """Whether both lines have one slope (the paper's relaxation)."""
        return self.lower_slope is self.upper_slope

    def part(self, samples: Tensor) -> Lines:
        """The same for some of the samples; a shared slope stays shared."""
        lower_slope, lower_offset, upper_offset = (
            t[samples] for t in (self.lower_slope, self.lower_offset, self.upper_offset)
        )
        upper_slope = lower_slope if self.shared else self.upper_slope[samples]
        error = None if self.error is None else self.error[samples]
        return Lines(lower_slope, lower_offset, upper_slope, upper_offset, error)

    @property
    def middle(self) -> Tensor:
        """Halfway between the lines at 0."""
        return (self.upper_offset + self.lower_offset) / 2

    @property
    def half_gap(self) -> Tensor:
        """Half their distance at 0; exactly 0 where a piecewise linear unit is straight."""
        return (self.upper_offset - self.lower_offset) / 2

    def reach(self, given: Interval, rounding: Rounding | None) -> Interval:
        """All values between the two lines on the interval."""
        low = torch.minimum(self.lower_slope * given.lower, self.lower_slope * given.upper) + self.lower_offset
        high = torch.maximum(self.upper_slope * given.lower, self.upper_slope * given.upper) + self.upper_offset
        if rounding is None:
            return Interval(low, high)
        slope = torch.maximum(self.lower_slope.abs(), self.upper_slope.abs())
        offset = torch.maximum(self.lower_offset.abs(), self.upper_offset.abs())
        error = 2 * rounding.gamma(2) * (slope * given.magnitude + offset) + rounding.tiny
        error = error if self.error is None else error + self.error
        return Interval(low - error, high + error)


class Pieces(NamedTuple):
    """A piecewise linear function of one variable: the slopes of its pieces, and where one ends."""

    value: float  # at 0, of the line of the first piece
    slopes: tuple[float, ...]
    ends: tuple[float, ...]  # one fewer

    @property
    def slope(self) -> float:
        """Left of all bends."""
        return self.slopes[0]

    @property
    def bends(self) -> tuple[tuple[float, float], ...]:
        """`(at, change)` of each: the function is `value + slope z + sum change max(z - at, 0)`, up to rounding."""
        return tuple((at, b - a) for at, (a, b) in zip(self.ends, pairwise(self.slopes), strict=True))


class Activation(Op):
    """A function applied to each entry. Relaxations choose slopes; `offset_range` makes any slope sound."""

    out_shape: Shape

    @property
    def pieces(self) -> Pieces | None:
        """The function's linear pieces, if it is made of such; the exact certifier branches on them."""
        return None

    @property
    def piecewise_linear(self) -> bool:
        """Whether it is made of linear pieces."""
        return self.pieces is not None

    @abstractmethod
    def chord(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Slope of the line through both ends of the interval; finite gradients when they meet."""

    @abstractmethod
    def adaptive(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """CROWN's slopes of the lower and the upper line."""

    @abstractmethod
    def offset_range(self, slope: Tensor, lower: Tensor, upper: Tensor) -> Interval:
        """Smallest and largest value of `f(z) - slope z` on the interval."""

    def parallel(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Interval]:
        """The chord's slope, and the extent for it."""
        slope = self.chord(lower, upper)
        return slope, self.offset_range(slope, lower, upper)

    @abstractmethod
    def peak(self, lower: Tensor, upper: Tensor) -> Tensor:
        """An upper bound of |f| on the interval."""

    def sizes(self, slope: Tensor, given: Interval) -> Tensor:
        """The sizes of the numbers that `offset_range` adds up: what its rounding is relative to.

        A slope that is a number of the model's code may be too small for the type.
        """
        return self.peak(given.lower, given.upper) + (slope.abs() + torch.finfo(slope.dtype).tiny) * given.magnitude

    def stable(self, given: Interval) -> Tensor | None:
        """Where the function is straight on the interval, so that a tighter interval changes nothing; None: nowhere."""
        return None

    def magnitude(self, *inputs: Tensor) -> Tensor:
        """From the symmetric interval."""
        return self.peak(-inputs[0], inputs[0])


CLOSE = 1e-3  # ends closer than this: a difference quotient cancels, the derivative in the middle is as good

# Measured on random, trained and public networks: 0.1 to 0.2 are about as good, 0 is looser nearly everywhere.
LEAN = 0.15


def nearest_at(lower: Tensor, upper: Tensor, rise: Tensor | float) -> tuple[Tensor, Tensor]:
    """Points of an interval, one for each line of `adaptive`: no sound line is nearer to the function at this point.

    A line that is nearest in the middle has the least area between itself and the function. But a bound uses the lower
    line where small values of the function are bad, so its worst inputs are those with small values. There the line is
    to be nearer. So the area has a weight, which falls along a line from `1 + 3 LEAN` at the end where the function is
    smaller to `1 - 3 LEAN` at the other end. The line of least weighted area is nearest at the centre of this weight.
    For the upper line the weight rises instead. `rise` is 1 where the function is larger at the upper end, -1 where it
    is smaller there, and 0 where both ends are alike.
    """
    near, far = (1 + LEAN * rise) / 2, (1 - LEAN * rise) / 2
    return near * lower + far * upper, far * lower + near * upper


@dataclass(frozen=True, eq=False)
class SmoothActivation(Activation):
    """A function with a derivative."""

    out_shape: Shape

    @abstractmethod
    def value(self, z: Tensor) -> Tensor:
        """`f(z)`."""

    @abstractmethod
    def slope(self, z: Tensor) -> Tensor:
        """`f'(z)`."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """The value."""
        return self.value(inputs[0])

    def interval(self, *inputs: Interval, rounding: Rounding | None = None) -> Interval:
        """The extent without a slope."""
        lower, upper = inputs[0]
        bottom, top = self.offset_range(torch.zeros_like(lower), lower, upper)
        if rounding is None:
            return Interval(bottom, top)
        error = rounding.library(self.sizes(torch.zeros_like(lower), inputs[0]))
        return Interval(bottom - error, top + error)

    def chord(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Through both ends; the derivative where they meet."""
        wide = upper - lower > CLOSE
        width = torch.where(wide, upper - lower, torch.ones_like(upper))
        return torch.where(wide, (self.value(upper) - self.value(lower)) / width, self.slope((lower + upper) / 2))

    def adaptive(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Of the chord and of the tangents at the ends and at the points `nearest_at`, those that are nearest there."""
        with torch.no_grad():
            chord = self.chord(lower, upper)
            below, above = nearest_at(lower, upper, chord.sign())
            slopes = torch.stack([chord, *(self.slope(z) for z in (lower, below, above, upper))])
            low, high = self.offset_range(slopes, lower.expand_as(slopes), upper.expand_as(slopes))
            lowest = (slopes * below + low).argmax(0, keepdim=True)
            highest = (slopes * above + high).argmin(0, keepdim=True)
            return slopes.gather(0, lowest)[0], slopes.gather(0, highest)[0]

    def peak(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The extent without a slope."""
        return self.offset_range(torch.zeros_like(lower), lower, upper).magnitude

    def sizes(self, slope: Tensor, given: Interval) -> Tensor:
        """Three times as large: the derivative at a touching point, times the width, is rounded as well."""
        return 3 * super().sizes(slope, given)
