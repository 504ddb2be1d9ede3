"""Products of two values as squares, and what is built of them: bilinear products and softmax.

`x y = ((x + y)^2 - (x - y)^2) / 4`: both squares are activations of one variable, whose sums every method follows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polycert.forms import Shape
from polycert.rules.affine import Add, Elementwise, MatMul
from polycert.rules.convex import Exp, Reciprocal, Square
from polycert.rules.examples import calls, through
from polycert.rules.indexing import Pick, Reshape, places_of
from polycert.rules.op import Decomposition
from polycert.rules.registry import Call, Value, rule


def product(shape: Shape, like: Tensor) -> Decomposition:
    """The product of two nodes of one shape, entry by entry."""
    recipe = Decomposition(shape, shape)
    squares = [recipe.add(Square(shape), recipe.add(Add(shape, (1, sign)), 0, 1)) for sign in (1, -1)]
    gap = recipe.add(Add(shape, (1, -1)), *squares)
    quarter = torch.full((1, *shape), 0.25, dtype=like.dtype, device=like.device)
    recipe.add(Elementwise(quarter, None, shape, stored_weights=True), gap)
    return recipe


def bilinear(first: Shape, second: Shape, like: Tensor) -> Decomposition:
    """The matrix product of two nodes `[..., n, k]` and `[..., k, m]`."""
    *outer, n, k = first
    m = second[-1]
    if list(second[:-1]) != [*outer, k]:
        raise ValueError(f"matrices of shapes {first} and {second} do not fit")
    recipe = Decomposition(first, second)
    wide = (*outer, n, m, k)
    left = places_of(first, like).unsqueeze(-2).expand(wide)
    right = places_of(second, like).transpose(-1, -2).unsqueeze(-3).expand(wide)
    factors = recipe.add(Pick.of(left, first), 0), recipe.add(Pick.of(right, second), 1)
    total = sum_last(recipe, recipe.follow(product(wide, like), *factors), like)
    recipe.add(Reshape(recipe.shapes[total], (*outer, n, m)), total)
    return recipe


def sum_last(recipe: Decomposition, node: int, like: Tensor) -> int:
    """The sum over the last axis, which stays with size 1."""
    shape = recipe.shapes[node]
    ones = torch.ones(1, shape[-1], dtype=like.dtype, device=like.device)
    return recipe.add(MatMul(ones, None, shape, (*shape[:-1], 1)), node)


def softmax(shape: Shape, like: Tensor) -> Decomposition:
    """Over the last axis: `1 / sum_j exp(z_j - z_i)`, a sum that is at least 1."""
    recipe = Decomposition(shape)
    size = shape[-1]
    places = places_of(shape, like)
    wide = (*shape, size)
    others = recipe.add(Pick.of(places.unsqueeze(-2).expand(wide), shape), 0)
    own = recipe.add(Pick.of(places.unsqueeze(-1).expand(wide), shape), 0)
    ratios = recipe.add(Exp(wide), recipe.add(Add(wide, (1, -1)), others, own))
    total = sum_last(recipe, ratios, like)
    flat = recipe.add(Reshape(recipe.shapes[total], shape), total)
    recipe.add(Reciprocal(shape), flat)
    return recipe


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


@rule(
    "aten.bmm.default",
    family="product",
    examples=(through("bmm", (2, 3), lambda z: torch.bmm(z, z.transpose(1, 2)), slow=True),),
)
def _bmm(call: Call) -> Decomposition:
    if not all(isinstance(value, Value) for value in call.args[:2]):
        raise ValueError("a product with one constant for each sample is not supported")
    return bilinear(call.in_shapes[0], call.in_shapes[1], call.like)
