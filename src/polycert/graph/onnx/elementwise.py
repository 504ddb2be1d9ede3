"""Converters of ops that are applied to each entry: `factor x + shift`, clipping, activations.

The bounds cover the relative rounding of a computed coefficient, and its absolute rounding is part of the shift's size.
No term covers a factor that underflows or overflows, so such a factor is written as two that do not.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polycert.errors import PolycertError
from polycert.graph.onnx.builder import GraphBuilder, Inputs, OnnxValue, constant, converts, floats, variable
from polycert.graph.onnx.constant_folding import FLOAT_TYPES, axis_of, broadcast_to, common_shape, scalar
from polycert.graph.onnx.program import OnnxCall, checked_shape
from polycert.rules.affine import Add, Elementwise
from polycert.rules.arithmetic import softmax
from polycert.rules.bump import Gelu, TanhGelu
from polycert.rules.convex import Elu, Square
from polycert.rules.piecewise_linear import LeakyRelu, Relu

FAR = 2.0**8  # adding and subtracting a larger threshold costs digits of the value


def shifted(
    b: GraphBuilder, call: OnnxCall, x: OnnxValue, factor: Any, shift: Any, *, stored: bool = True, parts: Any = None
) -> OnnxValue:
    """Return `factor x + shift`, with the constants broadcast to the value's shape.

    Args:
        b: the graph so far.
        call: the op that asks for it.
        x: a value of the result's shape.
        factor: numbers, or None for 1.
        shift: numbers, or None for 0.
        stored: whether the factor is a number of the file; else it was computed in float64.
        parts: sizes of the numbers that the shift was computed from in float64; None if it is a number of the file.
    """
    factors = [] if factor is None else _factors(b, call, broadcast_to(call, factor, x.shape))
    for early in factors[:-1]:
        x = _elementwise(b, call, x, early, None, stored=False)
    last = factors[-1] if factors else None
    kept = stored and last is not None and np.array_equal(last.double().cpu(), broadcast_to(call, factor, x.shape))
    if shift is None:
        return _elementwise(b, call, x, last, None, stored=kept)
    wide = broadcast_to(call, shift, x.shape)
    if parts is None:
        return _elementwise(b, call, x, last, b.tensor(call, wide), stored=kept)
    sizes = b.rounded(call, 2 * broadcast_to(call, parts, x.shape)) + _underflow(b)
    return _elementwise(b, call, x, last, b.rounded(call, wide), stored=kept, sizes=sizes)


def _elementwise(
    b: GraphBuilder,
    call: OnnxCall,
    x: OnnxValue,
    factor: Tensor | None,
    shift: Tensor | None,
    *,
    stored: bool,
    sizes: Any = None,
) -> OnnxValue:
    """Append `factor x + shift` for tensors of as many entries as `x` has."""
    shape = b.nodes[x.index].shape
    rows = [None if part is None else part.reshape(1, *shape) for part in (factor, shift, sizes)]
    op = Elementwise(rows[0], rows[1], shape, shift_magnitude=rows[2], stored_weights=stored)
    return b.put(call, op, x.shape, x)


def _underflow(b: GraphBuilder) -> float:
    """Return a size of which one rounding is more than what underflow can take from a shift."""
    kind = torch.finfo(b.like.dtype)
    return kind.tiny / kind.eps * 4


def _factors(b: GraphBuilder, call: OnnxCall, factor: np.ndarray) -> list[Tensor]:
    """Return the factor in the graph's type, or `f 2^-k` and `2^k` if it would leave the range of normal numbers."""
    wide = np.asarray(factor, dtype=np.float64)
    near = torch.from_numpy(wide.copy()).to(b.like)
    inside = torch.isfinite(near) & (near.abs() >= torch.finfo(near.dtype).tiny)
    if bool((inside.cpu() | torch.from_numpy(near.double().cpu().numpy() == wide)).all()):
        return [near]
    digits, exponent = np.frexp(wide)
    half = exponent // 2
    halves = [b.rounded(call, np.ldexp(digits, exponent - half)), b.rounded(call, np.ldexp(1.0, half))]
    if any(bool(((part.abs().cpu() < torch.finfo(near.dtype).tiny).numpy() & (wide != 0)).any()) for part in halves):
        raise PolycertError(f"{call} multiplies by numbers as small as {np.abs(wide[wide != 0]).min():.3g}")
    return halves


def ratio(call: OnnxCall, top: Any, bottom: Any) -> np.ndarray:
    """Return `top / bottom` in float64, with no more than a relative error."""
    above, below = np.asarray(top, dtype=np.float64), np.asarray(bottom, dtype=np.float64)
    with np.errstate(all="ignore"):
        found = np.asarray(above / below)
    normal = np.isfinite(found) & (np.abs(found) >= np.finfo(np.float64).tiny)
    if not (normal | (np.broadcast_to(above, found.shape) == 0) & np.isfinite(found)).all():
        raise PolycertError(f"{call} multiplies by a ratio that float64 cannot hold")
    return found


def clip_below(b: GraphBuilder, call: OnnxCall, x: OnnxValue, low: np.ndarray) -> OnnxValue:
    """Return `max(x, low)` as `low + relu(x - low)`.

    If a threshold is far from 0, it is `x + relu(low - x)`, which is exact where x is larger.
    """
    if not low.any():
        return _relu(b, call, x)
    if np.abs(low).max() <= FAR:
        return shifted(b, call, _relu(b, call, shifted(b, call, x, None, -low)), None, low)
    return _sum(b, call, x, 1, _relu(b, call, shifted(b, call, x, -1.0, low)))


