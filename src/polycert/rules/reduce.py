"""Sums and means over axes of a sample: the axes moved last, then a product with ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from polycert.forms import Shape
from polycert.rules.affine import MatMul, Mean
from polycert.rules.decomposition import Decomposition
from polycert.rules.op import Call, rule
from polycert.rules.shape import Permute, Reshape


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


@rule("aten.mean.dim", "aten.sum.dim_IntList")
def _reduce(call: Call) -> Decomposition:
    rank = len(call.in_shapes[0]) + 1
    dims = call.get(1, "dim")
    axes = list(range(1, rank)) if not dims else [d % rank for d in ([dims] if isinstance(dims, int) else dims)]
    if not dims or 0 in axes:
        raise ValueError("a sum over the batch is not supported")
    out_shape = call.out_shape or (1,)
    return reduction(call.in_shapes[0], [a - 1 for a in axes], out_shape, call.like, mean="mean" in call.target)
