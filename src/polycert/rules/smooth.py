"""Smooth activations beyond the S-shaped ones: convex functions, and the bumps of GELU and SiLU.

All of them know their derivative. `extent` looks at the ends of the interval and at the points where the slope touches;
what such a point may have missed, the derivative there times how far the true one can be, is taken off.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from polycert.forms import Shape
from polycert.rules.op import Activation, Call, rule
from polycert.sets.interval import Interval
from polycert.sets.rounding import Rounding

SEARCH_STEPS = 40
CLOSE = 1e-3  # ends closer than this: a difference quotient cancels, the derivative in the middle is as good


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
        """Of the chord and the tangents at the ends and in the middle, those whose lines are nearest in the middle."""
        with torch.no_grad():
            middle = (lower + upper) / 2
            slopes = torch.stack([self.chord(lower, upper), *(self.slope(z) for z in (lower, middle, upper))])
            low, high = self.offset_range(slopes, lower.expand_as(slopes), upper.expand_as(slopes))
            below = (slopes * middle + low).argmax(0, keepdim=True)
            above = (slopes * middle + high).argmin(0, keepdim=True)
            return slopes.gather(0, below)[0], slopes.gather(0, above)[0]

    def peak(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The extent without a slope."""
        return self.offset_range(torch.zeros_like(lower), lower, upper).magnitude

    def sizes(self, slope: Tensor, given: Interval) -> Tensor:
        """Three times as large: the derivative at a touching point, times the width, is rounded as well."""
        return 3 * super().sizes(slope, given)


class Convex(SmoothActivation):
    """A convex function whose derivative can be inverted."""

    @abstractmethod
    def touching(self, slope: Tensor) -> Tensor:
        """The point with `f'(z) = slope`, or on the side where it would be; any other point only loosens."""

    def offset_range(self, slope: Tensor, lower: Tensor, upper: Tensor) -> Interval:
        """Largest at an end, least where the slope touches or at an end."""
        first, second = self.value(lower) - slope * lower, self.value(upper) - slope * upper
        with torch.no_grad():
            found = self.touching(slope)
            inside = (found > lower) & (found < upper)
            t = torch.where(inside, found, torch.where(found >= upper, upper, lower))
            # The tangent at any t lies below a convex function: it falls by no more than this on the way to an end.
            rise = self.slope(t) - slope
            missed = torch.where(rise > 0, rise * (t - lower), -rise * (upper - t))
        least = torch.where(inside, self.value(t) - slope * t, torch.where(found >= upper, second, first))
        return Interval(least - missed, torch.maximum(first, second))


class Exp(Convex):
    """`exp(z)`."""

    def value(self, z: Tensor) -> Tensor:
        """The exponential."""
        return z.exp()

    def slope(self, z: Tensor) -> Tensor:
        """Its own derivative."""
        return z.exp()

    def touching(self, slope: Tensor) -> Tensor:
        """The logarithm."""
        return slope.clamp(min=0).log()


class Softplus(Convex):
    """`log(1 + exp(z))`.

    torch gives z itself right of the threshold 20, which is less by up to `log(1 + exp(-20)) = 2.0612e-9`. There the
    lower end of every extent is lowered by more than that, so that it holds for both functions.
    """

    threshold = 20.0
    missing = 2.1e-9

    def offset_range(self, slope: Tensor, lower: Tensor, upper: Tensor) -> Interval:
        """As of any convex function, and lower where torch's own may be lower."""
        low, high = super().offset_range(slope, lower, upper)
        return Interval(low - self.missing * (upper > self.threshold).to(low), high)

    def value(self, z: Tensor) -> Tensor:
        """Stable for all z."""
        return z.clamp(min=0) + (-z.abs()).exp().log1p()

    def slope(self, z: Tensor) -> Tensor:
        """The sigmoid."""
        return z.sigmoid()

    def touching(self, slope: Tensor) -> Tensor:
        """The logit."""
        return slope.clamp(0, 1).logit()


