"""Average pooling: a convolution of each channel with itself alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from polycert.rules.conv2d import Conv2d
from polycert.rules.conv_adjoint import Pair
from polycert.rules.op import Call, rule


@dataclass(frozen=True, eq=False)
class AvgPool2d(Conv2d):
    """Mean over windows; its weights 1 / (kh kw) are rounded numbers."""

    stored_weights: bool = False


def _pool(call: Call, kernel: Pair, stride: Pair, padding: Pair) -> AvgPool2d:
    channels = call.in_shapes[0][0]
    weight = torch.full(
        (channels, 1, *kernel), 1 / (kernel[0] * kernel[1]), dtype=call.like.dtype, device=call.like.device
    )
    return AvgPool2d(weight, None, call.in_shapes[0], call.out_shape, stride, padding, (1, 1), groups=channels)


def _two(values: int | list[int]) -> Pair:
    return (values, values) if isinstance(values, int) else (values[0], values[-1])


@rule("aten.avg_pool2d.default")
def _avg_pool2d(call: Call) -> AvgPool2d:
    kernel = _two(call.get(1, "kernel_size"))
    stride, padding = _two(call.get(2, "stride") or list(kernel)), _two(call.get(3, "padding", 0))
    ceil, divisor = call.get(4, "ceil_mode", False), call.get(6, "divisor_override")
    if ceil or divisor is not None:
        raise ValueError("avg_pool2d with ceil_mode or divisor_override is not supported")
    padded_count = call.get(5, "count_include_pad", True)
    if padding != (0, 0) and not padded_count:
        raise ValueError("avg_pool2d with padding needs count_include_pad=True")
    return _pool(call, kernel, stride, padding)


@rule("aten.adaptive_avg_pool2d.default")
def _adaptive_avg_pool2d(call: Call) -> AvgPool2d:
    sizes, outputs = call.in_shapes[0][1:], call.out_shape[1:]
    if any(size % out for size, out in zip(sizes, outputs, strict=True)):
        raise ValueError("adaptive_avg_pool2d needs an input size that is a multiple of the output size")
    kernel = (sizes[0] // outputs[0], sizes[1] // outputs[1])
    return _pool(call, kernel, kernel, (0, 0))
