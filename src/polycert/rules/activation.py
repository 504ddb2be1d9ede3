"""Activations: piecewise linear ones with a kink at 0, and the S-shaped family (tanh, sigmoid, arctan)."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from polycert.forms import Shape
from polycert.rules.op import Activation, Call, Pieces, rule
from polycert.runtime.autograd import apply
from polycert.sets.interval import Interval
from polycert.sets.rounding import Rounding

SEARCH_STEPS = 30


@dataclass(frozen=True, eq=False)
class LeakyRelu(Activation):
    """`max(z, 0) + leak * min(z, 0)`. The leak may be negative or above 1."""

    out_shape: Shape
    leak: float = 0.0

    @property
    def pieces(self) -> Pieces:
        """One bend, at 0."""
        return Pieces(0.0, (self.leak, 1.0), (0.0,))

    def forward(self, *inputs: Tensor) -> Tensor:
        """The value."""
        return torch.where(inputs[0] >= 0, inputs[0], self.leak * inputs[0])

    def interval(self, *inputs: Interval, rounding: Rounding | None = None) -> Interval:
        """Extremes lie at the ends or, for a negative leak, at 0."""
        lower, upper = inputs[0]
        low, high = self.forward(lower), self.forward(upper)
        bottom, top = torch.minimum(low, high), torch.maximum(low, high)
        if self.leak < 0:
            bottom = torch.where((lower < 0) & (upper > 0), torch.zeros_like(bottom), bottom)
        if rounding is None:
            return Interval(bottom, top)
        lost = torch.finfo(lower.dtype).tiny * inputs[0].magnitude  # if the leak is too small for the type
        error = rounding.library(torch.maximum(low.abs(), high.abs()) + lost)
        return Interval(bottom - error, top + error)

    def chord(self, lower: Tensor, upper: Tensor) -> Tensor:
        """1 right of the kink, the leak left of it, in between through both ends (Appendix A-A)."""
        unstable = (lower < 0) & (upper > 0)
        width = torch.where(unstable, upper - lower, torch.ones_like(upper))
        middle = torch.where(unstable, (upper - self.leak * lower) / width, torch.full_like(upper, self.leak))
        return torch.where(lower >= 0, torch.ones_like(upper), middle)

    def adaptive(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """On the convex side of the kink the slope of the larger half, on the other the chord."""
        chord = self.chord(lower, upper)
        steeper = torch.where(upper >= -lower, torch.ones_like(upper), torch.full_like(upper, self.leak))
        free = torch.where((lower < 0) & (upper > 0), steeper, chord)
        return (free, chord) if self.leak <= 1 else (chord, free)

    def offset_range(self, slope: Tensor, lower: Tensor, upper: Tensor) -> Interval:
        """`f(z) - slope z` is extreme at the ends or at the kink, where it is 0."""
        first = self.forward(lower) - slope * lower
        second = self.forward(upper) - slope * upper
        low, high = torch.minimum(first, second), torch.maximum(first, second)
        unstable = (lower < 0) & (upper > 0)
        return Interval(torch.where(unstable, low.clamp(max=0), low), torch.where(unstable, high.clamp(min=0), high))

    def stable(self, given: Interval) -> Tensor | None:
        """On one side of the kink."""
        return (given.lower >= 0) | (given.upper <= 0)

    def peak(self, lower: Tensor, upper: Tensor) -> Tensor:
        """At one of the ends."""
        return torch.maximum(self.forward(lower).abs(), self.forward(upper).abs())


@dataclass(frozen=True, eq=False)
class Relu(LeakyRelu):
    """`max(z, 0)`: most networks' activation, in fewer operations."""

    leak: float = field(default=0.0, init=False)

    def forward(self, *inputs: Tensor) -> Tensor:
        """The value."""
        return inputs[0].relu()

    def interval(self, *inputs: Interval, rounding: Rounding | None = None) -> Interval:
        """Increasing, and exact."""
        return Interval(*(end.relu() for end in inputs[0]))

    def chord(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Through both ends."""
        return self.parallel(lower, upper)[0]

    def parallel(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Interval]:
        """`f(z) - slope z` is 0 at the kink, the lowest, and the same at both ends."""
        slope, offset = apply(_ReluChord, lower, upper)
        return slope, Interval(torch.zeros_like(offset), offset)

    def peak(self, lower: Tensor, upper: Tensor) -> Tensor:
        """At the upper end."""
        return upper.relu()


class _ReluChord(torch.autograd.Function):
    """Slope and height at 0 of the line through both ends: 1 and 0 right of the kink, 0 and 0 left of it."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        below, above = lower.clamp(max=0), upper.clamp(min=0)
        width = above - below
        width += width == 0
        slope = above / width
        # The same but for rounding, unless the width overflows or the slope underflows: then the larger one holds.
        offset = torch.maximum((slope * below).neg_(), (1 - slope) * above)
        ctx.save_for_backward(slope, offset, width)
        return slope, offset

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_slope: Tensor, by_offset: Tensor) -> tuple[Tensor, Tensor]:
        slope, offset, width = ctx.saved_tensors
        straight = offset == 0
        turn = (by_slope / width).masked_fill_(straight, 0)
        rise = by_offset.masked_fill(straight, 0)
        rest = 1 - slope
        return slope * (turn - slope * rise), rest * (turn + rest * rise)


