"""Arithmetic of two operands, at least one of them a node; sums and means over axes of a sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from polycert.forms import Shape
from polycert.rules.affine import Add, Elementwise, MatMul, Mean, times_matrix
from polycert.rules.bilinear import bilinear, product
from polycert.rules.examples import Example, Fn, calls, through
from polycert.rules.indexing import Permute, Reshape, broadcast
from polycert.rules.op import Decomposition, Linear, Op
from polycert.rules.registry import Call, Value, constant_rows, rule


def _two_operands(call: Call) -> tuple[Any, Any]:
    first, second = call.args[:2]
    return first, second


def plus(call: Call) -> Linear:
    """`x + constant`, or the sum of two nodes of one shape."""
    first, second = _two_operands(call)
    if call.get(2, "alpha", 1) != 1:
        raise ValueError("add with alpha is not supported; multiply first")
    if isinstance(first, Value) and isinstance(second, Value):
        return _sum(call, 1)
    constant = second if isinstance(first, Value) else first
    return Elementwise(None, constant_rows(constant, call.out_shape, call.like), _same_shape(call))


def minus(call: Call) -> Linear:
    """`x - constant`, `constant - x`, or the difference of two nodes of one shape."""
    first, second = _two_operands(call)
    if call.get(2, "alpha", 1) != 1:
        raise ValueError("sub with alpha is not supported; multiply first")
    if call.target == "aten.rsub.Scalar":
        first, second = second, first
    if isinstance(first, Value) and isinstance(second, Value):
        return _sum(call, -1)
    shape = _same_shape(call)
    if isinstance(first, Value):
        return Elementwise(None, -constant_rows(second, shape, call.like), shape)
    shift = constant_rows(first, shape, call.like)
    return Elementwise(-torch.ones_like(shift), shift, shape)


def times(call: Call) -> Elementwise:
    """`x * constant`, entry by entry."""
    first, second = _two_operands(call)
    constant = second if isinstance(first, Value) else first
    shape = _same_shape(call)
    return Elementwise(constant_rows(constant, shape, call.like), None, shape)


def over(call: Call) -> Elementwise:
    """`x / constant`, entry by entry."""
    first, second = _two_operands(call)
    if not isinstance(first, Value) or isinstance(second, Value):
        raise ValueError("only division by a constant is affine")
    shape = _same_shape(call)
    return Elementwise(1 / constant_rows(second, shape, call.like), None, shape)


@rule("aten.neg.default", family="affine", onnx=("Neg",), examples=(through("negative", (4,), lambda z: -(-z).relu()),))
def _neg(call: Call) -> Elementwise:
    shape = call.in_shapes[0]
    return Elementwise(constant_rows(-1.0, shape, call.like), None, shape)


def _sum(call: Call, sign: int) -> Add:
    return Add(call.out_shape, (1, sign))


def _same_shape(call: Call) -> Shape:
    assert call.in_shapes[0] == call.out_shape
    return call.out_shape


def _in_one_shape(call: Call, build: Callable[[Call], Op | Decomposition]) -> Op | Decomposition:
    """Nodes that the result is larger than are repeated first."""
    wide = call.out_shape
    if all(shape == wide for shape in call.in_shapes):
        return build(call)
    recipe = Decomposition(*call.in_shapes)
    places = []
    for place, shape in enumerate(call.in_shapes):
        tall = (1,) * (len(wide) - len(shape)) + shape
        node = place if tall == shape else recipe.add(Reshape(shape, tall), place)
        places.append(node if tall == wide else recipe.add(broadcast(tall, wide, call.like), node))
    made = build(replace(call, in_shapes=(wide,) * len(places)))
    if isinstance(made, Op):
        recipe.add(made, *places)
    else:
        recipe.follow(made, *places)
    return recipe


@rule(
    "aten.add.Tensor",
    family="affine",
    onnx=("Add", "Sum"),
    examples=(
        through("add", (5,), lambda z: z.relu() + z, slow=True),
        calls("aten.add_.Tensor", 0.5),
        calls("aten.add.Scalar", 0.5),
    ),
)
def _add(call: Call) -> Op | Decomposition:
    return _in_one_shape(call, plus)


@rule(
    "aten.sub.Tensor",
    family="affine",
    onnx=("Sub",),
    examples=(
        through("sub", (5,), lambda z: z.tanh() - z, slow=True),
        calls("aten.sub.Scalar", 0.5),
        calls("aten.rsub.Scalar", 0.5),
    ),
)
def _sub(call: Call) -> Op | Decomposition:
    return _in_one_shape(call, minus)


@rule(
    "aten.mul.Tensor",
    family="affine",
    onnx=("Mul",),
    examples=(
        through("mul", (5,), lambda z: z * z.tanh(), slow=True),
        calls("aten.mul.Scalar", -1.5),
        calls("aten.mul_.Tensor", 0.7),
    ),
)
def _mul(call: Call) -> Op | Decomposition:
    return _in_one_shape(call, _product if _two_nodes(call) else times)


def _product(call: Call) -> Decomposition:
    return product(call.out_shape, call.like)


@rule(
    family="affine",
    onnx=("Div",),
    examples=(calls("aten.div.Tensor", 0.3), calls("aten.div.Scalar", -1.5), calls("aten.div_.Tensor", 0.7)),
)
def _div(call: Call) -> Op | Decomposition:
    return _in_one_shape(call, over)


@rule(
    "aten.matmul.default",
    "aten.mm.default",
    family="affine",
    onnx=("MatMul",),
    examples=(
        Example(
            "matmul", (5,), lambda: Fn(lambda m, x: m.a((x @ m.b.weight).relu()), nn.Linear(4, 3), nn.Linear(4, 5))
        ),
        Example(
            "mm",
            (5,),
            lambda: Fn(lambda m, x: m.a(torch.mm(x, m.b.weight)), nn.Linear(4, 3), nn.Linear(4, 5)),
            slow=True,
        ),
    ),
)
def _matmul(call: Call) -> Op | Decomposition:
    return bilinear(call.in_shapes[0], call.in_shapes[1], call.like) if _two_nodes(call) else times_matrix(call)


def _two_nodes(call: Call) -> bool:
    return all(isinstance(value, Value) for value in call.args[:2])


def reduction(shape: Shape, axes: Sequence[int], out_shape: Shape, like: Tensor, *, mean: bool) -> Decomposition:
    """The sum or mean over some axes (counted without the batch), in the shape `out_shape`."""
    recipe = Decomposition(shape)
    others = [k for k in range(len(shape)) if k not in axes]
    order = (*others, *sorted(axes))
    count = math.prod(shape[k] for k in axes)
    node = 0
    if order != tuple(range(len(shape))):
        node = recipe.add(Permute(shape, tuple(shape[k] for k in order), order), node)
    flat = (*(shape[k] for k in others), count)
    node = recipe.add(Reshape(recipe.shapes[node], flat), node)
    ones = torch.ones(1, count, dtype=like.dtype, device=like.device)
    ends = (flat, (*flat[:-1], 1))
    node = recipe.add(Mean(ones / count, None, *ends) if mean else MatMul(ones, None, *ends), node)
    recipe.add(Reshape(ends[1], out_shape), node)
    return recipe


@rule(
    "aten.mean.dim",
    "aten.sum.dim_IntList",
    family="affine",
    onnx=("ReduceMean", "ReduceSum"),
    by_shape=("keepdim",),
    examples=(
        through("mean", (2, 3, 4), lambda z: z.relu().mean((2, 3))),
        through("sum", (2, 4), lambda z: z.relu().sum(1, keepdim=True).squeeze(1) + z.sum(1)),
    ),
)
def _reduce(call: Call) -> Decomposition:
    rank = len(call.in_shapes[0]) + 1
    dims = call.get(1, "dim")
    axes = list(range(1, rank)) if not dims else [d % rank for d in ([dims] if isinstance(dims, int) else dims)]
    if not dims or 0 in axes:
        raise ValueError("a sum over the batch is not supported")
    out_shape = call.out_shape or (1,)
    return reduction(call.in_shapes[0], [a - 1 for a in axes], out_shape, call.like, mean="mean" in call.target)