class Square(Convex):
    """`z^2`."""

    def value(self, z: Tensor) -> Tensor:
        """The square."""
        return z * z

    def slope(self, z: Tensor) -> Tensor:
        """`2 z`."""
        return 2 * z

    def touching(self, slope: Tensor) -> Tensor:
        """Half the slope."""
        return slope / 2

    def chord(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Through both ends, without a quotient."""
        return lower + upper


class Elu(Convex):
    """`z` right of 0, `exp(z) - 1` left of it."""

    def value(self, z: Tensor) -> Tensor:
        """Exact on the right."""
        return torch.where(z > 0, z, z.clamp(max=0).expm1())

    def slope(self, z: Tensor) -> Tensor:
        """At most 1."""
        return z.clamp(max=0).exp()

    def touching(self, slope: Tensor) -> Tensor:
        """The logarithm; slope 1 touches everywhere right of 0."""
        return slope.clamp(0, 1).log()


class Reciprocal(Convex):
    """`1 / max(z, 1)`: the reciprocal of what is known to be at least 1, whatever a bound of it says."""

    def value(self, z: Tensor) -> Tensor:
        """Never above 1."""
        return 1 / z.clamp(min=1)

    def slope(self, z: Tensor) -> Tensor:
        """`-1 / z^2`."""
        return -1 / z.clamp(min=1) ** 2

    def touching(self, slope: Tensor) -> Tensor:
        """`1 / sqrt(-slope)`, endless where the slope is not negative."""
        return (-slope).clamp(min=0).abs().rsqrt()  # of 0, not of -0, whose root is on the wrong side

    def chord(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Over the part where values can lie."""
        return super().chord(lower.clamp(min=1), upper.clamp(min=1))

    def adaptive(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Over the part where values can lie."""
        return super().adaptive(lower.clamp(min=1), upper.clamp(min=1))

    def offset_range(self, slope: Tensor, lower: Tensor, upper: Tensor) -> Interval:
        """Over the part where values can lie."""
        return super().offset_range(slope, lower.clamp(min=1), upper.clamp(min=1))


class Bump(SmoothActivation):
    """Convex in `[-bend, bend]`, concave beyond, and straight further out than `reach` to all digits."""

    bend: float
    reach: float

    def offset_range(self, slope: Tensor, lower: Tensor, upper: Tensor) -> Interval:
        """At the ends, at a touching point of the convex part, or at one of each concave part."""
        first, second = self.value(lower) - slope * lower, self.value(upper) - slope * upper
        low, high = torch.minimum(first, second), torch.maximum(first, second)
        far = max(self.reach, self.bend)
        for start, end, sign in ((-far, -self.bend, -1), (-self.bend, self.bend, 1), (self.bend, far, -1)):
            t, missed, crosses = self._touching(slope, lower.clamp(start, end), upper.clamp(start, end))
            there = self.value(t) - slope * t
            if sign > 0:
                low = torch.where(crosses, torch.minimum(low, there - missed), low)
            else:
                high = torch.where(crosses, torch.maximum(high, there + missed), high)
        return Interval(low, high)

    @torch.no_grad()
    def _touching(self, slope: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where the derivative, monotone between the ends, meets the slope: the point, its error, whether it does."""
        start, end = self.slope(left) - slope, self.slope(right) - slope
        crosses = (start * end <= 0) & (left < right)
        rising = end > start
        for _ in range(SEARCH_STEPS):
            middle = (left + right) / 2
            before = ((self.slope(middle) - slope) < 0) == rising
            left, right = torch.where(before, middle, left), torch.where(before, right, middle)
        t = (left + right) / 2
        return t, (self.slope(t) - slope).abs() * (right - left), crosses

    def peak(self, lower: Tensor, upper: Tensor) -> Tensor:
        """At most the argument; that large also while it is computed."""
        return torch.maximum(lower.abs(), upper.abs())


class Gelu(Bump):
    """`z Phi(z)` with the normal distribution function."""

    bend = math.sqrt(2)
    reach = 12.0

    def value(self, z: Tensor) -> Tensor:
        """By the complementary error function, which does not cancel on the left."""
        return 0.5 * z * torch.erfc(-z / math.sqrt(2))

    def slope(self, z: Tensor) -> Tensor:
        """`Phi(z) + z phi(z)`."""
        return 0.5 * torch.erfc(-z / math.sqrt(2)) + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)


class TanhGelu(Bump):
    """The approximation `z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))) / 2`."""

    bend = 1.418504008791
    reach = 12.0

    def value(self, z: Tensor) -> Tensor:
        """As a sigmoid, which does not cancel on the left."""
        return z * (2 * self._inner(z)).sigmoid()

    def _inner(self, z: Tensor) -> Tensor:
        return math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)

    def slope(self, z: Tensor) -> Tensor:
        """Product and chain rule; the gate's complement by itself, as a difference would cancel."""
        twice = 2 * self._inner(z)
        gate = twice.sigmoid()
        inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * z * z)
        return gate + 2 * z * gate * (-twice).sigmoid() * inner


class Silu(Bump):
    """`z sigmoid(z)`."""

    bend = 2.399357280520
    reach = 45.0

    def value(self, z: Tensor) -> Tensor:
        """The product."""
        return z * z.sigmoid()

    def slope(self, z: Tensor) -> Tensor:
        """Product rule; the gate's complement by itself, as a difference would cancel."""
        gate = z.sigmoid()
        return gate * (1 + z * (-z).sigmoid())


@rule("aten.exp.default", "aten.exp_.default")
def _exp(call: Call) -> Exp:
    return Exp(call.out_shape)


@rule("aten.softplus.default")
def _softplus(call: Call) -> Softplus:
    if call.get(1, "beta", 1) != 1:
        raise ValueError("softplus is supported with beta=1 only")
    return Softplus(call.out_shape)


@rule("aten.elu.default", "aten.elu_.default")
def _elu(call: Call) -> Elu:
    if any(call.get(k, name, 1) != 1 for k, name in ((1, "alpha"), (2, "scale"), (3, "input_scale"))):
        raise ValueError("elu is supported with alpha=1 only")
    return Elu(call.out_shape)


@rule("aten.gelu.default", "aten.gelu_.default")
def _gelu(call: Call) -> Bump:
    return TanhGelu(call.out_shape) if call.get(1, "approximate", "none") == "tanh" else Gelu(call.out_shape)


@rule("aten.silu.default", "aten.silu_.default")
def _silu(call: Call) -> Silu:
    return Silu(call.out_shape)


@rule("aten.square.default", "aten.pow.Tensor_Scalar")
def _square(call: Call) -> Square:
    if call.get(1, "exponent", 2) != 2:
        raise ValueError("only the power 2 is supported")
    return Square(call.out_shape)
