"""Compute ops on constants while a file is read: shape arithmetic and small tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from polycert.errors import PolycertError
from polycert.graph.onnx.program import LARGEST_VALUE, OnnxCall, checked_shape

Array = np.ndarray
Fold = Callable[[OnnxCall, list[Any], int], Array]

FLOAT_TYPES = {1: np.float32, 11: np.float64}
TYPES: dict[int, Any] = {**FLOAT_TYPES, 6: np.int32, 7: np.int64, 9: np.bool_}


def integers(array: Any, what: str) -> list[int]:
    """Return the numbers of a constant that must be a list of whole numbers."""
    if not isinstance(array, (Array, list, tuple)):
        raise PolycertError(f"{what} must be constant")
    flat = np.asarray(array).reshape(-1)
    if flat.size and flat.dtype.kind not in "iu":
        raise PolycertError(f"{what} must be whole numbers")
    return [int(n) for n in flat]


def constant_of(call: OnnxCall) -> Array:
    """Return what a `Constant` op holds."""
    if len(call.attributes) != 1:
        raise PolycertError(f"{call} must hold one value, it has {len(call.attributes)} attributes")
    for name, kind in (("value_float", np.float32), ("value_floats", np.float32)):
        if name in call.attributes:
            return np.asarray(call.get(name), dtype=kind)
    for name in ("value_int", "value_ints"):
        if name in call.attributes:
            return np.asarray(call.get(name), dtype=np.int64)
    value = call.get("value")
    if not isinstance(value, Array):
        raise PolycertError(f"{call} holds no tensor of numbers")
    return value


def common_shape(call: OnnxCall, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which ONNX and numpy broadcast some shapes: aligned at the last axes, sizes of 1 repeated."""
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        listed = " and ".join(str(list(shape)) for shape in shapes)
        raise PolycertError(f"{call} combines shapes {listed}, which do not fit") from None
    return checked_shape(shape, str(call))


def broadcast_to(call: OnnxCall, array: Any, shape: tuple[int, ...]) -> Array:
    """Return a constant broadcast to a shape, which it must not enlarge."""
    given = np.asarray(array)
    if common_shape(call, given.shape, shape) != tuple(shape):
        raise PolycertError(f"{call} has a constant of shape {list(given.shape)} that does not fit {list(shape)}")
    return np.broadcast_to(given, shape)


def scalar(call: OnnxCall, array: Any) -> float:
    """Return the number in a constant that must hold a single one."""
    given = np.asarray(array)
    if given.size != 1:
        raise PolycertError(f"{call} needs one number where it has a constant of shape {list(given.shape)}")
    return float(given.reshape(-1)[0])


def axes_of(call: OnnxCall, inputs: list[Any], opset: int, since: int) -> list[int] | None:
    """Return the axes, which are an input since some opset and an attribute before; None if they are not given."""
    if opset < since or "axes" in call.attributes:
        found = call.get("axes")
        return None if found is None else integers(found, f"the axes of {call}")
    return integers(inputs[1], f"the axes of {call}") if len(inputs) > 1 and inputs[1] is not None else None


def reduced_axes(call: OnnxCall, inputs: list[Any], rank: int, opset: int, since: int) -> list[int]:
    """Return the axes that a reduction runs over.

    If none are given, or an empty list, an attribute says whether these are all axes or none.
    """
    axes = axes_of(call, inputs, opset, since)
    noop = call.get("noop_with_empty_axes", 0)
    if noop not in (0, 1):
        raise PolycertError(f"{call} has noop_with_empty_axes = {noop}, which must be 0 or 1")
    if not axes:
        return [] if noop else list(range(rank))
    return sorted({axis_of(axis, rank, call) for axis in axes})


def squeezed(shape: tuple[int, ...], axes: list[int] | None, call: OnnxCall) -> tuple[int, ...]:
    """Return a shape without axes of size 1."""
    if axes is not None and not axes:
        raise PolycertError(f"{call} has an empty list of axes, which is read as all of them or as none")
    if axes is None:
        return tuple(n for n in shape if n != 1)
    chosen = {axis_of(axis, len(shape), call) for axis in axes}
    if any(shape[axis] != 1 for axis in chosen):
        raise PolycertError(f"{call} squeezes an axis of size other than 1")
    return tuple(n for axis, n in enumerate(shape) if axis not in chosen)


