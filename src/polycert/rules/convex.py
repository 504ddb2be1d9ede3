"""Convex activations: the exponential, softplus, the square, ELU and the reciprocal.

`offset_range` looks at the ends of the interval and at the point where the slope touches; what such a point may have
missed, the derivative there times how far the true one can be, is taken off.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from polycert.rules.activation import SmoothActivation, nearest_at
from polycert.rules.examples import activated
from polycert.rules.op import OnnxFile
from polycert.rules.registry import Call, rule
from polycert.sets.interval import Interval


class Convex(SmoothActivation):
    """A convex function whose derivative can be inverted."""

    @abstractmethod
    def touching(self, slope: Tensor) -> Tensor:
        """The point with `f'(z) = slope`, or on the side where it would be; any other point only loosens."""

    def adaptive(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The tangent where the lower line is to be nearest, and the chord, which is nearest everywhere."""
        with torch.no_grad():
            chord = self.chord(lower, upper)
            return self.slope(nearest_at(lower, upper, chord.sign())[0]), chord

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

    onnx = "Exp"

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

    onnx = "Softplus"
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

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """A product with itself."""
        return file.op("Mul", inputs[0], inputs[0])


class Elu(Convex):
    """`z` right of 0, `exp(z) - 1` left of it."""

    onnx = "Elu"

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


@rule("aten.exp.default", "aten.exp_.default", family="convex", onnx=("Exp",))
def _exp(call: Call) -> Exp:
    return Exp(call.out_shape)


@rule(
    family="convex",
    onnx=("Pow",),
    examples=(activated("aten.square.default"), activated("aten.pow.Tensor_Scalar", 2, slow=True)),
)
def _square(call: Call) -> Square:
    if call.get(1, "exponent", 2) != 2:
        raise ValueError("only the power 2 is supported")
    return Square(call.out_shape)
