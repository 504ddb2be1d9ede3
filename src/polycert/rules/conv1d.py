"""Ops on lines `[C, L]` as ops on images of one line `[C, 1, L]`: one-dimensional convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence

from polycert.forms import Shape
from polycert.rules.conv2d import Conv2d, same_padding
from polycert.rules.conv_adjoint import Pair
from polycert.rules.decomposition import Decomposition
from polycert.rules.op import Call, Op, rule
from polycert.rules.shape import Reshape


def as_image(shape: Shape) -> Shape:
    """`[C, L]` as `[C, 1, L]`."""
    return (shape[0], 1, shape[1])


def pair_of(value: int | Sequence[int], flat: bool, default: int) -> Pair:
    """One number for each axis; a line has `default` across."""
    values = [value] if isinstance(value, int) else list(value)
    return (default, int(values[-1])) if flat else (int(values[0]), int(values[-1]))


def in_lines(op: Op | Decomposition, call: Call) -> Decomposition:
    """An op on images of one line, applied to lines."""
    recipe = Decomposition(call.in_shapes[0])
    image = recipe.add(Reshape(call.in_shapes[0], as_image(call.in_shapes[0])), 0)
    made = recipe.add(op, image) if isinstance(op, Op) else recipe.follow(op, image)
    recipe.add(Reshape(recipe.shapes[made], call.out_shape), made)
    return recipe


@rule("aten.conv1d.default", "aten.conv1d.padding")
def _conv1d(call: Call) -> Decomposition:
    weight = call.get(1, "weight").unsqueeze(2)
    dilation, padding = pair_of(call.get(5, "dilation", 1), True, 1), call.get(4, "padding", 0)
    sides = same_padding(padding, weight, dilation) if isinstance(padding, str) else pair_of(padding, True, 0)
    op = Conv2d(
        weight,
        call.get(2, "bias"),
        as_image(call.in_shapes[0]),
        as_image(call.out_shape),
        pair_of(call.get(3, "stride", 1), True, 1),
        sides,
        dilation,
        int(call.get(6, "groups", 1)),
    )
    return in_lines(op, call)
