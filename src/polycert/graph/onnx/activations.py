"""ONNX ops of one entry each: activations, and what does nothing in evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from polycert.errors import PolycertError
from polycert.graph.onnx.builder import GraphBuilder, OnnxValue
from polycert.graph.onnx.constant_folding import FLOAT_TYPES, axis_of, common_shape, scalar
from polycert.graph.onnx.op_registry import TABLE, Entry, Inputs, constant, entry, floats, variable
from polycert.graph.onnx.program import OnnxCall, Shape, checked_shape
from polycert.graph.onnx.scale_shift import lowered, raised, shifted
from polycert.rules import Op
from polycert.rules.affine import Add
from polycert.rules.bilinear import softmax
from polycert.rules.bump import Gelu, TanhGelu
from polycert.rules.convex import Elu, Exp, Softplus, Square
from polycert.rules.op import Decomposition
from polycert.rules.piecewise_linear import LeakyRelu, Relu
from polycert.rules.s_shaped import Arctan, Erf, Tanh


def elementwise(make: Callable[[OnnxCall, Shape], Op | Decomposition]) -> Entry:
    """An op that keeps the shape."""

    def build(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
        x = variable(call, inputs[0])
        return b.put(call, make(call, b.nodes[x.index].shape), x.shape, x)

    return build


TABLE["Relu"] = elementwise(lambda call, shape: Relu(shape))
TABLE["LeakyRelu"] = elementwise(lambda call, shape: LeakyRelu(shape, leak=call.number("alpha", 0.01)))
TABLE["Abs"] = elementwise(lambda call, shape: LeakyRelu(shape, leak=-1.0))
TABLE["Tanh"] = elementwise(lambda call, shape: Tanh(shape))
TABLE["Sigmoid"] = elementwise(lambda call, shape: Tanh(shape, shift=0.5, outer=0.5, inner=0.5))
TABLE["Exp"] = elementwise(lambda call, shape: Exp(shape))
TABLE["Softplus"] = elementwise(lambda call, shape: Softplus(shape))
TABLE["Erf"] = elementwise(lambda call, shape: Erf(shape, outer=2 / math.sqrt(math.pi)))
TABLE["Atan"] = elementwise(lambda call, shape: Arctan(shape))


@entry("Gelu")
def _gelu(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    """By tanh only in float32: what ONNX defines has constants of that type, which differ in double precision."""
    x = variable(call, inputs[0])
    shape = b.nodes[x.index].shape
    if call.get("approximate") != "tanh":
        return b.put(call, Gelu(shape), x.shape, x)
    if b.program.input_type is np.float64:
        raise PolycertError(
            f"{call} is defined with constants in float32, which is not the function in double precision"
        )
    return b.put(call, TanhGelu(shape), x.shape, x)


@entry("Identity")
def _identity(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    return variable(call, inputs[0])


@entry("Dropout")
def _dropout(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    """Nothing in evaluation; in training mode it is random unless its ratio is 0."""
    mode, share = constant(call, inputs, 2), constant(call, inputs, 1)
    training = call.get("is_test", 1) == 0 if mode is None else scalar(call, mode) != 0
    ratio = call.number("ratio", 0.5) if share is None else scalar(call, share)
    if training and ratio != 0:
        raise PolycertError(f"{call} is in training mode, which is random: export the model in evaluation mode")
    return variable(call, inputs[0])


@entry("Cast")
def _cast(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    if call.get("to") not in FLOAT_TYPES:
        raise PolycertError(f"{call} casts the network's values to another kind of number, which is not continuous")
    return variable(call, inputs[0])


@entry("Elu")
def _elu(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    if call.number("alpha", 1.0) != 1:
        raise PolycertError(f"{call} is supported with alpha 1 only")
    x = variable(call, inputs[0])
    return b.put(call, Elu(b.nodes[x.index].shape), x.shape, x)


@entry("Clip")
def _clip(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    most = float(np.finfo(np.float32).max)  # ONNX's default, as long as the ends were attributes
    early = [call.get("min", -most), call.get("max", most)]
    ends = early if b.opset < 11 else [constant(call, inputs, k) for k in (1, 2)]
    low, high = (side * math.inf if end is None else scalar(call, end) for side, end in zip((-1, 1), ends, strict=True))
    if not low <= high:
        raise PolycertError(f"{call} has a minimum above its maximum")
    return _limited(b, call, x, low, high)


def _limited(b: GraphBuilder, call: OnnxCall, x: OnnxValue, low: float, high: float) -> OnnxValue:
    """`min(max(x, low), high)`; the ends of the value's type are what ONNX calls no limit."""
    largest = float(np.finfo(b.program.widest).max)
    if low > -largest:
        x = raised(b, call, x, np.asarray(low))
    return lowered(b, call, x, np.asarray(high)) if high < largest else x


@entry("HardSigmoid")
def _hard_sigmoid(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    line = shifted(b, call, x, call.number("alpha", 0.2), call.number("beta", 0.5))
    return _limited(b, call, line, 0.0, 1.0)


@entry("PRelu")
def _prelu(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    """`relu(x) - leak relu(-x)`, with a leak for each channel."""
    x, leak = variable(call, inputs[0]), floats(call, inputs, 1)
    shape = b.nodes[x.index].shape
    right = b.put(call, Relu(shape), x.shape, x)
    left = b.put(call, Relu(shape), x.shape, shifted(b, call, x, -1.0, None))
    return b.put(call, Add(shape, (1, -1)), x.shape, right, shifted(b, call, left, leak, None))


@entry("Pow")
def _pow(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x, power = variable(call, inputs[0]), floats(call, inputs, 1)
    if not power.size or (power != 2).any():
        raise PolycertError(f"{call} is supported for the power 2 only")
    wide = b.expand(call, x, common_shape(call, x.shape, power.shape))
    return b.put(call, Square(b.nodes[wide.index].shape), wide.shape, wide)


@entry("Softmax")
def _softmax(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    axis = axis_of(call.get("axis", 1 if b.opset < 13 else -1), len(x.shape), call)
    if axis != len(x.shape) - 1:
        raise PolycertError(f"{call} is supported over the last axis only")
    checked_shape((*x.shape, x.shape[-1]), str(call))
    return b.put(call, softmax(b.nodes[x.index].shape, b.like), x.shape, x)
