"""Calls that become convolutions. A convolution of lines `[C, L]` is one of images with one line `[C, 1, L]`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polycert.forms import Shape
from polycert.rules.conv2d import Conv2d, ConvTranspose2d
from polycert.rules.conv_adjoint import Pair
from polycert.rules.examples import Example, classified, conv, op_named, through
from polycert.rules.indexing import Reshape
from polycert.rules.op import Affine, Decomposition, Op
from polycert.rules.registry import Call, rule


def _general(z: Tensor) -> Any:
    weight = torch.full((3, 2, 3, 3), 0.125, dtype=z.dtype)
    return op_named("aten.convolution.default")(z, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)


def _example(name: str, shape: Shape, *args: Any, **options: Any) -> Example:
    return Example(f"conv-{name}", shape, lambda: conv(shape, *args, **options))


@rule(
    "aten.conv2d.default",
    "aten.conv2d.padding",
    "aten.convolution.default",
    family="affine",
    onnx=("Conv",),
    layers={"conv2d": nn.Conv2d},
    by_shape=("output_padding",),
    examples=(
        _example("plain", (2, 4, 4), 3, 3),
        _example("padding", (1, 5, 5), 2, 3, padding=1),
        _example("same", (1, 4, 5), 2, (3, 1), padding="same"),
        _example("stride", (1, 6, 7), 3, 3, stride=2),
        _example("left-over", (1, 7, 6), 3, 2, stride=3, padding=(1, 0)),
        _example("uneven", (1, 6, 5), 2, (2, 3), stride=(2, 1), padding=(0, 2)),
        _example("dilation", (1, 6, 6), 2, 2, dilation=3, padding=1),
        _example("groups", (4, 3, 4), 6, 2, groups=2, classes=5),
        _example("depthwise", (3, 4, 4), 3, 3, groups=3, stride=2, padding=1, bias=False),
        through("convolution", (2, 4, 4), _general, slow=True),
    ),
)
def _conv2d(call: Call) -> Affine:
    weight = call.get(1, "weight")
    if weight.dim() != 4 or call.get(6, "transposed", False) is True:
        raise ValueError("only two-dimensional convolutions, not transposed, are supported")
    stride, dilation = pair_of(call.get(3, "stride", 1)), pair_of(call.get(5, "dilation", 1))
    padding = call.get(4, "padding", 0)
    if isinstance(padding, str):
        padding = same_padding(padding, weight, dilation)
    groups = call.args[8] if call.target == "aten.convolution.default" else call.get(6, "groups", 1)
    return Conv2d(
        weight, call.get(2, "bias"), call.in_shapes[0], call.out_shape, stride, pair_of(padding), dilation, int(groups)
    )


def same_padding(name: str, weight: Tensor, dilation: Pair) -> Pair:
    """Return the padding that a name stands for."""
    if name == "valid":
        return (0, 0)
    total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    if any(t % 2 for t in total):
        raise ValueError("padding='same' with an even kernel is one-sided; pad the input instead")
    return (total[0] // 2, total[1] // 2)


def as_image(shape: Shape) -> Shape:
    """Return `[C, L]` as `[C, 1, L]`."""
    return (shape[0], 1, shape[1])


def pair_of(value: int | Sequence[int], flat: bool = False, default: int = 1) -> Pair:
    """Return a number for each of two axes; a line has `default` across."""
    values = [value] if isinstance(value, int) else list(value)
    return (default, int(values[-1])) if flat else (int(values[0]), int(values[-1]))


def in_lines(op: Op | Decomposition, call: Call) -> Decomposition:
    """Return an op on images of one line, applied to lines."""
    decomposition = Decomposition(call.in_shapes[0])
    image = decomposition.add(Reshape(call.in_shapes[0], as_image(call.in_shapes[0])), 0)
    made = decomposition.add(op, image) if isinstance(op, Op) else decomposition.follow(op, image)
    decomposition.add(Reshape(decomposition.shapes[made], call.out_shape), made)
    return decomposition


@rule(
    "aten.conv1d.default",
    "aten.conv1d.padding",
    family="affine",
    examples=(
        Example("conv-1d", (2, 6), lambda: classified((2, 6), nn.Conv1d(2, 3, 3, stride=2, padding=1), nn.ReLU())),
        Example("conv-1d-same", (2, 6), lambda: classified((2, 6), nn.Conv1d(2, 3, 3, padding="same")), slow=True),
    ),
)
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


def _transposed(name: str, shape: Shape, layer: Callable[[], nn.Module]) -> Example:
    return Example(f"transposed{name}", shape, lambda: classified(shape, layer(), nn.ReLU()))


@rule(
    "aten.conv_transpose2d.input",
    "aten.conv_transpose1d.default",
    family="affine",
    onnx=("ConvTranspose",),
    by_shape=("output_padding",),
    examples=(
        _transposed("", (2, 3, 3), lambda: nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1, output_padding=1)),
        _transposed("-groups", (2, 2, 3), lambda: nn.ConvTranspose2d(2, 4, 2, groups=2, dilation=2, bias=False)),
        _transposed("-1d", (2, 3), lambda: nn.ConvTranspose1d(2, 2, 3, stride=2)),
    ),
)
def _conv_transpose(call: Call) -> ConvTranspose2d | Decomposition:
    weight, offset, groups = call.get(1, "weight"), call.get(2, "bias"), call.get(6, "groups", 1)
    stride, padding, dilation = call.get(3, "stride", 1), call.get(4, "padding", 0), call.get(7, "dilation", 1)
    flat = weight.dim() == 3
    shapes = [as_image(shape) if flat else shape for shape in (call.in_shapes[0], call.out_shape)]
    pairs = [pair_of(value, flat, default) for value, default in ((stride, 1), (padding, 0), (dilation, 1))]
    kernel = weight.unsqueeze(2) if flat else weight
    base = Conv2d(kernel, None, shapes[1], shapes[0], pairs[0], pairs[1], pairs[2], int(groups))
    return in_lines(ConvTranspose2d(base, offset), call) if flat else ConvTranspose2d(base, offset)
