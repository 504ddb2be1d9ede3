"""Affine ONNX ops: products with constants, sums, batch norm in evaluation, means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from polycert.errors import PolycertError
from polycert.graph.onnx.building import Building, Known, Value, inner
from polycert.graph.onnx.entries import Inputs, constant, entry, floats, variable
from polycert.graph.onnx.folding import axes_of, axis_of
from polycert.graph.onnx.moving import permuted, shifted
from polycert.graph.onnx.reading import Call, Shape, checked_shape
from polycert.rules import Op
from polycert.rules.activation import Tanh
from polycert.rules.affine import Add, Elementwise, MatMul
from polycert.rules.curves import Silu, Square
from polycert.rules.maximum import larger
from polycert.rules.products import bilinear, product
from polycert.rules.recipe import Recipe
from polycert.rules.reduction import reduction
from polycert.rules.selection import NOTHING


def _broadcast(b: Building, call: Call, inputs: Inputs) -> tuple[Known, Known, Shape]:
    """Two operands, the values among them brought to the common shape."""
    first, second = inputs[0], inputs[1]
    if first is None or second is None:
        raise PolycertError(f"{call} lacks an input")
    shape = checked_shape(np.broadcast_shapes(first.shape, second.shape), str(call))
    wide = [b.expand(call, v, shape) if isinstance(v, Value) else v for v in (first, second)]
    return wide[0], wide[1], shape


@entry("Add", "Sub")
def _add(b: Building, call: Call, inputs: Inputs) -> Value:
    first, second, shape = _broadcast(b, call, inputs)
    sign = 1 if call.op == "Add" else -1
    if isinstance(first, Value) and isinstance(second, Value):
        return b.put(call, Add(inner(shape), (1, sign)), shape, first, second)
    if isinstance(first, Value):
        return shifted(b, call, first, None, sign * np.asarray(second))
    x = variable(call, second)
    return shifted(b, call, x, None if sign > 0 else -1.0, first, exact=True)


@entry("Sum")
def _sum(b: Building, call: Call, inputs: Inputs) -> Value:
    total = inputs[0]
    for part in inputs[1:]:
        total = _add(b, Call("Add", call.name, call.inputs, call.outputs), [total, part])
    return variable(call, total)


@entry("Neg")
def _neg(b: Building, call: Call, inputs: Inputs) -> Value:
    return shifted(b, call, variable(call, inputs[0]), -1.0, None, exact=True)


@entry("Mul")
def _mul(b: Building, call: Call, inputs: Inputs) -> Value:
    first, second, shape = _broadcast(b, call, inputs)
    if isinstance(first, Value) and isinstance(second, Value):
        return b.put(call, _known_product(b, first, second), shape, *_operands(b, first, second))
    x, factor = (first, second) if isinstance(first, Value) else (variable(call, second), first)
    return shifted(b, call, x, factor, None, exact=True)


def _known_product(b: Building, first: Value, second: Value) -> Op | Recipe:
    """A product of two values; a square and a gate by the value's own sigmoid have better bounds than others."""
    shape = b.nodes[first.index].shape
    if first.index == second.index:
        return Square(shape)
    if _gates(b, first, second) or _gates(b, second, first):
        return Silu(shape)
    return product(shape, b.like)


def _gates(b: Building, gate: Value, value: Value) -> bool:
    node = b.nodes[gate.index]
    sigmoid = isinstance(node.op, Tanh) and (node.op.shift, node.op.outer, node.op.inner) == (0.5, 0.5, 0.5)
    return sigmoid and node.inputs == (value.index,)


def _operands(b: Building, first: Value, second: Value) -> list[Value]:
    """What the product is a function of: one value, if it is a square or a gate."""
    if first.index == second.index or _gates(b, second, first):
        return [first]
    return [second] if _gates(b, first, second) else [first, second]


