"""Arithmetic of two operands, at least one of them a node: brought to one shape first, then affine or a product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polycert.rules import affine
from polycert.rules.bilinear import bilinear, product
from polycert.rules.decomposition import Decomposition
from polycert.rules.indexing import broadcast
from polycert.rules.op import Call, Op, Value, rule
from polycert.rules.shape import Reshape


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


@rule("aten.add.Tensor", "aten.add_.Tensor", "aten.add.Scalar")
def _add(call: Call) -> Op | Decomposition:
    return _in_one_shape(call, affine.plus)


@rule("aten.sub.Tensor", "aten.sub.Scalar", "aten.rsub.Scalar")
def _sub(call: Call) -> Op | Decomposition:
    return _in_one_shape(call, affine.minus)


@rule("aten.mul.Tensor", "aten.mul.Scalar", "aten.mul_.Tensor")
def _mul(call: Call) -> Op | Decomposition:
    return _in_one_shape(call, _product if _two_nodes(call) else affine.times)


def _product(call: Call) -> Decomposition:
    return product(call.out_shape, call.like)


@rule("aten.div.Tensor", "aten.div.Scalar", "aten.div_.Tensor")
def _div(call: Call) -> Op | Decomposition:
    return _in_one_shape(call, affine.over)


@rule("aten.matmul.default", "aten.mm.default")
def _matmul(call: Call) -> Op | Decomposition:
    return bilinear(call.in_shapes[0], call.in_shapes[1], call.like) if _two_nodes(call) else affine.times_matrix(call)


def _two_nodes(call: Call) -> bool:
    return all(isinstance(value, Value) for value in call.args[:2])
