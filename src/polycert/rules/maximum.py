"""Maxima as ReLUs: `max(a, b) = b + relu(a - b)`. So every method knows them, and branch and bound splits them.

The sum of the intervals of `b` and `relu(a - b)` would be far too wide, because both depend on `b`. So the last op of
a maximum also reads `a`, and its interval is `[max of the lower ends, max of the upper ends]`.

Lines of the ReLU with two slopes are turned into planes over `a` and `b`. The upper line gives a plane whose slopes add
up to 1. A line over `a` or `b` alone may be nearer: see `Extremum.planes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.forms import Form, Shape
from polycert.rules.activation import Lines
from polycert.rules.affine import Add, Elementwise
from polycert.rules.examples import activated, through
from polycert.rules.op import Decomposition, OnnxFile
from polycert.rules.piecewise_linear import Relu
from polycert.rules.registry import Call, Value, constant_rows, rule
from polycert.sets.interval import Interval, Rounding

LEAN = 0.15  # measured on random networks: 0 and 0.5 are looser for small sets


class Plane(NamedTuple):
    """The function `one . (first input) + other . (last input) + offset` of an `Extremum`, entry by entry."""

    one: Tensor
    other: Tensor
    offset: Tensor

    @staticmethod
    def between(slope: Tensor, offset: Tensor) -> Plane:
        """Return the plane with this share of `other`, and the rest of `one`."""
        return Plane(1 - slope, slope, offset)

    def part(self, samples: Tensor) -> Plane:
        """Return the plane of some of the samples."""
        return Plane(*(factor[samples] for factor in self))


class Planes(NamedTuple):
    """Planes that enclose an `Extremum`: `lower - error <= value <= upper + error`."""

    lower: Plane
    upper: Plane
    error: Tensor | None  # None without rigour

    def part(self, samples: Tensor) -> Planes:
        """Return the planes of some of the samples."""
        error = None if self.error is None else self.error[samples]
        return Planes(self.lower.part(samples), self.upper.part(samples), error)


@dataclass(frozen=True, eq=False)
class Extremum(Add):
    """The larger or the smaller of two nodes, `one + rise` or `one - rise`; its inputs are `one`, `rise` and `other`.

    `rise` is `relu(other - one)` for the larger and `relu(one - other)` for the smaller. The coefficient of `other` is
    0: it is read for its bounds alone.
    """

    def interval(self, *inputs: Interval, rounding: Rounding | None = None) -> Interval:
        """Return the larger or the smaller ends of both nodes, which is exact and rounds nothing.

        Where backward bounds of the rise are known, the interval of the sum may be tighter, so it counts as well.
        """
        one, rise, other = inputs
        choose = torch.maximum if self.signs[1] > 0 else torch.minimum
        ends = Interval(choose(one.lower, other.lower), choose(one.upper, other.upper))
        return ends.meet(super().interval(one, rise, rounding=rounding))

    def magnitude(self, *inputs: Tensor) -> Tensor:
        """Return the larger size of both nodes: the value is one of theirs."""
        return torch.maximum(inputs[0], inputs[2])

    def pull(self, form: Form) -> Sequence[Form | None]:
        """Return the forms over the two terms of the sum, and none over the other node."""
        return [*super().pull(form), None]

    def planes(self, one: Interval, other: Interval, lines: Lines, rounding: Rounding | None) -> Planes:
        """Return planes that enclose the larger or the smaller node, given bounds of both and the lines of the rise.

        By the rise's lower line the larger node is at least `one + slope (other - one)`, and by its upper line there is
        an upper bound. Let `w` be the node with the larger upper end, and `u` the upper end of the other one. Then
        `max(w, u)` is an upper bound as well. It is convex in `w`, so it lies below the line through its values at both
        ends of `w`. This line is taken where it is nearer at a point between the centre of the box and its upper ends,
        because a bound uses upper planes where large values are bad. The smaller node is the larger one of the negated
        nodes.
        """
        if self.signs[1] < 0:
            one, other = (Interval(-given.upper, -given.lower) for given in (one, other))
        ahead = one.upper >= other.upper
        low, high = torch.where(ahead, one.lower, other.lower), torch.maximum(one.upper, other.upper)
        second = torch.minimum(one.upper, other.upper)
        wide = high > low
        slope = torch.where(wide, (high - second) / torch.where(wide, high - low, 1.0), 1.0).clamp(max=1.0)
        offset = torch.maximum(torch.maximum(low, second) - slope * low, high - slope * high)
        here, there = (given.lower + (1 + LEAN) / 2 * (given.upper - given.lower) for given in (one, other))
        chord = Plane.between(lines.upper_slope, lines.upper_offset)
        above = here + chord.other * (there - here) + chord.offset
        unstable = lines.upper_offset > lines.lower_offset
        taken = unstable & (slope * torch.where(ahead, here, there) + offset <= above)
        line = Plane(torch.where(ahead, slope, 0.0), torch.where(ahead, 0.0, slope), offset)
        far = Plane(*(torch.where(taken, *pair) for pair in zip(line, chord, strict=True)))
        error = lines.error
        if rounding is not None and error is not None:
            added = rounding.library(2 * torch.maximum(one.magnitude, other.magnitude))
            error = torch.where(taken, torch.maximum(error, added), error)
        far = far._replace(offset=self.signs[1] * far.offset)
        return self.renewed(Planes(far, far, error), lines)

    def renewed(self, planes: Planes, lines: Lines) -> Planes:
        """Return the planes with other lower lines of the rise."""
        near = Plane.between(lines.lower_slope, self.signs[1] * lines.lower_offset)
        both = (near, planes.upper) if self.signs[1] > 0 else (planes.lower, near)
        error = None if planes.error is None or lines.error is None else torch.maximum(planes.error, lines.error)
        return Planes(*both, error)

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """Write the maximum or the minimum, which is read back as the same ops; the rise is not needed in a file."""
        return file.op("Max" if self.signs[1] > 0 else "Min", inputs[2], inputs[0])


def larger(decomposition: Decomposition, first: int, second: int) -> int:
    """Append the larger of two nodes of one shape. Return its place."""
    return _extremum(decomposition, second, first, 1)


def smaller(decomposition: Decomposition, first: int, second: int) -> int:
    """Append the smaller of two nodes of one shape. Return its place."""
    return _extremum(decomposition, second, first, -1)


def _extremum(decomposition: Decomposition, one: int, other: int, sign: int) -> int:
    """Append `one + relu(other - one)` for the sign 1, `one - relu(one - other)` for -1. Return its place."""
    shape = decomposition.shapes[one]
    gap = decomposition.add(Add(shape, (1, -1)), *((other, one) if sign > 0 else (one, other)))
    rise = decomposition.add(Relu(shape), gap)
    return decomposition.add(Extremum(shape, (1, sign)), one, rise, other)


def largest(decomposition: Decomposition, nodes: list[int]) -> int:
    """Append the largest of several nodes of one shape, in rounds of pairs. Return its place."""
    while len(nodes) > 1:
        pairs = [larger(decomposition, first, second) for first, second in zip(nodes[::2], nodes[1::2], strict=False)]
        nodes = pairs + nodes[len(nodes) // 2 * 2 :]
    return nodes[0]


def clipped(shape: Shape, low: float | None, high: float | None, like: Tensor) -> Decomposition:
    """Return `min(max(z, low), high)` by ReLUs.

    `max(z, low)` is `low + relu(z - low)`, and `min(z, high)` is `-max(-z, -high)`.
    """
    decomposition = Decomposition(shape)
    node = 0
    if low is not None:
        node = _clip_below(decomposition, node, low, like)
    if high is not None:
        node = _negated(
            decomposition, _clip_below(decomposition, _negated(decomposition, node, like), -high, like), like
        )
    return decomposition


def _clip_below(decomposition: Decomposition, node: int, low: float, like: Tensor) -> int:
    """Append `max(z, low)`. Return its place."""
    shape = decomposition.shapes[node]
    if low == 0:
        return decomposition.add(Relu(shape), node)
    above = decomposition.add(
        Relu(shape), decomposition.add(Elementwise(None, constant_rows(-low, shape, like), shape), node)
    )
    return decomposition.add(Elementwise(None, constant_rows(low, shape, like), shape), above)


def _negated(decomposition: Decomposition, node: int, like: Tensor) -> int:
    """Append `-z`. Return its place."""
    shape = decomposition.shapes[node]
    return decomposition.add(Elementwise(constant_rows(-1.0, shape, like), None, shape, stored_weights=True), node)


@rule(
    "aten.maximum.default",
    "aten.minimum.default",
    family="maximum",
    onnx=("Max", "Min"),
    examples=(through("max-min", (4,), lambda z: torch.maximum(z, z.flip(1)) - torch.minimum(z, z.relu()), slow=True),),
)
def _maximum(call: Call) -> Decomposition:
    if not isinstance(call.args[1], Value) or len(call.in_shapes) != 2 or call.in_shapes[0] != call.in_shapes[1]:
        raise ValueError("the larger of two nodes of one shape is supported; use clamp for constants")
    decomposition = Decomposition(*call.in_shapes)
    if "maximum" in call.target:
        larger(decomposition, 0, 1)
    else:
        smaller(decomposition, 0, 1)
    return decomposition


@rule(
    family="piecewise linear",
    onnx=("Clip", "HardSigmoid"),
    examples=(
        activated("aten.clamp.default", -0.2, 0.4),
        activated("aten.hardtanh.default", 0.0, 0.5, name="relu6-like"),
        activated("aten.clamp_.default", -0.2, 0.4, slow=True),
        activated("aten.hardtanh_.default", slow=True),
    ),
)
def _clamp(call: Call) -> Decomposition:
    default = (-1.0, 1.0) if "hardtanh" in call.target else (None, None)
    low, high = call.get(1, "min", default[0]), call.get(2, "max", default[1])
    return clipped(call.out_shape, low, high, call.like)


@rule(family="piecewise linear", examples=(activated("aten.clamp_min.default", 0.25, slow=True),))
def _clamp_min(call: Call) -> Decomposition:
    return clipped(call.out_shape, float(call.args[1]), None, call.like)


@rule(family="piecewise linear", examples=(activated("aten.clamp_max.default", -0.5, slow=True),))
def _clamp_max(call: Call) -> Decomposition:
    return clipped(call.out_shape, None, float(call.args[1]), call.like)