@entry("Max", "Min")
def _max(b: Building, call: Call, inputs: Inputs) -> Value:
    """The largest or smallest of several operands; `min(a, b) = -max(-a, -b)`."""
    sign = 1.0 if call.op == "Max" else -1.0
    total = inputs[0]
    for part in inputs[1:]:
        if not isinstance(total, Value) and not isinstance(part, Value):
            raise PolycertError(f"{call} compares constants among its operands: fold them first")
        first, second, shape = _broadcast(b, call, [total, part])
        recipe = Recipe(inner(shape), inner(shape))
        larger(recipe, 0, 1)
        sides = [_signed(b, call, first, sign, shape), _signed(b, call, second, sign, shape)]
        total = _signed(b, call, b.put(call, recipe, shape, *sides), sign, shape)
    return variable(call, total)


def _signed(b: Building, call: Call, operand: Known, sign: float, shape: Shape) -> Value:
    """An operand times a sign; a constant becomes a node of its own."""
    if isinstance(operand, Value):
        return operand if sign > 0 else shifted(b, call, operand, -1.0, None, exact=True)
    zeros = b.pick(call, Value(0, b.program.input_shape), torch.full(shape, NOTHING))
    return shifted(b, call, zeros, None, sign * np.asarray(operand))


@entry("Div")
def _div(b: Building, call: Call, inputs: Inputs) -> Value:
    first, second, _ = _broadcast(b, call, inputs)
    if isinstance(second, Value):
        raise PolycertError(f"{call} divides by a value that depends on the input, which is not supported")
    divisor = np.asarray(second, dtype=np.float64)
    if (divisor == 0).any():
        raise PolycertError(f"{call} divides by zero")
    return shifted(b, call, variable(call, first), 1 / divisor, None)


@entry("Gemm")
def _gemm(b: Building, call: Call, inputs: Inputs) -> Value:
    x, weight, offset = variable(call, inputs[0]), floats(call, inputs, 1), constant(call, inputs, 2)
    if len(x.shape) != 2 or weight.ndim != 2:
        raise PolycertError(f"{call} multiplies tensors of {len(x.shape)} and {weight.ndim} axes, not matrices")
    if call.get("transA", 0):
        x = permuted(b, call, x, [1, 0])
    matrix = weight if call.get("transB", 0) else weight.T
    shape = (x.shape[0], matrix.shape[0])
    matrix = _scaled(b, call, matrix, call.get("alpha", 1.0))
    if offset is None:
        return _product(b, call, x, matrix, shape)
    offset = _scaled(b, call, offset, call.get("beta", 1.0))
    if offset.size == shape[1]:
        return _product(b, call, x, matrix, shape, offset)
    return shifted(b, call, _product(b, call, x, matrix, shape), None, offset)


def _scaled(b: Building, call: Call, array: np.ndarray, factor: float) -> np.ndarray:
    if math.frexp(factor)[0] != 0.5:  # other than a power of 2 rounds
        b.computed.append(call.name or call.outputs[0])
    return np.asarray(array * np.asarray(factor, dtype=array.dtype))


def _product(
    b: Building, call: Call, x: Value, matrix: np.ndarray, shape: Shape, offset: np.ndarray | None = None
) -> Value:
    """`x matrix^T + offset` over the last axis."""
    if x.shape[-1] != matrix.shape[1]:
        raise PolycertError(f"{call} multiplies {list(x.shape)} by a matrix of shape {list(matrix.T.shape)}")
    source = b.nodes[x.index].shape
    shift = None if offset is None else b.tensor(offset).reshape(-1)
    op = MatMul(b.tensor(matrix), shift, source, (*source[:-1], matrix.shape[0]))
    return b.reshape(call, b.put(call, op, shape, x), shape)


