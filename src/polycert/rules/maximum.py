"""Maxima as ReLUs: `max(a, b) = b + relu(a - b)`, so that every method, and branching on ReLUs, knows them."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.forms import Shape
from polycert.rules.activation import LeakyRelu
from polycert.rules.affine import Add
from polycert.rules.convolution import Conv2d
from polycert.rules.recipe import Recipe
from polycert.rules.selection import Pick, places_of

Pair = tuple[int, int]


def larger(recipe: Recipe, first: int, second: int) -> int:
    """The larger of two nodes of one shape."""
    shape = recipe.shapes[first]
    gap = recipe.add(Add(shape, (1, -1)), first, second)
    rise = recipe.add(LeakyRelu(shape), gap)
    return recipe.add(Add(shape, (1, 1)), second, rise)


def largest(recipe: Recipe, nodes: list[int]) -> int:
    """The largest of several nodes of one shape, in rounds of pairs."""
    while len(nodes) > 1:
        pairs = [larger(recipe, first, second) for first, second in zip(nodes[::2], nodes[1::2], strict=False)]
        nodes = pairs + nodes[len(nodes) // 2 * 2 :]
    return nodes[0]


class Windows(NamedTuple):
    """Where a pooling op looks: kernel, stride, padding before, dilation, and the size of its output."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    size: Pair


class Slide(Conv2d):
    """One pixel of every window: a convolution with a single 1, which rounds nothing and keeps windows."""

    @property
    def terms(self) -> tuple[int, int]:
        """Nothing is added."""
        return (0, 0)


def max_pool(in_shape: Shape, windows: Windows, like: Tensor) -> Recipe:
    """The maximum over windows of an image `[C, H, W]`: of one image for each place in the window."""
    recipe = Recipe(in_shape)
    rows, columns = (_looked_at(in_shape[k + 1], windows, k) for k in (0, 1))
    inside = windows.padding == (0, 0) and all(
        (windows.size[k] - 1) * windows.stride[k] + windows.dilation[k] * (windows.kernel[k] - 1) < in_shape[k + 1]
        for k in (0, 1)
    )
    candidates = []
    for i, j in product(range(windows.kernel[0]), range(windows.kernel[1])):
        if inside:
            candidates.append(recipe.add(_slide(in_shape, windows, (i, j), like), 0))
        else:
            places = places_of(in_shape, like)[:, rows[:, i]][:, :, columns[:, j]]
            candidates.append(recipe.add(Pick.of(places, in_shape), 0))
    best = largest(recipe, candidates)
    assert best == len(recipe.shapes) - 1
    return recipe


def _slide(in_shape: Shape, windows: Windows, at: Pair, like: Tensor) -> Slide:
    channels = in_shape[0]
    weight = like.new_zeros(channels, 1, *windows.kernel)
    weight[:, :, at[0], at[1]] = 1
    out_shape = (channels, *windows.size)
    return Slide(weight, None, in_shape, out_shape, windows.stride, (0, 0), windows.dilation, channels)


def _looked_at(size: int, windows: Windows, axis: int) -> Tensor:
    """`[out, kernel]`: the pixels of each window along an axis; beyond the border, one inside stands in."""
    steps = torch.arange(windows.size[axis]) * windows.stride[axis] - windows.padding[axis]
    found = steps[:, None] + torch.arange(windows.kernel[axis]) * windows.dilation[axis]
    inside = (found >= 0) & (found < size)
    if not bool(inside.any(1).all()):
        raise ValueError("a window of a maximum lies beyond the border")
    first = found.gather(1, inside.long().argmax(1, keepdim=True))
    return torch.where(inside, found, first)
