"""Arithmetic of two operands, at least one of them a node; sums, means and softmax over axes of a sample.

A product of two nodes is a difference of squares: `x y = ((x + y)^2 - (x - y)^2) / 4`. Both squares are activations of
one variable, whose sums every method follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from polycert.forms import Shape
from polycert.rules.affine import Add, Elementwise, MatMul, Mean, times_matrix
from polycert.rules.convex import Exp, Reciprocal, Square
from polycert.rules.examples import Example, Fn, calls, through
from polycert.rules.indexing import Permute, Pick, Reshape, broadcast, places_of
from polycert.rules.op import Decomposition, Linear, Op
from polycert.rules.registry import Call, Value, constant_rows, rule


def _two_operands(call: Call) -> tuple[Any, Any]:
    first, second = call.args[:2]
    return first, second


def plus(call: Call) -> Linear:
    """Build `x + constant`, or the sum of two nodes of one shape."""
    first, second = _two_operands(call)
    if call.get(2, "alpha", 1) != 1:
        raise ValueError("add with alpha is not supported; multiply first")
    if isinstance(first, Value) and isinstance(second, Value):
        return _sum(call, 1)
    constant = second if isinstance(first, Value) else first
    return Elementwise(None, constant_rows(constant, call.out_shape, call.like), _same_shape(call))


def minus(call: Call) -> Linear:
    """Build `x - constant`, `constant - x`, or the difference of two nodes of one shape."""
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
    """Build `x * constant`, entry by entry."""
    first, second = _two_operands(call)
    constant = second if isinstance(first, Value) else first
    shape = _same_shape(call)
    return Elementwise(constant_rows(constant, shape, call.like), None, shape)


def over(call: Call) -> Elementwise:
    """Build `x / constant`, entry by entry."""
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
    """Return the shape of the result, which the operand has too."""
    assert call.in_shapes[0] == call.out_shape
    return call.out_shape


def _in_one_shape(call: Call, build: Callable[[Call], Op | Decomposition]) -> Op | Decomposition:
    """Repeat nodes that are smaller than the result, then build the op over all of them."""
    wide = call.out_shape
    if all(shape == wide for shape in call.in_shapes):
        return build(call)
    decomposition = Decomposition(*call.in_shapes)
    places = []
    for place, shape in enumerate(call.in_shapes):
        tall = (1,) * (len(wide) - len(shape)) + shape
        node = place if tall == shape else decomposition.add(Reshape(shape, tall), place)
        places.append(node if tall == wide else decomposition.add(broadcast(tall, wide, call.like), node))
    made = build(replace(call, in_shapes=(wide,) * len(places)))
    if isinstance(made, Op):
        decomposition.add(made, *places)
    else:
        decomposition.follow(made, *places)
    return decomposition


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


def product(shape: Shape, like: Tensor) -> Decomposition:
    """Return the product of two nodes of one shape, entry by entry."""
    decomposition = Decomposition(shape, shape)
    squares = [decomposition.add(Square(shape), decomposition.add(Add(shape, (1, sign)), 0, 1)) for sign in (1, -1)]
    gap = decomposition.add(Add(shape, (1, -1)), *squares)
    quarter = torch.full((1, *shape), 0.25, dtype=like.dtype, device=like.device)
    decomposition.add(Elementwise(quarter, None, shape, stored_weights=True), gap)
    return decomposition


def bilinear(first: Shape, second: Shape, like: Tensor) -> Decomposition:
    """Return the matrix product of two nodes `[..., n, k]` and `[..., k, m]`."""
    *outer, n, k = first
    m = second[-1]
    if list(second[:-1]) != [*outer, k]:
        raise ValueError(f"matrices of shapes {first} and {second} do not fit")
    decomposition = Decomposition(first, second)
    wide = (*outer, n, m, k)
    left = places_of(first, like).unsqueeze(-2).expand(wide)
    right = places_of(second, like).transpose(-1, -2).unsqueeze(-3).expand(wide)
    factors = decomposition.add(Pick.of(left, first), 0), decomposition.add(Pick.of(right, second), 1)
    total = _sum_last(decomposition, decomposition.follow(product(wide, like), *factors), like)
    decomposition.add(Reshape(decomposition.shapes[total], (*outer, n, m)), total)
    return decomposition


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


@rule(
    "aten.bmm.default",
    family="product",
    examples=(through("bmm", (2, 3), lambda z: torch.bmm(z, z.transpose(1, 2)), slow=True),),
)
def _bmm(call: Call) -> Decomposition:
    if not _two_nodes(call):
        raise ValueError("a product with one constant for each sample is not supported")
    return bilinear(call.in_shapes[0], call.in_shapes[1], call.like)


def _two_nodes(call: Call) -> bool:
    """Whether both operands are nodes."""
    return all(isinstance(value, Value) for value in call.args[:2])


def _sum_last(decomposition: Decomposition, node: int, like: Tensor) -> int:
    """Append the sum over the last axis, which stays with size 1. Return its place."""
    shape = decomposition.shapes[node]
    ones = torch.ones(1, shape[-1], dtype=like.dtype, device=like.device)
    return decomposition.add(MatMul(ones, None, shape, (*shape[:-1], 1)), node)


def reduction(shape: Shape, axes: Sequence[int], out_shape: Shape, like: Tensor, *, mean: bool) -> Decomposition:
    """Return the sum or mean over some axes (counted without the batch), in the shape `out_shape`."""
    decomposition = Decomposition(shape)
    others = [k for k in range(len(shape)) if k not in axes]
    order = (*others, *sorted(axes))
    count = math.prod(shape[k] for k in axes)
    node = 0
    if order != tuple(range(len(shape))):
        node = decomposition.add(Permute(shape, tuple(shape[k] for k in order), order), node)
    flat = (*(shape[k] for k in others), count)
    node = decomposition.add(Reshape(decomposition.shapes[node], flat), node)
    ones = torch.ones(1, count, dtype=like.dtype, device=like.device)
    ends = (flat, (*flat[:-1], 1))
    node = decomposition.add(Mean(ones / count, None, *ends) if mean else MatMul(ones, None, *ends), node)
    decomposition.add(Reshape(ends[1], out_shape), node)
    return decomposition


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


def softmax(shape: Shape, like: Tensor) -> Decomposition:
    """Return the softmax over the last axis as `1 / sum_j exp(z_j - z_i)`; the sum is at least 1."""
    decomposition = Decomposition(shape)
    size = shape[-1]
    places = places_of(shape, like)
    wide = (*shape, size)
    others = decomposition.add(Pick.of(places.unsqueeze(-2).expand(wide), shape), 0)
    own = decomposition.add(Pick.of(places.unsqueeze(-1).expand(wide), shape), 0)
    ratios = decomposition.add(Exp(wide), decomposition.add(Add(wide, (1, -1)), others, own))
    total = _sum_last(decomposition, ratios, like)
    flat = decomposition.add(Reshape(decomposition.shapes[total], shape), total)
    decomposition.add(Reciprocal(shape), flat)
    return decomposition


@rule(
    "aten.softmax.int",
    family="product",
    onnx=("Softmax",),
    examples=(
        through("softmax-inside", (4,), lambda z: z.softmax(1)),
        calls("aten._softmax.default", -1, False, shape=(4,)),
    ),
)
def _softmax(call: Call) -> Decomposition:
    axis, rank = call.get(1, "dim"), len(call.out_shape)
    if axis not in (-1, rank):
        raise ValueError("softmax inside a network is supported over the last axis only")
    return softmax(call.out_shape, call.like)
