"""Averages and maxima over windows of an image."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polycert.forms import Shape
from polycert.rules.conv2d import Conv2d
from polycert.rules.conv_adjoint import Pair
from polycert.rules.conv_rules import as_image, in_lines, pair_of
from polycert.rules.examples import Example, classified, pooled
from polycert.rules.indexing import Pick, places_of
from polycert.rules.maximum import largest
from polycert.rules.op import Decomposition
from polycert.rules.registry import Call, rule

SMALL_WINDOW = 5  # up to this size, a convolution for each pixel of a window is cheap
LARGEST_WINDOW = 4096  # pixels


@dataclass(frozen=True, eq=False)
class AvgPool2d(Conv2d):
    """A mean over windows. Its weights 1 / (kh kw) are rounded numbers."""

    stored_weights: bool = False


def _pool(call: Call, kernel: Pair, stride: Pair, padding: Pair) -> AvgPool2d:
    channels = call.in_shapes[0][0]
    weight = torch.full(
        (channels, 1, *kernel), 1 / (kernel[0] * kernel[1]), dtype=call.like.dtype, device=call.like.device
    )
    return AvgPool2d(weight, None, call.in_shapes[0], call.out_shape, stride, padding, (1, 1), groups=channels)


@rule(
    "aten.avg_pool2d.default",
    family="affine",
    onnx=("AveragePool",),
    layers={"avg_pool2d": nn.AvgPool2d},
    examples=(
        Example("avg-pool", (1, 5, 5), lambda: pooled((1, 5, 5), nn.AvgPool2d(2))),
        Example("avg-pool-padding", (1, 5, 5), lambda: pooled((1, 5, 5), nn.AvgPool2d(3, stride=2, padding=1))),
    ),
)
def _avg_pool2d(call: Call) -> AvgPool2d:
    kernel = pair_of(call.get(1, "kernel_size"))
    stride, padding = pair_of(call.get(2, "stride") or list(kernel)), pair_of(call.get(3, "padding", 0))
    ceil, divisor = call.get(4, "ceil_mode", False), call.get(6, "divisor_override")
    if ceil or divisor is not None:
        raise ValueError("avg_pool2d with ceil_mode or divisor_override is not supported")
    padded_count = call.get(5, "count_include_pad", True)
    if padding != (0, 0) and not padded_count:
        raise ValueError("avg_pool2d with padding needs count_include_pad=True")
    return _pool(call, kernel, stride, padding)


@rule(
    "aten.adaptive_avg_pool2d.default",
    family="affine",
    onnx=("GlobalAveragePool",),
    by_shape=("output_size",),
    examples=(Example("adaptive-avg-pool", (1, 4, 6), lambda: pooled((1, 4, 6), nn.AdaptiveAvgPool2d((2, 3)))),),
)
def _adaptive_avg_pool2d(call: Call) -> AvgPool2d:
    sizes, outputs = call.in_shapes[0][1:], call.out_shape[1:]
    if any(size % out for size, out in zip(sizes, outputs, strict=True)):
        raise ValueError("adaptive_avg_pool2d needs an input size that is a multiple of the output size")
    kernel = (sizes[0] // outputs[0], sizes[1] // outputs[1])
    return _pool(call, kernel, kernel, (0, 0))


class PoolWindows(NamedTuple):
    """How the windows of a pooling op lie: kernel, stride, padding before, dilation, and the size of the output."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    size: Pair


class WindowShift(Conv2d):
    """One pixel of every window: a convolution with a single 1. It rounds nothing, and windows stay windows."""

    @property
    def terms(self) -> tuple[int, int]:
        """Zero terms: nothing is added."""
        return (0, 0)


def max_pool(in_shape: Shape, windows: PoolWindows, like: Tensor) -> Decomposition:
    """Return the maximum over windows of an image `[C, H, W]`.

    It is the maximum of one image for each place in the window.
    """
    decomposition = Decomposition(in_shape)
    rows, columns = (_window_pixels(in_shape[k + 1], windows, k) for k in (0, 1))
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
            candidates.append(decomposition.add(_window_shift(in_shape, windows, (i, j), like), 0))
        else:
            places = places_of(in_shape, like)[:, rows[:, i]][:, :, columns[:, j]]
            candidates.append(decomposition.add(Pick.of(places, in_shape), 0))
    best = largest(decomposition, candidates)
    assert best == len(decomposition.shapes) - 1
    return decomposition


def _window_shift(in_shape: Shape, windows: PoolWindows, at: Pair, like: Tensor) -> WindowShift:
    """Return the convolution that picks the pixel `at` of every window."""
    channels = in_shape[0]
    weight = like.new_zeros(channels, 1, *windows.kernel)
    weight[:, :, at[0], at[1]] = 1
    out_shape = (channels, *windows.size)
    return WindowShift(weight, None, in_shape, out_shape, windows.stride, (0, 0), windows.dilation, channels)


def _window_pixels(size: int, windows: PoolWindows, axis: int) -> Tensor:
    """Return the pixels of each window along an axis, `[out, kernel]`.

    A pixel beyond the border is replaced by one inside.
    """
    steps = torch.arange(windows.size[axis]) * windows.stride[axis] - windows.padding[axis]
    found = steps[:, None] + torch.arange(windows.kernel[axis]) * windows.dilation[axis]
    inside = (found >= 0) & (found < size)
    if not bool(inside.any(1).all()):
        raise ValueError("a window of a maximum lies beyond the border")
    first = found.gather(1, inside.long().argmax(1, keepdim=True))
    return torch.where(inside, found, first)


@rule(
    "aten.max_pool2d.default",
    "aten.max_pool1d.default",
    family="maximum",
    onnx=("MaxPool", "GlobalMaxPool"),
    by_shape=("ceil_mode",),
    examples=(
        Example("max-pool", (1, 4, 4), lambda: pooled((1, 4, 4), nn.MaxPool2d(2))),
        Example("max-pool-overlap", (1, 5, 5), lambda: pooled((1, 5, 5), nn.MaxPool2d(3, stride=2, padding=1))),
        Example("max-pool-1d", (2, 6), lambda: classified((2, 6), nn.MaxPool1d(3, stride=2))),
    ),
)
def _max_pool(call: Call) -> Decomposition:
    flat = "1d" in call.target
    size = call.get(1, "kernel_size")
    kernel, stride = pair_of(size, flat, 1), pair_of(call.get(2, "stride") or size, flat, 1)
    padding, dilation = pair_of(call.get(3, "padding", 0), flat, 0), pair_of(call.get(4, "dilation", 1), flat, 1)
    shapes = [as_image(shape) if flat else shape for shape in (call.in_shapes[0], call.out_shape)]
    windows = PoolWindows(kernel, stride, padding, dilation, (shapes[1][1], shapes[1][2]))
    pooled = max_pool(shapes[0], windows, call.like)
    return in_lines(pooled, call) if flat else pooled
