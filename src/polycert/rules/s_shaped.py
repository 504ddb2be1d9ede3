"""The S-shaped activations: tanh, sigmoid, arctan and the error function."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polycert.forms import Shape
from polycert.rules.activation import Activation, nearest_at
from polycert.rules.op import OnnxFile
from polycert.rules.registry import Call, rule
from polycert.sets.interval import Interval, Rounding

SEARCH_STEPS = 4  # these find the tangent to all digits of float32, and to 8 or more in float64


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
        return self.outer * self.inner * self._secant(self.inner * lower, self.inner * upper)

    def _secant(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Slope of the line through two points of the core, from 0 to 1 also where values are rounded."""
        wide = upper - lower > 1e-3
        width = torch.where(wide, upper - lower, torch.ones_like(upper))
        slope = (self.core(upper) - self.core(lower)) / width
        # Close ends cancel: the derivative in the middle is as good there, and `offset_range` is sound for any slope.
        return torch.where(wide, slope, self.core_slope((lower + upper) / 2)).clamp(0, 1)

    def adaptive(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Of all sound lines those that are nearest at the points `nearest_at`."""
        with torch.no_grad():
            gain = self.outer * self.inner
            lower, upper = self.inner * lower, self.inner * upper
            below, above = nearest_at(lower, upper, 1.0)
            # The core is odd: its lower line is the upper line of the mirrored interval, turned around.
            return gain * self._slope_above(-upper, -lower, -below), gain * self._slope_above(lower, upper, above)

    def _slope_above(self, lower: Tensor, upper: Tensor, at: Tensor) -> Tensor:
        """Slope of the line above the core that is nearest to it at a point `at` of the interval.

        It touches the least concave function above the core there. This function is straight from the lower end to the
        point where the tangent through this end touches, and the core itself beyond. It is the chord if that point is
        right of the interval, and the core everywhere if the lower end is right of 0. Dinkelbach's method finds the
        tangent, as the secant through the lower end is steepest where it touches: each step takes the secant to the
        point that has the slope so far.
        """
        slope = self._secant(lower, upper)
        for _ in range(SEARCH_STEPS):
            slope = self._secant(lower, torch.minimum(self.tangent(slope), upper))
        # Right of 0 the derivative falls: it is below the slope of the tangent if that touches left of the point.
        flatter = torch.minimum(slope, self.core_slope(at.clamp(min=0)))
        return torch.where(lower >= 0, self.core_slope(at), flatter)

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

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """By its constants."""
        constants = (self.shift, self.outer, self.inner)
        return file.op({(0.0, 1.0, 1.0): "Tanh", (0.5, 0.5, 0.5): "Sigmoid"}[constants], *inputs)


class Erf(SShaped):
    """The error function, whose derivative at 0 is `2 / sqrt(pi)`: that goes into `outer`."""

    onnx = "Erf"

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

    onnx = "Atan"

    def core(self, z: Tensor) -> Tensor:
        """`arctan z`."""
        return z.arctan()

    def core_slope(self, z: Tensor) -> Tensor:
        """`1 / (1 + z^2)`."""
        return 1 / (1 + z * z)

    def tangent(self, slope: Tensor) -> Tensor:
        """`t^2 = (1 - slope) / slope`."""
        return ((1 - slope) / slope).sqrt()


@rule(
    "aten.sigmoid.default",
    "aten.sigmoid_.default",
    family="S-shaped",
    onnx=("Sigmoid",),
    layers={"sigmoid": nn.Sigmoid},
)
def _sigmoid(call: Call) -> Tanh:
    return Tanh(call.out_shape, shift=0.5, outer=0.5, inner=0.5)


@rule("aten.tanh.default", "aten.tanh_.default", family="S-shaped", onnx=("Tanh",), layers={"tanh": nn.Tanh})
def _tanh(call: Call) -> Tanh:
    return Tanh(call.out_shape)


@rule("aten.arctan.default", "aten.atan.default", family="S-shaped", onnx=("Atan",))
def _arctan(call: Call) -> Arctan:
    return Arctan(call.out_shape)


@rule("aten.erf.default", family="S-shaped", onnx=("Erf",))
def _erf(call: Call) -> Erf:
    return Erf(call.out_shape, outer=2 / math.sqrt(math.pi))