def clip_above(b: GraphBuilder, call: OnnxCall, x: OnnxValue, high: np.ndarray) -> OnnxValue:
    """Return `min(x, high)` as `high - relu(high - x)`.

    If a threshold is far from 0, it is `x - relu(x - high)`, which is exact where x is smaller.
    """
    if np.abs(high).max() <= FAR:
        return shifted(b, call, _relu(b, call, shifted(b, call, x, -1.0, high)), -1.0, high)
    return _sum(b, call, x, -1, _relu(b, call, shifted(b, call, x, None, -high)))


def _relu(b: GraphBuilder, call: OnnxCall, x: OnnxValue) -> OnnxValue:
    return b.put(call, Relu(b.nodes[x.index].shape), x.shape, x)


def _sum(b: GraphBuilder, call: OnnxCall, first: OnnxValue, sign: int, second: OnnxValue) -> OnnxValue:
    return b.put(call, Add(b.nodes[first.index].shape, (1, sign)), first.shape, first, second)


@converts("LeakyRelu")
def _leaky(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    return b.put(call, LeakyRelu(b.nodes[x.index].shape, leak=call.number("alpha", 0.01)), x.shape, x)


@converts("Gelu")
def _gelu(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    """Convert GELU. Its version by tanh is read in float32 only.

    ONNX defines that version with constants in float32, which is another function in float64.
    """
    x = variable(call, inputs[0])
    shape = b.nodes[x.index].shape
    if call.get("approximate") != "tanh":
        return b.put(call, Gelu(shape), x.shape, x)
    if b.program.input_type is np.float64:
        raise PolycertError(
            f"{call} is defined with constants in float32, which is not the function in double precision"
        )
    return b.put(call, TanhGelu(shape), x.shape, x)


@converts("Identity")
def _identity(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    return variable(call, inputs[0])


@converts("Dropout")
def _dropout(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    """Convert dropout, which does nothing in evaluation. In training mode it is random unless its ratio is 0."""
    mode, share = constant(call, inputs, 2), constant(call, inputs, 1)
    training = call.get("is_test", 1) == 0 if mode is None else scalar(call, mode) != 0
    ratio = call.number("ratio", 0.5) if share is None else scalar(call, share)
    if training and ratio != 0:
        raise PolycertError(f"{call} is in training mode, which is random: export the model in evaluation mode")
    return variable(call, inputs[0])


@converts("Cast")
def _cast(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    if call.get("to") not in FLOAT_TYPES:
        raise PolycertError(f"{call} casts the network's values to another kind of number, which is not continuous")
    return variable(call, inputs[0])


@converts("Elu")
def _elu(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    if call.number("alpha", 1.0) != 1:
        raise PolycertError(f"{call} is supported with alpha 1 only")
    x = variable(call, inputs[0])
    return b.put(call, Elu(b.nodes[x.index].shape), x.shape, x)


@converts("Clip")
def _clip(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    most = float(np.finfo(np.float32).max)  # ONNX's default while the ends were attributes
    early = [call.get("min", -most), call.get("max", most)]
    ends = early if b.opset < 11 else [constant(call, inputs, k) for k in (1, 2)]
    low, high = (side * math.inf if end is None else scalar(call, end) for side, end in zip((-1, 1), ends, strict=True))
    if not low <= high:
        raise PolycertError(f"{call} has a minimum above its maximum")
    return _clip_between(b, call, x, low, high)


def _clip_between(b: GraphBuilder, call: OnnxCall, x: OnnxValue, low: float, high: float) -> OnnxValue:
    """Return `min(max(x, low), high)`. The ends of the value's type are no limits in ONNX."""
    largest = float(np.finfo(b.program.widest).max)
    if low > -largest:
        x = clip_below(b, call, x, np.asarray(low))
    return clip_above(b, call, x, np.asarray(high)) if high < largest else x


@converts("HardSigmoid")
def _hard_sigmoid(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    line = shifted(b, call, x, call.number("alpha", 0.2), call.number("beta", 0.5))
    return _clip_between(b, call, line, 0.0, 1.0)


@converts("PRelu")
def _prelu(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    """Convert to `relu(x) - leak relu(-x)`, with a leak for each channel."""
    x, leak = variable(call, inputs[0]), floats(call, inputs, 1)
    shape = b.nodes[x.index].shape
    right = b.put(call, Relu(shape), x.shape, x)
    left = b.put(call, Relu(shape), x.shape, shifted(b, call, x, -1.0, None))
    return b.put(call, Add(shape, (1, -1)), x.shape, right, shifted(b, call, left, leak, None))


@converts("Pow")
def _pow(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x, power = variable(call, inputs[0]), floats(call, inputs, 1)
    if not power.size or (power != 2).any():
        raise PolycertError(f"{call} is supported for the power 2 only")
    wide = b.expand(call, x, common_shape(call, x.shape, power.shape))
    return b.put(call, Square(b.nodes[wide.index].shape), wide.shape, wide)


@converts("Softmax")
def _softmax(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    axis = axis_of(call.get("axis", 1 if b.opset < 13 else -1), len(x.shape), call)
    if axis != len(x.shape) - 1:
        raise PolycertError(f"{call} is supported over the last axis only")
    checked_shape((*x.shape, x.shape[-1]), str(call))
    return b.put(call, softmax(b.nodes[x.index].shape, b.like), x.shape, x)
