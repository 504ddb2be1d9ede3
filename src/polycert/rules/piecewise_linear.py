"""Piecewise linear activations: those with a kink at 0, and others by their pieces."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polycert.forms import Shape
from polycert.rules.activation import Activation, Pieces, SmoothActivation
from polycert.rules.examples import activated
from polycert.rules.op import OnnxFile
from polycert.rules.registry import Call, rule
from polycert.runtime.execution import apply
from polycert.sets.interval import Interval, Rounding


class PiecewiseLinear(SmoothActivation):
    """A continuous function of linear pieces. A new one gives `pieces`, and all else follows from them."""

    @property
    @abstractmethod
    def pieces(self) -> Pieces:
        """The pieces, from left to right."""

    @property
    def _offsets(self) -> list[float]:
        """The value at 0 of each piece's line."""
        found, pieces = [self.pieces.value], self.pieces
        for end, (before, after) in zip(pieces.ends, pairwise(pieces.slopes), strict=True):
            found.append(found[-1] + (before - after) * end)
        return found

    def _lines(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slope and the value at 0 of the piece on which each entry lies."""
        pieces, offsets = self.pieces, self._offsets
        slope, offset = torch.full_like(z, pieces.slopes[0]), torch.full_like(z, offsets[0])
        for end, steep, height in zip(pieces.ends, pieces.slopes[1:], offsets[1:], strict=True):
            slope, offset = torch.where(z >= end, steep, slope), torch.where(z >= end, height, offset)
        return slope, offset

    def value(self, z: Tensor) -> Tensor:
        """Return the value on the entry's piece."""
        slope, offset = self._lines(z)
        return slope * z + offset

    def slope(self, z: Tensor) -> Tensor:
        """Return the slope of the entry's piece; where two pieces meet, that of the right one."""
        return self._lines(z)[0]

    def stable(self, given: Interval) -> Tensor | None:
        """Return whether no end of a piece lies inside."""
        return torch.stack([(given.lower >= end) | (given.upper <= end) for end in self.pieces.ends]).all(0)

    def chord(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Return the slope of the line through both ends; if there is one piece only, exactly its slope."""
        stable = self.stable(Interval(lower, upper))
        assert stable is not None
        return torch.where(stable, self.slope((lower + upper) / 2), super().chord(lower, upper))

    def offset_range(self, slope: Tensor, lower: Tensor, upper: Tensor) -> Interval:
        """Return the range of `f(z) - slope z`, which is extreme at an end of the interval or of a piece."""
        found = []
        for z in (lower, upper, *(torch.full_like(lower, end).clamp(lower, upper) for end in self.pieces.ends)):
            steep, offset = self._lines(z)
            found.append((steep - slope) * z + offset)
        return Interval(torch.stack(found).amin(0), torch.stack(found).amax(0))

    def sizes(self, slope: Tensor, given: Interval) -> Tensor:
        """Return the sizes, plus those of the pieces' lines, which may be larger than their sum."""
        steepest, highest = (max(map(abs, numbers)) for numbers in (self.pieces.slopes, self._offsets))
        return super().sizes(slope, given) + 3 * (steepest * given.magnitude + highest)


@dataclass(frozen=True, eq=False)
class LeakyRelu(Activation):
    """`max(z, 0) + leak * min(z, 0)`. The leak may be negative or above 1."""

    out_shape: Shape
    leak: float = 0.0

    @property
    def pieces(self) -> Pieces:
        """Two pieces that meet at 0."""
        return Pieces(0.0, (self.leak, 1.0), (0.0,))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the value."""
        return torch.where(inputs[0] >= 0, inputs[0], self.leak * inputs[0])

    def interval(self, *inputs: Interval, rounding: Rounding | None = None) -> Interval:
        """Return the least and the greatest value, which lie at the ends or, for a negative leak, at 0."""
        lower, upper = inputs[0]
        low, high = self.forward(lower), self.forward(upper)
        bottom, top = torch.minimum(low, high), torch.maximum(low, high)
        if self.leak < 0:
            bottom = torch.where((lower < 0) & (upper > 0), torch.zeros_like(bottom), bottom)
        if rounding is None:
            return Interval(bottom, top)
        lost = torch.finfo(lower.dtype).tiny * inputs[0].magnitude  # what underflow may take from a tiny leak
        error = rounding.library(torch.maximum(low.abs(), high.abs()) + lost)
        return Interval(bottom - error, top + error)

    def chord(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Return 1 right of the kink, the leak left of it, and else the slope of the line through both ends.

        See Appendix A-A.
        """
        unstable = (lower < 0) & (upper > 0)
        width = torch.where(unstable, upper - lower, torch.ones_like(upper))
        middle = torch.where(unstable, (upper - self.leak * lower) / width, torch.full_like(upper, self.leak))
        return torch.where(lower >= 0, torch.ones_like(upper), middle)

    def adaptive(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slope of the larger half on the convex side of the kink, and the chord's on the other side."""
        chord = self.chord(lower, upper)
        steeper = torch.where(upper >= -lower, torch.ones_like(upper), torch.full_like(upper, self.leak))
        free = torch.where((lower < 0) & (upper > 0), steeper, chord)
        return (free, chord) if self.leak <= 1 else (chord, free)

    def offset_range(self, slope: Tensor, lower: Tensor, upper: Tensor) -> Interval:
        """Return the range of `f(z) - slope z`, which is extreme at the ends or at the kink, where it is 0."""
        first = self.forward(lower) - slope * lower
        second = self.forward(upper) - slope * upper
        low, high = torch.minimum(first, second), torch.maximum(first, second)
        unstable = (lower < 0) & (upper > 0)
        return Interval(torch.where(unstable, low.clamp(max=0), low), torch.where(unstable, high.clamp(min=0), high))

    def stable(self, given: Interval) -> Tensor | None:
        """Return whether the interval lies on one side of the kink."""
        return (given.lower >= 0) | (given.upper <= 0)

    def peak(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Return the largest size of the value, which lies at one of the ends."""
        return torch.maximum(self.forward(lower).abs(), self.forward(upper).abs())

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """Write the ONNX op with its leak."""
        return file.op("LeakyRelu", *inputs, alpha=self.leak)


@dataclass(frozen=True, eq=False)
class Relu(LeakyRelu):
    """`max(z, 0)`, the activation of most networks, in fewer operations."""

    leak: float = field(default=0.0, init=False)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the value."""
        return inputs[0].relu()

    def interval(self, *inputs: Interval, rounding: Rounding | None = None) -> Interval:
        """Return the values at the ends: the function increases, and nothing is rounded."""
        return Interval(*(end.relu() for end in inputs[0]))

    def chord(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Return the slope of the line through both ends."""
        return self.parallel(lower, upper)[0]

    def parallel(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Interval]:
        """Return the chord's slope and the range of `f(z) - slope z`: lowest at the kink, highest at both ends."""
        slope, offset = apply(_ReluChord, lower, upper)
        return slope, Interval(torch.zeros_like(offset), offset)

    def peak(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Return the value at the upper end."""
        return upper.relu()

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """Write the ONNX op."""
        return file.op("Relu", *inputs)


class _ReluChord(torch.autograd.Function):
    """The slope of the line through both ends and its value at 0: 1 and 0 right of the kink, 0 and 0 left of it."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        below, above = lower.clamp(max=0), upper.clamp(min=0)
        width = above - below
        width += width == 0
        slope = above / width
        # Both differ by rounding only, unless the width overflows or the slope underflows. Then the larger one holds.
        offset = torch.maximum((slope * below).neg_(), (1 - slope) * above)
        ctx.save_for_backward(slope, offset, width)
        return slope, offset

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_slope: Tensor, by_offset: Tensor) -> tuple[Tensor, Tensor]:
        slope, offset, width = ctx.saved_tensors
        stable = offset == 0
        turn = (by_slope / width).masked_fill_(stable, 0)
        rise = by_offset.masked_fill(stable, 0)
        rest = 1 - slope
        return slope * (turn - slope * rise), rest * (turn + rest * rise)


@rule("aten.relu.default", "aten.relu_.default", family="piecewise linear", onnx=("Relu",), layers={"relu": nn.ReLU})
def _relu(call: Call) -> Relu:
    return Relu(call.out_shape)


@rule(
    family="piecewise linear",
    onnx=("LeakyRelu", "PRelu"),
    layers={"leaky_relu": nn.LeakyReLU},
    examples=(
        *(activated("aten.leaky_relu.default", leak, name=f"leaky-{leak}") for leak in (0.1, -0.3, 1.7)),
        activated("aten.leaky_relu_.default", 0.3, slow=True),
    ),
)
def _leaky_relu(call: Call) -> LeakyRelu:
    return LeakyRelu(call.out_shape, leak=float(call.get(1, "negative_slope", 0.01)))


@rule("aten.abs.default", family="piecewise linear", onnx=("Abs",))
def _abs(call: Call) -> LeakyRelu:
    return LeakyRelu(call.out_shape, leak=-1.0)
