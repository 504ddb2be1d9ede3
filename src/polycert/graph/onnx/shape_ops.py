"""Converters of ONNX ops that move entries: shapes, slices, joins, padding."""

from __future__ import annotations

import math

import numpy as np
import torch

from polycert.errors import PolycertError
from polycert.graph.onnx.builder import (
    GraphBuilder,
    Inputs,
    Known,
    OnnxValue,
    constant,
    converts,
    floats,
    inner,
    variable,
)
from polycert.graph.onnx.constant_folding import (
    axes_of,
    axis_of,
    checked_index,
    common_shape,
    integers,
    reshaped,
    scalar,
    slices_of,
    squeezed,
    unsqueezed,
)
from polycert.graph.onnx.elementwise import shifted
from polycert.graph.onnx.program import OnnxCall, Shape, checked_shape
from polycert.rules.indexing import NOTHING, Concat, Permute


@converts("Flatten")
def _flatten(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    axis = int(call.get("axis", 1))
    axis = axis if axis == len(x.shape) else axis_of(axis, len(x.shape), call)
    return b.reshape(call, x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@converts("Reshape")
def _reshape(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    return b.reshape(call, x, reshaped(x.shape, integers(floats(call, inputs, 1), f"the shape of {call}"), call))


@converts("Squeeze")
def _squeeze(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    return b.reshape(call, x, squeezed(x.shape, axes_of(call, list(inputs), b.opset, 13), call))


@converts("Unsqueeze")
def _unsqueeze(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    return b.reshape(call, x, unsqueezed(x.shape, axes_of(call, list(inputs), b.opset, 13), call))


@converts("Transpose")
def _transpose(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    order = [int(k) for k in call.get("perm", range(len(x.shape))[::-1])]
    if sorted(order) != list(range(len(x.shape))):
        raise PolycertError(f"{call} has an order {order} of {len(x.shape)} axes")
    return permuted(b, call, x, order)


def permuted(b: GraphBuilder, call: OnnxCall, x: OnnxValue, order: list[int]) -> OnnxValue:
    """Return the value with its axes in another order, as the file counts them."""
    shape = tuple(x.shape[k] for k in order)
    if order == sorted(order):
        return x
    if order[0] == 0 and inner(x.shape) == x.shape[1:]:
        op = Permute(x.shape[1:], shape[1:], tuple(k - 1 for k in order[1:]))
        return b.put(call, op, shape, b.view(call, x, x.shape[1:]))
    moved = b.put(call, Permute(x.shape, shape, tuple(order)), shape, b.view(call, x, x.shape))
    return b.reshape(call, moved, shape)


@converts("Slice")
def _slice(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    places = b.places(x).numpy()[slices_of(call, list(inputs), x.shape, b.opset)]
    return b.pick(call, x, torch.from_numpy(places.copy()))


@converts("Gather")
def _gather(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    index = checked_index(call, floats(call, inputs, 1), x.shape)
    places = np.take(b.places(x).numpy(), index, axis=axis_of(call.get("axis", 0), len(x.shape), call))
    return b.pick(call, x, torch.from_numpy(places))


@converts("Split")
def _split(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> list[Known]:
    """Return parts along an axis; a part without entries is a constant."""
    x = variable(call, inputs[0])
    axis = axis_of(call.get("axis", 0), len(x.shape), call)
    if call.get("num_outputs", len(call.outputs)) != len(call.outputs):
        raise PolycertError(f"{call} has {len(call.outputs)} outputs, not the {call.get('num_outputs')} that it names")
    given = call.get("split") if b.opset < 13 else constant(call, inputs, 1)
    if given is None:
        size = -(-x.shape[axis] // len(call.outputs))
        sizes = [size] * (len(call.outputs) - 1)
        sizes.append(x.shape[axis] - sum(sizes))
    else:
        sizes = integers(given, f"the sizes of {call}")
    if sum(sizes) != x.shape[axis] or min(sizes) < 0 or len(sizes) != len(call.outputs):
        raise PolycertError(f"{call} splits {x.shape[axis]} into {sizes} for {len(call.outputs)} outputs")
    parts = b.places(x).split(sizes, axis)
    return [b.pick(call, x, part.contiguous()) if part.numel() else np.zeros(part.shape) for part in parts]


@converts("Expand")
def _expand(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    wanted = tuple(integers(floats(call, inputs, 1), f"the shape of {call}"))
    return b.expand(call, x, common_shape(call, x.shape, wanted))


@converts("Concat")
def _concat(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    """Join values along any axis. Constant parts become zeros with a bias, and parts without entries are left out."""
    shapes = [value.shape for value in inputs if value is not None]
    axis = axis_of(call.get("axis", 0), len(shapes[0]), call)
    for shape in shapes:
        if len(shape) != len(shapes[0]) or any(
            n != m for k, (n, m) in enumerate(zip(shape, shapes[0], strict=True)) if k != axis
        ):
            raise PolycertError(f"{call} joins shapes that do not fit")
    total = checked_shape(
        [sum(s[axis] for s in shapes) if k == axis else n for k, n in enumerate(shapes[0])], str(call)
    )
    first = next(value for value in inputs if isinstance(value, OnnxValue))
    kept = [value for value in inputs if value is not None and 0 not in value.shape]
    parts = [
        b.view(call, value, value.shape) if isinstance(value, OnnxValue) else _nothing(b, call, first, value.shape)
        for value in kept
    ]
    joined = b.put(call, Concat(tuple(value.shape for value in kept), axis), total, *parts)
    joined = b.reshape(call, joined, total)
    if all(isinstance(value, OnnxValue) for value in kept):
        return joined
    offsets = [np.zeros(value.shape) if isinstance(value, OnnxValue) else value for value in kept]
    return shifted(b, call, joined, None, np.concatenate(offsets, axis))


def _nothing(b: GraphBuilder, call: OnnxCall, source: OnnxValue, shape: Shape) -> int:
    """Return a node of zeros."""
    zeros = b.pick(call, source, torch.full(shape, NOTHING))
    return b.view(call, zeros, shape)


@converts("Pad")
def _pad(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    if call.get("mode", "constant") != "constant":
        raise PolycertError(f"{call} pads by {call.get('mode')!r}: only constants are supported")
    given = call.get("pads") if b.opset < 11 else floats(call, inputs, 1)
    pads = integers(given, f"the sizes of {call}")
    axes = list(range(len(x.shape)))
    if b.opset >= 18 and (chosen := constant(call, inputs, 3)) is not None:
        axes = [axis_of(k, len(x.shape), call) for k in integers(chosen, f"the axes of {call}")]
    value = call.get("value", 0.0) if b.opset < 11 else constant(call, inputs, 2)
    number = 0.0 if value is None else scalar(call, value)
    if len(pads) != 2 * len(axes):
        raise PolycertError(f"{call} has {len(pads)} sizes for {len(axes)} axes")
    before, after = [0] * len(x.shape), [0] * len(x.shape)
    for k, axis in enumerate(axes):
        before[axis], after[axis] = pads[k], pads[k + len(axes)]
    return padded(b, call, x, before, after, number)


def padded(
    b: GraphBuilder, call: OnnxCall, x: OnnxValue, before: list[int], after: list[int], number: float
) -> OnnxValue:
    """Return the value with constants around it; negative sizes crop."""
    if not any(before) and not any(after):
        return x
    checked_shape([n + max(s, 0) + max(e, 0) for n, s, e in zip(x.shape, before, after, strict=True)], str(call))
    places = b.places(x).numpy()
    keep = tuple(slice(max(-s, 0), n - max(-e, 0)) for n, s, e in zip(x.shape, before, after, strict=True))
    around = [(max(s, 0), max(e, 0)) for s, e in zip(before, after, strict=True)]
    wide = np.pad(places[keep], around, constant_values=NOTHING)
    made = b.pick(call, x, torch.from_numpy(wide))
    return made if number == 0 else shifted(b, call, made, None, np.where(wide == NOTHING, number, 0.0))