def unsqueezed(shape: tuple[int, ...], axes: list[int] | None, call: OnnxCall) -> tuple[int, ...]:
    """Return a shape with more axes of size 1."""
    rank = len(shape) + len(axes or [])
    chosen = sorted(axis_of(axis, rank, call) for axis in axes or [])
    if len(set(chosen)) < len(chosen):
        raise PolycertError(f"{call} names an axis twice")
    sizes = list(shape)
    for axis in chosen:
        sizes.insert(axis, 1)
    return checked_shape(sizes, str(call))


def axis_of(axis: int, rank: int, call: OnnxCall) -> int:
    """Return an axis counted from the front."""
    if not -rank <= axis < rank:
        raise PolycertError(f"{call} names axis {axis} of a tensor with {rank} axes")
    return axis % rank


def reshaped(shape: tuple[int, ...], wanted: list[int], call: OnnxCall) -> tuple[int, ...]:
    """Return the target shape of a reshape: 0 keeps a size, -1 takes what is left."""
    if call.get("allowzero", 0) == 0:
        if any(n == 0 and k >= len(shape) for k, n in enumerate(wanted)):
            raise PolycertError(f"{call} keeps the size of an axis that its input does not have")
        wanted = [shape[k] if n == 0 else n for k, n in enumerate(wanted)]
    size = math.prod(shape)
    given = math.prod(n for n in wanted if n != -1)
    if wanted.count(-1) == 1 and given > 0 and size % given == 0:
        wanted = [size // given if n == -1 else n for n in wanted]
    if any(n < 0 for n in wanted) or math.prod(wanted) != size:
        raise PolycertError(f"{call} cannot make shape {wanted} of {list(shape)}")
    return tuple(wanted)


def slices_of(call: OnnxCall, inputs: list[Any], shape: tuple[int, ...], opset: int) -> tuple[slice, ...]:
    """Return the slices of a `Slice` op."""
    if opset < 10:
        given: list[Any] = [call.get(name) for name in ("starts", "ends", "axes")] + [None]
    else:
        given = [inputs[k] if k < len(inputs) else None for k in range(1, 5)]
    if given[0] is None or given[1] is None:
        raise PolycertError(f"{call} does not say where it starts and ends")
    starts, ends = (integers(part, f"the ends of {call}") for part in given[:2])
    axes = list(range(len(starts))) if given[2] is None else integers(given[2], f"the axes of {call}")
    steps = [1] * len(starts) if given[3] is None else integers(given[3], f"the steps of {call}")
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise PolycertError(f"{call} has ends, axes and steps that do not fit")
    found = [slice(None)] * len(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = axis_of(axis, len(shape), call)
        found[at] = slice(start, end, step) if step > 0 else _backwards(start, end, step, shape[at])
    return tuple(found)


def _backwards(start: int, end: int, step: int, size: int) -> slice:
    """Return a slice that runs down. A start beyond the end is the end; an end before the front includes the front."""
    end = end + size if end < 0 else end
    start = start + size if start < 0 else start
    return slice(max(min(start, size - 1), 0), end if end >= 0 else None, step)


def _in_operands_type(function: Callable[..., Any]) -> Fold:
    """Return the fold of a function of arrays, whose result has the operands' type."""

    def fold(call: OnnxCall, inputs: list[Any], opset: int) -> Array:
        arrays = _arrays(call, inputs)
        common_shape(call, *(a.shape for a in arrays))
        with np.errstate(all="ignore"):
            return np.asarray(function(*arrays)).astype(np.result_type(*arrays), copy=False)

    return fold


def _elementwise(function: Callable[..., Any]) -> Fold:
    """Return the fold of a function of arrays."""

    def fold(call: OnnxCall, inputs: list[Any], opset: int) -> Array:
        arrays = _arrays(call, inputs)
        common_shape(call, *(a.shape for a in arrays))
        return np.asarray(function(*arrays))

    return fold


def _arrays(call: OnnxCall, inputs: list[Any]) -> list[Array]:
    if not inputs or any(not isinstance(value, Array) for value in inputs):
        raise PolycertError(f"{call} lacks an input")
    return inputs


def _divide(a: Array, b: Array) -> Array:
    """Divide arrays; whole numbers are rounded towards 0."""
    if a.dtype.kind in "iu":
        if (b == 0).any():
            raise PolycertError("a constant is divided by zero")
        return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)
    return np.asarray(a / b)


def _cast(call: OnnxCall, inputs: list[Any], opset: int) -> Array:
    kind = call.get("to")
    if kind not in TYPES:
        raise PolycertError(f"{call} casts to type {kind}: float32, float64, int32, int64 or bool are supported")
    with np.errstate(all="ignore"):
        return _arrays(call, inputs)[0].astype(TYPES[kind])


def _gather(call: OnnxCall, inputs: list[Any], opset: int) -> Array:
    data, index = _arrays(call, inputs)
    return np.take(data, checked_index(call, index, data.shape), axis=axis_of(call.get("axis", 0), data.ndim, call))


def checked_index(call: OnnxCall, index: Array, shape: tuple[int, ...]) -> Array:
    """Return the indices of a `Gather` counted from the front, after a check that its result is not too large."""
    size = shape[axis_of(call.get("axis", 0), len(shape), call)]
    places = np.asarray(integers(index, f"the indices of {call}")).reshape(index.shape).astype(np.int64)
    if places.size and not (-size <= places.min() and places.max() < size):
        raise PolycertError(f"{call} looks beyond the end of an axis of size {size}")
    checked_shape([*index.shape, *shape][:8], str(call))
    if places.size * math.prod(shape) > LARGEST_VALUE * max(size, 1):
        raise PolycertError(f"{call} would have too many entries")
    return places % max(size, 1)


def _concat(call: OnnxCall, inputs: list[Any], opset: int) -> Array:
    return np.concatenate(_arrays(call, inputs), axis=call.get("axis", 0))


def _expand(call: OnnxCall, inputs: list[Any], opset: int) -> Array:
    data, wanted = _arrays(call, inputs)
    return broadcast_to(call, data, common_shape(call, data.shape, tuple(integers(wanted, str(call))))).copy()


def _filled(call: OnnxCall, inputs: list[Any], opset: int) -> Array:
    value = call.get("value", np.zeros(1, np.float32))
    shape = checked_shape(integers(_arrays(call, inputs)[0], str(call)), str(call))
    return np.full(shape, scalar(call, value), dtype=np.asarray(value).dtype)


def _range(call: OnnxCall, inputs: list[Any], opset: int) -> Array:
    start, end, step = (scalar(call, a) for a in _arrays(call, inputs))
    if step == 0 or (end - start) / step > LARGEST_VALUE:
        raise PolycertError(f"{call} has too many entries")
    return np.arange(start, end, step).astype(inputs[0].dtype)


def _reshape(call: OnnxCall, inputs: list[Any], opset: int) -> Array:
    data, wanted = _arrays(call, inputs)
    return data.reshape(reshaped(data.shape, integers(wanted, str(call)), call))


def _transpose(call: OnnxCall, inputs: list[Any], opset: int) -> Array:
    return np.transpose(_arrays(call, inputs)[0], call.get("perm"))


def _unsqueeze(call: OnnxCall, inputs: list[Any], opset: int) -> Array:
    return np.reshape(inputs[0], unsqueezed(inputs[0].shape, axes_of(call, inputs, opset, 13), call))


def _squeeze(call: OnnxCall, inputs: list[Any], opset: int) -> Array:
    return np.reshape(inputs[0], squeezed(inputs[0].shape, axes_of(call, inputs, opset, 13), call))


def _slice(call: OnnxCall, inputs: list[Any], opset: int) -> Array:
    return np.asarray(inputs[0][slices_of(call, inputs, inputs[0].shape, opset)])


def _product(call: OnnxCall, inputs: list[Any], opset: int) -> Array:
    (data,) = _arrays(call, inputs[:1])
    axes = reduced_axes(call, inputs, data.ndim, opset, 18)
    kept = bool(call.get("keepdims", 1))
    return np.prod(data, axis=tuple(axes), keepdims=kept).astype(data.dtype) if axes else data


# These folds move numbers or compute whole ones. They round nothing.
MOVES: dict[str, Fold] = {
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Equal": _elementwise(np.equal),
    "Expand": _expand,
    "Gather": _gather,
    "Greater": _elementwise(np.greater),
    "Identity": lambda call, inputs, opset: _arrays(call, inputs)[0],
    "Less": _elementwise(np.less),
    "Neg": _in_operands_type(np.negative),
    "Abs": _in_operands_type(np.abs),
    "Not": _elementwise(np.logical_not),
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _elementwise(np.where),
}
ARITHMETIC: dict[str, Fold] = {
    "Add": _in_operands_type(np.add),
    "Div": _in_operands_type(_divide),
    "Floor": _in_operands_type(np.floor),
    "Mul": _in_operands_type(np.multiply),
    "Range": _range,
    "ReduceProd": _product,
    "Sqrt": _in_operands_type(np.sqrt),
    "Sub": _in_operands_type(np.subtract),
}
FOLDS = {**MOVES, **ARITHMETIC}
