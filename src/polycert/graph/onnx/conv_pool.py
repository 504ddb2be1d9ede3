"""Converters of convolutions and pooling: windows that slide over one or two axes."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from polycert.errors import PolycertError
from polycert.graph.onnx.arithmetic import reduced
from polycert.graph.onnx.builder import GraphBuilder, Inputs, OnnxValue, constant, converts, floats, variable
from polycert.graph.onnx.elementwise import shifted
from polycert.graph.onnx.program import LARGEST_VALUE, OnnxCall, Shape, checked_shape
from polycert.rules.conv2d import Conv2d, ConvTranspose2d
from polycert.rules.pooling import AvgPool2d, PoolWindows, max_pool

Pair = tuple[int, int]


class SlidingWindow(NamedTuple):
    """How windows slide over an image. A file's image with one axis becomes an image of one line."""

    image: Shape  # [C, H, W]
    kernel: Pair
    stride: Pair
    before: Pair
    after: Pair
    dilation: Pair
    flat: bool  # the file's image has one axis

    def size(self, *, ceil: bool = False) -> Pair:
        """Return the number of windows along each axis."""
        first, second = (self._count(k, ceil) for k in (0, 1))
        return first, second

    def _count(self, k: int, ceil: bool) -> int:
        reach = self.dilation[k] * (self.kernel[k] - 1) + 1
        total = self.image[k + 1] + self.before[k] + self.after[k]
        count = (total - reach) // self.stride[k] + 1
        if ceil and (total - reach) % self.stride[k] and count * self.stride[k] < self.image[k + 1] + self.before[k]:
            count += 1  # a last window that starts inside
        if count < 1:
            raise PolycertError("a window is larger than the image")
        return count

    def shape(self, channels: int, size: Pair) -> Shape:
        """Return the shape of a result in the file."""
        return (1, channels, size[1]) if self.flat else (1, channels, *size)


def _pair(values: list[int], default: int) -> Pair:
    """Return the numbers for both axes; an image of one line has `default` across."""
    if len(values) not in (1, 2) or any(not 0 <= int(n) <= LARGEST_VALUE for n in values):
        raise PolycertError(f"windows over two axes need two sizes, got {values[:4]}")
    return (default, int(values[0])) if len(values) == 1 else (int(values[0]), int(values[1]))


def _geometry(call: OnnxCall, x: OnnxValue, kernel: list[int]) -> SlidingWindow:
    """Read the attributes that convolutions and pools share."""
    axes = len(x.shape) - 2
    if axes not in (1, 2) or x.shape[0] != 1 or len(kernel) != axes:
        raise PolycertError(f"{call} needs one image of one or two axes, got shape {list(x.shape)}")
    ones = [1] * axes
    strides, dilations = call.get("strides", ones), call.get("dilations", ones)
    pads = [int(n) for n in call.get("pads", [0] * (2 * axes))]
    if len(pads) != 2 * axes or 0 in strides or 0 in dilations or 0 in kernel:
        raise PolycertError(f"{call} has pads, strides or kernel that do not fit its image")
    image = (x.shape[1], 1, x.shape[2]) if axes == 1 else x.shape[1:]
    auto = call.get("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        if call.op != "Conv" and any(n != 1 for n in dilations):
            raise PolycertError(f"{call} pads by {auto!r} and is dilated, which runtimes read in different ways")
        pads = _same(image[3 - axes :], kernel, strides, dilations, upper=auto == "SAME_UPPER")
    elif auto == "VALID":
        pads = [0] * (2 * axes)
    return SlidingWindow(
        image,
        _pair(kernel, 1),
        _pair(strides, 1),
        _pair(pads[:axes], 0),
        _pair(pads[axes:], 0),
        _pair(dilations, 1),
        axes == 1,
    )


def _same(sizes: Shape, kernel: list[int], strides: list[int], dilations: list[int], *, upper: bool) -> list[int]:
    """Return the pads that make the output as large as the input divided by the stride."""
    before, after = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + dilation * (k - 1) + 1 - size, 0)
        small, large = total // 2, total - total // 2
        before.append(small if upper else large)
        after.append(large if upper else small)
    return before + after


def _even(weight: torch.Tensor, geo: SlidingWindow) -> tuple[torch.Tensor, SlidingWindow]:
    """Return the same convolution with as much padding before as after; its kernel gets lines of zeros instead."""
    if geo.before == geo.after:
        return weight, geo
    if geo.dilation != (1, 1):
        raise PolycertError("uneven padding of a dilated convolution is not supported")
    front = [max(geo.after[k] - geo.before[k], 0) for k in (0, 1)]
    back = [max(geo.before[k] - geo.after[k], 0) for k in (0, 1)]
    wide = torch.nn.functional.pad(weight, (front[1], back[1], front[0], back[0]))
    pads = (max(geo.before[0], geo.after[0]), max(geo.before[1], geo.after[1]))
    return wide, geo._replace(kernel=(wide.shape[2], wide.shape[3]), before=pads, after=pads)


