"""Converters of affine ONNX ops and products: sums, products, maxima, batch norm in evaluation, means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

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
from polycert.graph.onnx.constant_folding import axis_of, broadcast_to, common_shape, reduced_axes
from polycert.graph.onnx.elementwise import clip_above, clip_below, ratio, shifted
from polycert.graph.onnx.program import OnnxCall, Shape, checked_shape
from polycert.graph.onnx.shape_ops import permuted
from polycert.rules import Op
from polycert.rules.affine import Add, MatMul
from polycert.rules.arithmetic import bilinear, product, reduction
from polycert.rules.bump import Silu
from polycert.rules.convex import Square
from polycert.rules.maximum import larger, smaller
from polycert.rules.op import Decomposition
from polycert.rules.s_shaped import Tanh


def _broadcast(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> tuple[Known, Known, Shape]:
    """Return two operands and their common shape, to which values are expanded; constants stay as they are."""
    first, second = inputs[0], inputs[1]
    if first is None or second is None:
        raise PolycertError(f"{call} lacks an input")
    shape = common_shape(call, first.shape, second.shape)
    wide = [b.expand(call, v, shape) if isinstance(v, OnnxValue) else v for v in (first, second)]
    return wide[0], wide[1], shape


@converts("Add", "Sub")
def _add(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    first, second, shape = _broadcast(b, call, inputs)
    sign = 1 if call.op == "Add" else -1
    if isinstance(first, OnnxValue) and isinstance(second, OnnxValue):
        return b.put(call, Add(inner(shape), (1, sign)), shape, first, second)
    if isinstance(first, OnnxValue):
        return shifted(b, call, first, None, sign * np.asarray(second))
    x = variable(call, second)
    return shifted(b, call, x, None if sign > 0 else -1.0, first)


@converts("Sum")
def _sum(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    total = inputs[0]
    for part in inputs[1:]:
        total = _add(b, OnnxCall("Add", call.name, call.inputs, call.outputs), [total, part])
    return variable(call, total)


@converts("Neg")
def _neg(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    return shifted(b, call, variable(call, inputs[0]), -1.0, None)


@converts("Mul")
def _mul(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    first, second, shape = _broadcast(b, call, inputs)
    if isinstance(first, OnnxValue) and isinstance(second, OnnxValue):
        return b.put(call, _known_product(b, first, second), shape, *_operands(b, first, second))
    x, factor = (first, second) if isinstance(first, OnnxValue) else (variable(call, second), first)
    return shifted(b, call, x, factor, None)


def _known_product(b: GraphBuilder, first: OnnxValue, second: OnnxValue) -> Op | Decomposition:
    """Return the op for a product of two values. A square and a gate by the value's own sigmoid have tighter bounds."""
    shape = b.nodes[first.index].shape
    if first.index == second.index:
        return Square(shape)
    if _gates(b, first, second) or _gates(b, second, first):
        return Silu(shape)
    return product(shape, b.like)


def _gates(b: GraphBuilder, gate: OnnxValue, value: OnnxValue) -> bool:
    """Whether one node is the sigmoid of the other."""
    node = b.nodes[gate.index]
    sigmoid = isinstance(node.op, Tanh) and (node.op.shift, node.op.outer, node.op.inner) == (0.5, 0.5, 0.5)
    return sigmoid and node.inputs == (value.index,)


def _operands(b: GraphBuilder, first: OnnxValue, second: OnnxValue) -> list[OnnxValue]:
    """Return the values that the product is a function of: a single one if it is a square or a gate."""
    if first.index == second.index or _gates(b, second, first):
        return [first]
    return [second] if _gates(b, first, second) else [first, second]