@dataclass(frozen=True, eq=False)
class SShaped(Activation):
    """An increasing odd core `s` with `s'(0) = 1`, convex left of 0 and concave right of it, shifted and scaled:
    `f(z) = shift + outer * s(inner * z)`.
    """

    out_shape: Shape
    shift: float = 0.0
    outer: float = 1.0
    inner: float = 1.0

    @abstractmethod
    def core(self, z: Tensor) -> Tensor:
        """`s(z)`."""

    @abstractmethod
    def core_slope(self, z: Tensor) -> Tensor:
        """`s'(z)`."""

    @abstractmethod
    def tangent(self, slope: Tensor) -> Tensor:
        """The point t >= 0 with `s'(t) = slope`, for slopes in (0, 1]; stable at both ends (Table 6)."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """The value."""
        return self.shift + self.outer * self.core(self.inner * inputs[0])

    def interval(self, *inputs: Interval, rounding: Rounding | None = None) -> Interval:
        """Increasing: the ends, and the library's error."""
        lower, upper = self.forward(inputs[0].lower), self.forward(inputs[0].upper)
        if rounding is None:
            return Interval(lower, upper)
        error = rounding.library(torch.maximum(lower.abs(), upper.abs()) + abs(self.shift))
        return Interval(lower - error, upper + error)

    def chord(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Through both ends; the derivative where they meet."""
        gain = self.outer * self.inner
        lower, upper = self.inner * lower, self.inner * upper
        wide = upper - lower > 1e-3
        width = torch.where(wide, upper - lower, torch.ones_like(upper))
        slope = (self.core(upper) - self.core(lower)) / width
        # Close ends cancel: the derivative in the middle is as good there, and `extent` is sound for any slope.
        return gain * torch.where(wide, slope, self.core_slope((lower + upper) / 2)).clamp(max=1)

    def adaptive(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """CROWN: the tangent in the middle on the curved side; across 0 the tangent through the far end."""
        with torch.no_grad():
            gain = self.outer * self.inner
            chord = self.chord(lower, upper) / gain
            lower, upper = self.inner * lower, self.inner * upper
            middle = self.core_slope((lower + upper) / 2)
            low = torch.where(upper <= 0, middle, torch.where(lower >= 0, chord, self._through(-upper, -lower, chord)))
            high = torch.where(lower >= 0, middle, torch.where(upper <= 0, chord, self._through(lower, upper, chord)))
        return gain * low, gain * high

    def _through(self, far: Tensor, near: Tensor, chord: Tensor) -> Tensor:
        """Slope of the line through the far end (< 0) that touches the core right of 0; the chord if beyond `near`.

        A bisection, for certification only: it has no gradient.
        """
        left, right = torch.zeros_like(near), near.clamp(min=0)
        for _ in range(SEARCH_STEPS):
            middle = (left + right) / 2
            below = self.core_slope(middle) * (middle - far) < self.core(middle) - self.core(far)
            left, right = torch.where(below, left, middle), torch.where(below, middle, right)
        beyond = self.core_slope(near) * (near - far) >= self.core(near) - self.core(far)
        return torch.where(beyond, chord, self.core_slope(right))

    def offset_range(self, slope: Tensor, lower: Tensor, upper: Tensor) -> Interval:
        """Extreme at the ends or at the points `-t`, `t` where the slope touches.

        Touching points carry no gradient of their own: the derivative vanishes there, so `d extent / d slope = -+t`.
        """
        slope = slope / (self.outer * self.inner)
        lower, upper = self.inner * lower, self.inner * upper
        ends = self.core(lower) - slope * lower, self.core(upper) - slope * upper
        low, high = torch.minimum(*ends), torch.maximum(*ends)
        with torch.no_grad():
            tiny = torch.finfo(slope.dtype).tiny
            t = self.tangent(slope.clamp(min=tiny, max=1))
            touches = slope > 0
            # A touching point wrongly taken for inside only loosens; one wrongly left out would be unsound.
            margin = 1e-4 * (1 + t)
        value = self.core(t) - slope * t
        low = torch.where(touches & (-t > lower - margin) & (-t < upper + margin), torch.minimum(low, -value), low)
        high = torch.where(touches & (t > lower - margin) & (t < upper + margin), torch.maximum(high, value), high)
        return Interval(self.shift + self.outer * low, self.shift + self.outer * high)

    def peak(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Increasing: at one of the ends, and never below the shift, which rounding sees."""
        return torch.maximum(self.forward(lower).abs(), self.forward(upper).abs()).clamp(min=abs(self.shift))


class Tanh(SShaped):
    """`tanh`, and with other constants the sigmoid `1/2 + tanh(z/2) / 2`."""

    def core(self, z: Tensor) -> Tensor:
        """`tanh z`."""
        return z.tanh()

    def core_slope(self, z: Tensor) -> Tensor:
        """`1 / cosh(z)^2`, which does not cancel as `1 - tanh^2` does."""
        return 1 / torch.cosh(z.clamp(-40, 40)) ** 2

    def tangent(self, slope: Tensor) -> Tensor:
        """`sinh(t)^2 = (1 - slope) / slope`."""
        return torch.asinh(((1 - slope) / slope).sqrt())


class Erf(SShaped):
    """The error function, whose derivative at 0 is `2 / sqrt(pi)`: that goes into `outer`."""

    def core(self, z: Tensor) -> Tensor:
        """`erf(z) sqrt(pi) / 2`."""
        return torch.erf(z) * (math.sqrt(math.pi) / 2)

    def core_slope(self, z: Tensor) -> Tensor:
        """`exp(-z^2)`."""
        return torch.exp(-z * z)

    def tangent(self, slope: Tensor) -> Tensor:
        """`t^2 = -log(slope)`."""
        return (-slope.log()).clamp(min=0).sqrt()


class Arctan(SShaped):
    """`arctan`."""

    def core(self, z: Tensor) -> Tensor:
        """`arctan z`."""
        return z.arctan()

    def core_slope(self, z: Tensor) -> Tensor:
        """`1 / (1 + z^2)`."""
        return 1 / (1 + z * z)

    def tangent(self, slope: Tensor) -> Tensor:
        """`t^2 = (1 - slope) / slope`."""
        return ((1 - slope) / slope).sqrt()


@rule("aten.relu.default", "aten.relu_.default")
def _relu(call: Call) -> Relu:
    return Relu(call.out_shape)


@rule("aten.leaky_relu.default", "aten.leaky_relu_.default")
def _leaky_relu(call: Call) -> LeakyRelu:
    return LeakyRelu(call.out_shape, leak=float(call.get(1, "negative_slope", 0.01)))


@rule("aten.tanh.default", "aten.tanh_.default")
def _tanh(call: Call) -> Tanh:
    return Tanh(call.out_shape)


@rule("aten.sigmoid.default", "aten.sigmoid_.default")
def _sigmoid(call: Call) -> Tanh:
    return Tanh(call.out_shape, shift=0.5, outer=0.5, inner=0.5)


@rule("aten.atan.default", "aten.arctan.default")
def _arctan(call: Call) -> Arctan:
    return Arctan(call.out_shape)


@rule("aten.erf.default")
def _erf(call: Call) -> Erf:
    return Erf(call.out_shape, outer=2 / math.sqrt(math.pi))


@rule("aten.abs.default")
def _abs(call: Call) -> LeakyRelu:
    return LeakyRelu(call.out_shape, leak=-1.0)
