"""Maxima as ReLUs: `max(a, b) = b + relu(a - b)`, so that every method, and branching on ReLUs, knows them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polycert.forms import Shape
from polycert.rules.activation import LeakyRelu
from polycert.rules.affine import Add
from polycert.rules.recipe import Recipe
from polycert.rules.selection import Concat, Pick, places_of

Pair = tuple[int, int]


def larger(recipe: Recipe, first: int, second: int) -> int:
    """The larger of two nodes of one shape."""
    shape = recipe.shapes[first]
    gap = recipe.add(Add(shape, (1, -1)), first, second)
    rise = recipe.add(LeakyRelu(shape), gap)
    return recipe.add(Add(shape, (1, 1)), second, rise)


def largest_along_first(recipe: Recipe, node: int, like: Tensor) -> int:
    """The maximum over the first axis, in rounds of pairs; the axis stays with size 1."""
    while (count := recipe.shapes[node][0]) > 1:
        half, shape = count // 2, recipe.shapes[node]
        places = places_of(shape, like)
        first = recipe.add(Pick.of(places[:half], shape), node)
        second = recipe.add(Pick.of(places[half : 2 * half], shape), node)
        best = larger(recipe, first, second)
        if count % 2:
            last = recipe.add(Pick.of(places[2 * half :], shape), node)
            best = recipe.add(Concat((recipe.shapes[best], recipe.shapes[last]), 0), best, last)
        node = best
    return node


class Windows(NamedTuple):
    """Where a pooling op looks: kernel, stride, padding before, dilation, and the size of its output."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    size: Pair


def max_pool(in_shape: Shape, windows: Windows, like: Tensor) -> Recipe:
    """The maximum over windows of an image `[C, H, W]`."""
    rows, columns = (_looked_at(in_shape[k + 1], windows, k) for k in (0, 1))
    places = places_of(in_shape, like)[:, rows][..., columns]  # [C, out h, kernel h, out w, kernel w]
    stacked = places.permute(2, 4, 0, 1, 3).flatten(0, 1)
    recipe = Recipe(in_shape)
    entries = recipe.add(Pick.of(stacked.contiguous(), in_shape), 0)
    best = largest_along_first(recipe, entries, like)
    shape = recipe.shapes[best]
    recipe.add(Pick.of(places_of(shape, like)[0], shape), best)
    return recipe


def _looked_at(size: int, windows: Windows, axis: int) -> Tensor:
    """`[out, kernel]`: the pixels of each window along an axis; beyond the border, one inside stands in."""
    steps = torch.arange(windows.size[axis]) * windows.stride[axis] - windows.padding[axis]
    found = steps[:, None] + torch.arange(windows.kernel[axis]) * windows.dilation[axis]
    inside = (found >= 0) & (found < size)
    if not bool(inside.any(1).all()):
        raise ValueError("a window of a maximum lies beyond the border")
    first = found.gather(1, inside.long().argmax(1, keepdim=True))
    return torch.where(inside, found, first)
