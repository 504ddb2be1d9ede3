"""Activations that are convex around 0 and concave further out: GELU and SiLU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polycert.rules.activation import SmoothActivation, nearest_at
from polycert.rules.examples import Example, activated, mlp
from polycert.rules.op import OnnxFile
from polycert.rules.registry import Call, rule
from polycert.sets.interval import Interval

SEARCH_STEPS = 40
TANGENT_STEPS = 30  # these only choose a slope


class Bump(SmoothActivation):
    """Convex in `[-bend, bend]`, concave beyond, and straight further out than `reach` to all digits.

    It falls left of `-bend`. `f(z) - z / 2` is even.
    """

    bend: float
    reach: float

    def adaptive(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Of all sound lines those that are nearest at the points `nearest_at`.

        The lower one touches the greatest convex function below there. That is the function itself between two points
        of its convex part. Left and right of them it is straight: the tangents that meet the ends of the interval.
        The upper one touches the least concave function above. That is the function itself left of a point of the left
        concave part, or right of a point of the right one, and straight from there to the other end. No line touches
        both concave parts, as the derivative is below 0 in the left one and above 1 in the right one.
        """
        with torch.no_grad():
            chord = self.chord(lower, upper)
            below, above = nearest_at(lower, upper, chord.sign())
            far = max(self.reach, self.bend)
            left, convex, right = (
                Interval(lower.clamp(*part), upper.clamp(*part))
                for part in ((-far, -self.bend), (-self.bend, self.bend), (self.bend, far))
            )
            first, last, left_last, right_first = self._tangents_through(
                torch.stack([lower, upper, upper, lower]),
                torch.stack([convex.lower, convex.upper, left.upper, right.lower]),
                torch.stack([convex.upper, convex.lower, left.lower, right.upper]),
            )
            low_at = torch.minimum(torch.maximum(below, first), last)
            in_left, in_right = left_last > left.lower, right_first < right.upper
            high_at = torch.where(in_left, torch.minimum(above, left_last), torch.maximum(above, right_first))
            low = torch.where(first < last, self.slope(low_at), chord)
            return low, torch.where(in_left | in_right, self.slope(high_at), chord)

    def _tangents_through(self, end: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """Points of the convex part (the first two rows) and of a concave one whose tangents meet an `end`, `[4, ...]`.

        The part lies between `near`, the side of the end of the interval, and `far`. Tangents between the point and
        `far` pass the end on the safe side: below the function in the convex part, above it in a concave one. The
        point is `far` where none does.
        """
        turn = end.new_tensor([1, 1, -1, -1]).reshape(-1, *(1,) * (end.dim() - 1))
        value = self.value(end)
        for _ in range(TANGENT_STEPS):
            middle = (near + far) / 2
            safe = turn * (value - self.value(middle) - self.slope(middle) * (end - middle)) >= 0
            near, far = torch.where(safe, near, middle), torch.where(safe, middle, far)
        return far

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

    onnx = "Gelu"
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

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """The approximation."""
        return file.op("Gelu", *inputs, approximate="tanh")


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

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """The product."""
        return file.op("Mul", inputs[0], file.op("Sigmoid", *inputs))


@rule(
    family="bump",
    onnx=("Gelu",),
    examples=(
        activated("aten.gelu.default"),
        activated("aten.gelu_.default", slow=True),
        Example("gelu-tanh", (5,), lambda: mlp(nn.GELU("tanh"))),
    ),
)
def _gelu(call: Call) -> Bump:
    return TanhGelu(call.out_shape) if call.get(1, "approximate", "none") == "tanh" else Gelu(call.out_shape)


@rule("aten.silu.default", "aten.silu_.default", family="bump")
def _silu(call: Call) -> Silu:
    return Silu(call.out_shape)
