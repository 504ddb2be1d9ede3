"""Maxima as ReLUs: `max(a, b) = b + relu(a - b)`, so that every method, and branching on ReLUs, knows them."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.forms import Shape
from polycert.rules.activation import Relu
from polycert.rules.affine import Add, Elementwise
from polycert.rules.conv1d import as_image, in_lines, pair_of
from polycert.rules.conv2d import Conv2d
from polycert.rules.decomposition import Decomposition
from polycert.rules.indexing import Pick, places_of
from polycert.rules.op import Call, Value, constant_rows, rule

Pair = tuple[int, int]
SMALL_WINDOW = 5  # up to this size, a convolution for each pixel of a window is cheap
LARGEST_WINDOW = 4096


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


class PoolWindows(NamedTuple):
    """Where a pooling op looks: kernel, stride, padding before, dilation, and the size of its output."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    size: Pair


class WindowShift(Conv2d):
    """One pixel of every window: a convolution with a single 1, which rounds nothing and keeps windows."""

    @property
    def terms(self) -> tuple[int, int]:
        """Nothing is added."""
        return (0, 0)


def max_pool(in_shape: Shape, windows: PoolWindows, like: Tensor) -> Decomposition:
    """The maximum over windows of an image `[C, H, W]`: of one image for each place in the window."""
    recipe = Decomposition(in_shape)
    rows, columns = (_looked_at(in_shape[k + 1], windows, k) for k in (0, 1))
    if windows.kernel[0] * windows.kernel[1] > LARGEST_WINDOW:
        raise ValueError(f"a maximum is supported over windows of at most {LARGEST_WINDOW} pixels")
    inside = (
        windows.padding == (0, 0)
        and max(windows.kernel) <= SMALL_WINDOW
        and all(
            (windows.size[k] - 1) * windows.stride[k] + windows.dilation[k] * (windows.kernel[k] - 1) < in_shape[k + 1]
            for k in (0, 1)
        )
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


def _slide(in_shape: Shape, windows: PoolWindows, at: Pair, like: Tensor) -> WindowShift:
    channels = in_shape[0]
    weight = like.new_zeros(channels, 1, *windows.kernel)
    weight[:, :, at[0], at[1]] = 1
    out_shape = (channels, *windows.size)
    return WindowShift(weight, None, in_shape, out_shape, windows.stride, (0, 0), windows.dilation, channels)


def _looked_at(size: int, windows: PoolWindows, axis: int) -> Tensor:
    """`[out, kernel]`: the pixels of each window along an axis; beyond the border, one inside stands in."""
    steps = torch.arange(windows.size[axis]) * windows.stride[axis] - windows.padding[axis]
    found = steps[:, None] + torch.arange(windows.kernel[axis]) * windows.dilation[axis]
    inside = (found >= 0) & (found < size)
    if not bool(inside.any(1).all()):
        raise ValueError("a window of a maximum lies beyond the border")
    first = found.gather(1, inside.long().argmax(1, keepdim=True))
    return torch.where(inside, found, first)


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


@rule("aten.max_pool2d.default", "aten.max_pool1d.default")
def _max_pool(call: Call) -> Decomposition:
    flat = "1d" in call.target
    size = call.get(1, "kernel_size")
    kernel, stride = pair_of(size, flat, 1), pair_of(call.get(2, "stride") or size, flat, 1)
    padding, dilation = pair_of(call.get(3, "padding", 0), flat, 0), pair_of(call.get(4, "dilation", 1), flat, 1)
    shapes = [as_image(shape) if flat else shape for shape in (call.in_shapes[0], call.out_shape)]
    windows = PoolWindows(kernel, stride, padding, dilation, (shapes[1][1], shapes[1][2]))
    pooled = max_pool(shapes[0], windows, call.like)
    return in_lines(pooled, call) if flat else pooled


@rule("aten.maximum.default", "aten.minimum.default")
def _maximum(call: Call) -> Decomposition:
    if not isinstance(call.args[1], Value) or len(call.in_shapes) != 2 or call.in_shapes[0] != call.in_shapes[1]:
        raise ValueError("the larger of two nodes of one shape is supported; use clamp for constants")
    recipe = Decomposition(*call.in_shapes)
    if "maximum" in call.target:
        larger(recipe, 0, 1)
    else:
        _mirror(recipe, larger(recipe, *(_mirror(recipe, k, call.like) for k in (0, 1))), call.like)
    return recipe


@rule("aten.clamp.default", "aten.clamp_.default", "aten.hardtanh.default", "aten.hardtanh_.default")
def _clamp(call: Call) -> Decomposition:
    default = (-1.0, 1.0) if "hardtanh" in call.target else (None, None)
    low, high = call.get(1, "min", default[0]), call.get(2, "max", default[1])
    return clipped(call.out_shape, low, high, call.like)


@rule("aten.clamp_min.default")
def _clamp_min(call: Call) -> Decomposition:
    return clipped(call.out_shape, float(call.args[1]), None, call.like)


@rule("aten.clamp_max.default")
def _clamp_max(call: Call) -> Decomposition:
    return clipped(call.out_shape, None, float(call.args[1]), call.like)
