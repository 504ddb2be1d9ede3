"""Maxima as ReLUs: `max(a, b) = b + relu(a - b)`. So every method knows them, and branch and bound splits them."""

from __future__ import annotations

import torch
from torch import Tensor

from polycert.forms import Shape
from polycert.rules.affine import Add, Elementwise
from polycert.rules.examples import activated, through
from polycert.rules.op import Decomposition
from polycert.rules.piecewise_linear import Relu
from polycert.rules.registry import Call, Value, constant_rows, rule


def larger(decomposition: Decomposition, first: int, second: int) -> int:
    """Append the larger of two nodes of one shape. Return its place."""
    shape = decomposition.shapes[first]
    gap = decomposition.add(Add(shape, (1, -1)), first, second)
    rise = decomposition.add(Relu(shape), gap)
    return decomposition.add(Add(shape, (1, 1)), second, rise)


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
        _negated(
            decomposition, larger(decomposition, *(_negated(decomposition, k, call.like) for k in (0, 1))), call.like
        )
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
