"""Maxima as ReLUs: `max(a, b) = b + relu(a - b)`, so that every method, and branching on ReLUs, knows them."""

from __future__ import annotations

import torch
from torch import Tensor

from polycert.forms import Shape
from polycert.rules.affine import Add, Elementwise
from polycert.rules.examples import activated, through
from polycert.rules.op import Decomposition
from polycert.rules.piecewise_linear import Relu
from polycert.rules.registry import Call, Value, constant_rows, rule


def larger(recipe: Decomposition, first: int, second: int) -> int:
    """The larger of two nodes of one shape."""
    shape = recipe.shapes[first]
    gap = recipe.add(Add(shape, (1, -1)), first, second)
    rise = recipe.add(Relu(shape), gap)
    return recipe.add(Add(shape, (1, 1)), second, rise)


def largest(recipe: Decomposition, nodes: list[int]) -> int:
    """The largest of several nodes of one shape, in rounds of pairs."""
    while len(nodes) > 1:
        pairs = [larger(recipe, first, second) for first, second in zip(nodes[::2], nodes[1::2], strict=False)]
        nodes = pairs + nodes[len(nodes) // 2 * 2 :]
    return nodes[0]


def clipped(shape: Shape, low: float | None, high: float | None, like: Tensor) -> Decomposition:
    """`min(max(z, low), high)` by ReLUs: `max(z, low) = low + relu(z - low)`, and the other side mirrored."""
    recipe = Decomposition(shape)
    node = 0
    if low is not None:
        node = _raised(recipe, node, low, like)
    if high is not None:
        node = _mirror(recipe, _raised(recipe, _mirror(recipe, node, like), -high, like), like)
    return recipe


def _raised(recipe: Decomposition, node: int, low: float, like: Tensor) -> int:
    shape = recipe.shapes[node]
    if low == 0:
        return recipe.add(Relu(shape), node)
    above = recipe.add(Relu(shape), recipe.add(Elementwise(None, constant_rows(-low, shape, like), shape), node))
    return recipe.add(Elementwise(None, constant_rows(low, shape, like), shape), above)


def _mirror(recipe: Decomposition, node: int, like: Tensor) -> int:
    shape = recipe.shapes[node]
    return recipe.add(Elementwise(constant_rows(-1.0, shape, like), None, shape, stored_weights=True), node)


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
    recipe = Decomposition(*call.in_shapes)
    if "maximum" in call.target:
        larger(recipe, 0, 1)
    else:
        _mirror(recipe, larger(recipe, *(_mirror(recipe, k, call.like) for k in (0, 1))), call.like)
    return recipe


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