@converts("Conv")
def _conv(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x, weight, offset = variable(call, inputs[0]), floats(call, inputs, 1), constant(call, inputs, 2)
    groups = int(call.get("group", 1))
    geo = _geometry(call, x, [int(n) for n in weight.shape[2:]])
    if groups < 1 or weight.shape[1] * groups != geo.image[0] or weight.shape[0] % groups:
        raise PolycertError(f"{call} has weights of shape {list(weight.shape)} for {geo.image[0]} channels")
    wide, even = _even(b.tensor(call, weight).reshape(*weight.shape[:2], *geo.kernel), geo)
    size = even.size()
    shape = checked_shape(geo.shape(weight.shape[0], size), str(call))
    op = Conv2d(
        wide,
        None if offset is None else b.tensor(call, offset).reshape(weight.shape[0]),
        geo.image,
        (weight.shape[0], *size),
        geo.stride,
        even.before,
        geo.dilation,
        groups,
    )
    return b.reshape(call, b.put(call, op, shape, b.view(call, x, geo.image)), shape)


@converts("ConvTranspose")
def _conv_transpose(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x, weight, offset = variable(call, inputs[0]), floats(call, inputs, 1), constant(call, inputs, 2)
    groups = int(call.get("group", 1))
    geo = _geometry(call, x, [int(n) for n in weight.shape[2:]])
    if call.get("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in call.attributes or geo.before != geo.after:
        raise PolycertError(f"{call} needs even pads given as numbers")
    if weight.shape[0] != geo.image[0] or groups < 1 or weight.shape[0] % groups:
        raise PolycertError(f"{call} has weights of shape {list(weight.shape)} for {geo.image[0]} channels")
    extra = _pair([int(n) for n in call.get("output_padding", [0] * (len(x.shape) - 2))], 0)
    if any(e >= max(s, d) for e, s, d in zip(extra, geo.stride, geo.dilation, strict=True)):
        raise PolycertError(f"{call} has an output padding that is not below its stride")
    size = tuple(
        (geo.image[k + 1] - 1) * geo.stride[k]
        - 2 * geo.before[k]
        + geo.dilation[k] * (geo.kernel[k] - 1)
        + 1
        + extra[k]
        for k in (0, 1)
    )
    channels = weight.shape[1] * groups
    if min(size) < 1:
        raise PolycertError(f"{call} gives an empty image")
    shape = checked_shape(geo.shape(channels, (size[0], size[1])), str(call))
    base = Conv2d(
        b.tensor(call, weight).reshape(*weight.shape[:2], *geo.kernel),
        None,
        (channels, *size),
        geo.image,
        geo.stride,
        geo.before,
        geo.dilation,
        groups,
    )
    op = ConvTranspose2d(base, None if offset is None else b.tensor(call, offset).reshape(channels))
    return b.reshape(call, b.put(call, op, shape, b.view(call, x, geo.image)), shape)


@converts("AveragePool")
def _average_pool(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    geo = _geometry(call, x, [int(n) for n in call.get("kernel_shape", [])])
    if geo.size(ceil=bool(call.get("ceil_mode", 0))) != geo.size():
        raise PolycertError(f"{call} with ceil_mode has windows that reach beyond its padding, which is not supported")
    channels = geo.image[0]
    mean = b.like.new_full((channels, 1, *geo.kernel), 1 / math.prod(geo.kernel))
    wide, even = _even(mean, geo)
    size = even.size()
    op = AvgPool2d(wide, None, geo.image, (channels, *size), geo.stride, even.before, geo.dilation, channels)
    shape = checked_shape(geo.shape(channels, size), str(call))
    made = b.reshape(call, b.put(call, op, shape, b.view(call, x, geo.image)), shape)
    if call.get("count_include_pad", 0) or not any((*geo.before, *geo.after)):
        return made
    seen = _inside(geo, 0)[:, None] * _inside(geo, 1)
    if (seen == 0).any():
        raise PolycertError(f"{call} has windows that lie beyond the border")
    return shifted(b, call, made, (math.prod(geo.kernel) / seen).reshape(shape[2:]), None, stored=False)


def _inside(geo: SlidingWindow, k: int) -> np.ndarray:
    """Return how many pixels of each window along an axis lie inside the image."""
    start = np.arange(geo.size()[k]) * geo.stride[k] - geo.before[k]
    at = start[:, None] + np.arange(geo.kernel[k]) * geo.dilation[k]
    return np.asarray(((at >= 0) & (at < geo.image[k + 1])).sum(1), dtype=np.float64)


@converts("MaxPool")
def _max_pool(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    geo = _geometry(call, x, [int(n) for n in call.get("kernel_shape", [])])
    size = geo.size(ceil=bool(call.get("ceil_mode", 0)))
    checked_shape((*geo.image[:1], *size, *geo.kernel), str(call))
    decomposition = max_pool(geo.image, PoolWindows(geo.kernel, geo.stride, geo.before, geo.dilation, size), b.like)
    shape = geo.shape(geo.image[0], size)
    return b.reshape(call, b.put(call, decomposition, shape, b.view(call, x, geo.image)), shape)


@converts("GlobalAveragePool")
def _global_average(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    return reduced(b, call, x, range(2, len(x.shape)), mean=True, keep=True)


@converts("GlobalMaxPool")
def _global_max(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    return _max_pool(
        b, OnnxCall("MaxPool", call.name, call.inputs, call.outputs, {"kernel_shape": x.shape[2:]}), inputs
    )