@converts("Max", "Min")
def _max(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    """Take the maximum or minimum of all values in turn, then of that and the constants."""
    values = [operand for operand in inputs if isinstance(operand, OnnxValue)]
    constants = [operand for operand in inputs if isinstance(operand, np.ndarray)]
    shape = common_shape(call, *(value.shape for value in values), *(array.shape for array in constants))
    total, *others = (b.expand(call, value, shape) for value in values)
    for other in others:
        decomposition = Decomposition(inner(shape), inner(shape))
        (larger if call.op == "Max" else smaller)(decomposition, 0, 1)
        total = b.put(call, decomposition, shape, total, other)
    if not constants:
        return total
    extreme, limit = (np.maximum, clip_below) if call.op == "Max" else (np.minimum, clip_above)
    return limit(b, call, total, broadcast_to(call, reduce(extreme, constants), shape))


@converts("Div")
def _div(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    first, second, _ = _broadcast(b, call, inputs)
    if isinstance(second, OnnxValue):
        raise PolycertError(f"{call} divides by a value that depends on the input, which is not supported")
    divisor = np.asarray(second, dtype=np.float64)
    if (divisor == 0).any():
        raise PolycertError(f"{call} divides by zero")
    return shifted(b, call, variable(call, first), ratio(call, 1.0, divisor), None, stored=False)


@converts("Gemm")
def _gemm(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    """Convert `alpha x B + beta C`, where C is broadcast to the product."""
    x, weight, offset = variable(call, inputs[0]), floats(call, inputs, 1), constant(call, inputs, 2)
    if len(x.shape) != 2 or weight.ndim != 2:
        raise PolycertError(f"{call} multiplies tensors of {len(x.shape)} and {weight.ndim} axes, not matrices")
    if call.get("transA", 0):
        x = permuted(b, call, x, [1, 0])
    matrix = weight if call.get("transB", 0) else weight.T
    shape = (x.shape[0], matrix.shape[0])
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    wide = None if offset is None else broadcast_to(call, offset, shape)
    if wide is not None and alpha == beta == 1 and (wide == wide[:1]).all():
        return _product(b, call, x, matrix, shape, wide[0])
    made = _product(b, call, x, matrix, shape)
    scale = None if alpha == 1 else alpha
    if wide is None or beta == 1:
        return made if scale is None and wide is None else shifted(b, call, made, scale, wide)
    shift = beta * wide.astype(np.float64)
    return shifted(b, call, made, scale, shift, parts=np.abs(shift))


def _product(
    b: GraphBuilder, call: OnnxCall, x: OnnxValue, matrix: np.ndarray, shape: Shape, offset: np.ndarray | None = None
) -> OnnxValue:
    """Return `x matrix^T + offset` over the last axis."""
    if x.shape[-1] != matrix.shape[1]:
        raise PolycertError(f"{call} multiplies {list(x.shape)} by a matrix of shape {list(matrix.T.shape)}")
    source = b.nodes[x.index].shape
    shift = None if offset is None else b.tensor(call, offset)
    op = MatMul(b.tensor(call, matrix), shift, source, (*source[:-1], matrix.shape[0]))
    return b.reshape(call, b.put(call, op, shape, x), shape)


@converts("MatMul")
def _matmul(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    first, second = inputs[0], inputs[1]
    if isinstance(first, OnnxValue) and isinstance(second, OnnxValue):
        return _bilinear(b, call, first, second)
    if isinstance(first, OnnxValue):
        matrix = floats(call, inputs, 1)
        if matrix.ndim == 1:
            return _product(b, call, first, matrix[None], first.shape[:-1])
        if matrix.ndim != 2:
            raise PolycertError(f"{call} multiplies by a constant of {matrix.ndim} axes: only matrices are supported")
        return _product(b, call, first, matrix.T, (*first.shape[:-1], matrix.shape[1]))
    return _from_left(b, call, floats(call, inputs, 0), variable(call, second))


def _from_left(b: GraphBuilder, call: OnnxCall, given: np.ndarray, x: OnnxValue) -> OnnxValue:
    """Return a constant matrix times the value. Axes of size 1 before the matrix are axes of the result as well."""
    if given.ndim < 2 or math.prod(given.shape[:-2]) != 1:
        raise PolycertError(
            f"{call} multiplies a constant of shape {list(given.shape)} from the left: only a matrix fits"
        )
    matrix, rows = given.reshape(given.shape[-2:]), given.shape[-2]
    if len(x.shape) == 1:
        return b.reshape(call, _product(b, call, x, matrix, (rows,)), (*given.shape[:-2], rows))
    swap = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
    turned = permuted(b, call, x, swap)
    made = permuted(b, call, _product(b, call, turned, matrix, (*turned.shape[:-1], rows)), swap)
    return b.reshape(call, made, (*common_shape(call, given.shape[:-2], x.shape[:-2]), *made.shape[-2:]))


def _bilinear(b: GraphBuilder, call: OnnxCall, first: OnnxValue, second: OnnxValue) -> OnnxValue:
    """Return the matrix product of two values."""
    if len(first.shape) < 2 or len(second.shape) < 2 or first.shape[-1] != second.shape[-2]:
        raise PolycertError(f"{call} multiplies shapes {list(first.shape)} and {list(second.shape)} that do not fit")
    outer = common_shape(call, first.shape[:-2], second.shape[:-2])
    left = b.expand(call, first, (*outer, *first.shape[-2:]))
    right = b.expand(call, second, (*outer, *second.shape[-2:]))
    shape = (*outer, first.shape[-2], second.shape[-1])
    checked_shape((*shape, first.shape[-1]), str(call))
    decomposition = bilinear(left.shape, right.shape, b.like)
    made = b.put(call, decomposition, shape, b.view(call, left, left.shape), b.view(call, right, right.shape))
    return b.reshape(call, made, shape)


@converts("BatchNormalization")
def _batch_norm(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    """Convert `scale (x - mean) / sqrt(variance + epsilon) + bias` with statistics along the second axis."""
    x = variable(call, inputs[0])
    if call.get("training_mode", 0) or (b.opset < 14 and len(call.outputs) > 1):
        raise PolycertError(f"{call} is in training mode: export the model in evaluation mode")
    statistics = [floats(call, inputs, k).astype(np.float64) for k in range(1, 5)]
    if len(x.shape) < 2 or any(part.shape != x.shape[1:2] for part in statistics):
        raise PolycertError(f"{call} has statistics that do not fit the channels of shape {list(x.shape)}")
    scale, bias, mean, variance = (part.reshape(-1, *(1,) * (len(x.shape) - 2)) for part in statistics)
    spreads = variance + call.number("epsilon", 1e-5)
    if not (spreads > 0).all():
        raise PolycertError(f"{call} has a variance that is not positive")
    factor = ratio(call, scale, np.sqrt(spreads))
    moved = mean * factor
    return shifted(b, call, x, factor, bias - moved, stored=False, parts=np.abs(bias) + np.abs(moved))


@converts("ReduceMean", "ReduceSum")
def _reduce(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    x = variable(call, inputs[0])
    axes = reduced_axes(call, list(inputs), len(x.shape), b.opset, 13 if call.op == "ReduceSum" else 18)
    if not axes:
        return x
    return reduced(b, call, x, axes, mean=call.op == "ReduceMean", keep=bool(call.get("keepdims", 1)))


def reduced(b: GraphBuilder, call: OnnxCall, x: OnnxValue, axes: Sequence[int], *, mean: bool, keep: bool) -> OnnxValue:
    """Return the sum or mean over some axes."""
    chosen = {axis_of(axis, len(x.shape), call) for axis in axes}
    if math.prod(x.shape) == 0:
        raise PolycertError(f"{call} reduces nothing")
    sizes = [1 if k in chosen else n for k, n in enumerate(x.shape)]
    shape = tuple(sizes) if keep else tuple(n for k, n in enumerate(sizes) if k not in chosen)
    decomposition = reduction(x.shape, sorted(chosen), shape or (1,), b.like, mean=mean)
    return b.reshape(call, b.put(call, decomposition, shape, b.view(call, x, x.shape)), shape)