@entry("MatMul")
def _matmul(b: Building, call: Call, inputs: Inputs) -> Value:
    first, second = inputs[0], inputs[1]
    if isinstance(first, Value) and isinstance(second, Value):
        return _bilinear(b, call, first, second)
    if isinstance(first, Value):
        matrix = floats(call, inputs, 1)
        if matrix.ndim == 1:
            return _product(b, call, first, matrix[None], first.shape[:-1] or (1,))
        if matrix.ndim != 2:
            raise PolycertError(f"{call} multiplies by a constant of {matrix.ndim} axes: only matrices are supported")
        return _product(b, call, first, matrix.T, (*first.shape[:-1], matrix.shape[1]))
    x, matrix = variable(call, second), floats(call, inputs, 0)
    if matrix.ndim > 2 and math.prod(matrix.shape[:-2]) == 1:
        matrix = matrix.reshape(matrix.shape[-2:])
    if matrix.ndim == 2 and len(x.shape) == 1:
        return _product(b, call, x, matrix, (matrix.shape[0],))
    if matrix.ndim != 2 or len(x.shape) < 2:
        raise PolycertError(f"{call} multiplies a constant of {matrix.ndim} axes from the left: only matrices fit")
    swap = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
    turned = permuted(b, call, x, swap)
    return permuted(b, call, _product(b, call, turned, matrix, (*turned.shape[:-1], matrix.shape[0])), swap)


def _bilinear(b: Building, call: Call, first: Value, second: Value) -> Value:
    if len(first.shape) < 2 or len(second.shape) < 2 or first.shape[-1] != second.shape[-2]:
        raise PolycertError(f"{call} multiplies shapes {list(first.shape)} and {list(second.shape)} that do not fit")
    outer = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    left = b.expand(call, first, (*outer, *first.shape[-2:]))
    right = b.expand(call, second, (*outer, *second.shape[-2:]))
    shape = (*outer, first.shape[-2], second.shape[-1])
    checked_shape((*shape, first.shape[-1]), str(call))
    recipe = bilinear(left.shape, right.shape, b.like)
    made = b.put(call, recipe, shape, b.view(call, left, left.shape), b.view(call, right, right.shape))
    return b.reshape(call, made, shape)


@entry("BatchNormalization")
def _batch_norm(b: Building, call: Call, inputs: Inputs) -> Value:
    x = variable(call, inputs[0])
    if call.get("training_mode", 0):
        raise PolycertError(f"{call} is in training mode: export the model in evaluation mode")
    scale, bias, mean, variance = (b.tensor(floats(call, inputs, k)).reshape(-1) for k in range(1, 5))
    shape = b.nodes[x.index].shape
    channels = x.shape[1] if len(x.shape) > 1 else x.shape[0]
    if len(x.shape) < 2 or any(len(part) != channels for part in (scale, bias, mean, variance)):
        raise PolycertError(f"{call} has statistics that do not fit {channels} channels")
    factor = scale * torch.rsqrt(variance + float(call.get("epsilon", 1e-5)))

    def rows(values: torch.Tensor) -> torch.Tensor:
        spread = values.reshape(1, -1, *(1,) * (len(x.shape) - 2))
        return spread.expand(x.shape).reshape(1, *shape)

    moved = mean * factor
    parts = 2 * (bias.abs() + moved.abs())
    op = Elementwise(rows(factor), rows(bias - moved), shape, shift_magnitude=rows(parts))
    return b.put(call, op, x.shape, x)


@entry("ReduceMean", "ReduceSum")
def _reduce(b: Building, call: Call, inputs: Inputs) -> Value:
    x = variable(call, inputs[0])
    axes = axes_of(call, list(inputs), b.opset, 13 if call.op == "ReduceSum" else 18)
    if not axes:
        if call.get("noop_with_empty_axes", 0):
            return x
        axes = list(range(len(x.shape)))
    return reduced(b, call, x, axes, mean=call.op == "ReduceMean", keep=bool(call.get("keepdims", 1)))


def reduced(b: Building, call: Call, x: Value, axes: Sequence[int], *, mean: bool, keep: bool) -> Value:
    """The sum or mean over some axes."""
    chosen = {axis_of(axis, len(x.shape), call) for axis in axes}
    if math.prod(x.shape) == 0:
        raise PolycertError(f"{call} reduces nothing")
    sizes = [1 if k in chosen else n for k, n in enumerate(x.shape)]
    shape = tuple(sizes) if keep else tuple(n for k, n in enumerate(sizes) if k not in chosen)
    recipe = reduction(x.shape, sorted(chosen), shape or (1,), b.like, mean=mean)
    return b.reshape(call, b.put(call, recipe, shape, b.view(call, x, x.shape)), shape)
