"""Random small ONNX files over every op that the reader knows; an op that is not here is drawn from ONNX's schema."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx

from polycert.graph.onnx.builder import known_ops
from polycert.graph.onnx.constant_folding import FOLDS
from polycert.graph.onnx.program import OPSETS
from tests.hunt.onnx_files import DOUBLE, FLOAT, INT64, File, lifted, tensor
from tests.hunt.onnx_judge import session_of

SHAPES = (
    (1, 4),
    (1, 6),
    (1, 3),
    (3, 3),
    (1, 2, 3),
    (3, 1, 2),
    (1, 2, 5),
    (1, 1, 4, 4),
    (1, 2, 3, 3),
    (2,),
    (1, 1),
    (2, 3),
)
MOST = 400  # entries of a value
SCALES = (1.0, 1.0, 1.0, 1.0, 1e-3, 30.0, 1e3, 1e5)
FAR = (-3.4028234663852886e38, 3.4028234663852886e38, -1e30, 1e30, -1e6, 1e6, 300.0, -300.0, 0.0, 1e-3)
WIDE = (0.1, 3.0, 1e-3, 1e5, 1e30, 3.4028234663852886e38, 1e39, 1e300)  # of doubles
Attributes = dict[str, Any]
Shape = tuple[int, ...]


class Maker:
    """A file in the making: values that depend on the input by name, with their shapes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.opset = rng.choice(OPSETS)
        shape: list[Any] = list(rng.choice(SHAPES))
        self.values: dict[str, Shape] = {"x": tuple(shape)}
        self.count = 0
        if len(shape) > 1 and shape[0] == 1 and rng.random() < 0.2:
            shape[0] = rng.choice(("N", 0))
        self.file: File = {
            "opsets": [["", self.opset]],
            "input": {"type": FLOAT, "shape": shape},
            "tensors": {},
            "nodes": [],
            "output": "x",
            "as_inputs": rng.random() < 0.1,
        }
        if rng.random() < 0.05:
            self.file["opsets"].insert(rng.randrange(2), rng.choice((["", rng.choice(OPSETS)], ["ai.onnx.ml", 2])))

    def since(self, version: int) -> bool:
        """Whether the file's opset is at least that."""
        return self.opset >= version

    def name(self) -> str:
        """A new one."""
        self.count += 1
        return f"v{self.count}"

    def node(self, op: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> str:
        """One more node; the name of its first result."""
        names = [self.name() for _ in range(outputs)]
        made = {name: attribute(value) for name, value in attributes.items() if value is not None}
        self.file["nodes"].append({"op": op, "in": inputs, "out": names, "attributes": made})
        return names[0]

    def floats(self, *shape: int, positive: bool = False) -> np.ndarray:
        """Random weights, most of them of usual size."""
        scale = self.rng.choice(SCALES) / max(1, shape[-1] if shape else 1) ** 0.5
        found = np.array([self.rng.gauss(0, scale) for _ in range(math.prod(shape))]).reshape(shape)
        if self.rng.random() < 0.2:
            found = np.round(found * 2) / 2
        return np.float32(np.abs(found) + 1e-2 if positive else found)

    def constant(self, array: Any, depth: int = 1) -> str:
        """The name of a constant: stored, held by a `Constant`, or computed by ops on constants."""
        given = np.asarray(array)
        given = given.astype(np.float32) if given.dtype == np.float64 else given
        way = self.rng.random()
        if way < 0.25 and depth > 0 and given.dtype != bool:
            return wrapped(self, given)
        if way < 0.4:
            return held(self, given)
        name = self.name()
        self.file["tensors"][name] = tensor(given)
        return name

    def ints(self, values: Any) -> str:
        """A list of whole numbers as a constant."""
        return self.constant(np.asarray(values, dtype=np.int64))

    def other(self, shape: Shape, allow_variable: bool = True) -> str:
        """An operand for a value of a shape: another value, or a constant that is broadcast to it or enlarges it."""
        names = list(self.values)
        if allow_variable and self.rng.random() < 0.35:
            return self.rng.choice(names)
        return self.constant(self.floats(*near_shape(self.rng, shape)))


def attribute(value: Any) -> list[Any]:
    """A pair of a kind and a value."""
    if isinstance(value, np.ndarray):
        return ["t", tensor(value)]
    if isinstance(value, str):
        return ["s", value]
    if isinstance(value, float):
        return ["f", float(np.float32(value))]
    if isinstance(value, int):
        return ["i", int(value)]
    if value and isinstance(value[0], str):
        return ["strings", list(value)]
    if value and isinstance(value[0], float):
        return ["floats", list(value)]
    return ["ints", [int(n) for n in value]]


def near_shape(rng: random.Random, shape: Shape) -> Shape:
    """A shape that fits by broadcasting, in every legal way and some illegal ones."""
    found = list(shape)
    way = rng.random()
    if way < 0.15:
        return ()
    if way < 0.3:
        found = found[rng.randrange(len(found) + 1) :]
    found = [1 if rng.random() < 0.3 else n for n in found]
    if rng.random() < 0.1 and found:
        k = rng.randrange(len(found))
        found[k] = rng.choice((2, 3, shape[-1])) if found[k] == 1 else found[k]
    if rng.random() < 0.1:
        found = [rng.choice((1, 1, 2)), *found]
    if rng.random() < 0.05:
        rng.shuffle(found)
    return tuple(found)


def held(m: Maker, array: np.ndarray) -> str:
    """A `Constant` node, with whichever attribute can hold the array."""
    ways = [{"value": array}]
    if array.dtype == np.float32 and m.since(12):
        ways += [{"value_float": float(array)}] if array.ndim == 0 else []
        ways += [{"value_floats": array.astype(float).tolist()}] if array.ndim == 1 and array.size else []
    if array.dtype == np.int64 and m.since(12):
        ways += [{"value_int": int(array)}] if array.ndim == 0 else []
        ways += [{"value_ints": array.tolist()}] if array.ndim == 1 and array.size else []
    return m.node("Constant", [], **m.rng.choice(ways))


def wrapped(m: Maker, array: np.ndarray) -> str:
    """Ops on constants that give the array back, or nearly so, whatever folds are known."""
    rng, shape = m.rng, list(array.shape)

    def inner(given: Any) -> str:
        return m.constant(np.asarray(given, array.dtype), 0)

    kind = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64}[array.dtype]
    mask = np.array([rng.random() < 0.5 for _ in range(array.size)], bool).reshape(shape)
    axis = rng.randrange(-len(shape), len(shape)) if shape else 0
    ways: dict[str, Callable[[], str]] = {
        "Identity": lambda: m.node("Identity", [inner(array)]),
        "Cast": lambda: m.node("Cast", [inner(array)], to=kind),
        "Neg": lambda: m.node("Neg", [inner(-array)]),
        "Add": lambda: m.node("Add", [inner(array - 1), inner(1)]),
        "Sub": lambda: m.node("Sub", [inner(array + 3), inner(np.full(shape[-1:], 3))]),
        "Mul": lambda: (
            m.node("Mul", [inner(array), inner(np.ones([1, *shape]))])
            if rng.random() < 0.2
            else m.node("Mul", [inner(array), inner(1)])
        ),
        "Div": lambda: m.node("Div", [inner(array * 2 + (np.sign(array) if kind == INT64 else 0)), inner(2)]),
        "Reshape": lambda: m.node("Reshape", [inner(array.reshape(-1)), m.constant(np.int64(shape), 0)]),
        "Transpose": lambda: m.node("Transpose", [inner(array.T)]),
        "Unsqueeze": lambda: _axes(m, "Unsqueeze", inner(array[0]), [0]) if shape[:1] == [1] else inner(array),
        "Squeeze": lambda: _axes(m, "Squeeze", inner(array[None]), [0]),
        "Expand": lambda: m.node("Expand", [inner(array), m.constant(np.int64([1] * len(shape)), 0)]),
        "Where": lambda: m.node("Where", [_mask(m, mask), inner(array), inner(np.where(mask, 7, array))]),
        "ConstantOfShape": lambda: _filled(m, array),
        "Sqrt": lambda: m.node("Sqrt", [inner(array * array)]) if (array >= 0).all() else inner(array),
        "Abs": lambda: m.node("Abs", [inner(-array)]) if (array >= 0).all() else inner(array),
        "Floor": lambda: m.node("Floor", [inner(array + 0.25)]) if (array == np.floor(array)).all() else inner(array),
    }
    if shape and array.size:
        order = rng.sample(range(shape[axis]), shape[axis])
        back = [order.index(k) - (shape[axis] if rng.random() < 0.3 else 0) for k in range(shape[axis])]
        cut = rng.randrange(shape[axis] + 1)
        parts = np.split(array, [cut], axis)
        ways["Gather"] = lambda: m.node(
            "Gather", [inner(np.take(array, order, axis)), m.constant(np.int64(back), 0)], axis=axis
        )
        ways["Concat"] = lambda: m.node("Concat", [inner(part) for part in parts], axis=axis)
        ways["Slice"] = lambda: _sliced(m, inner(np.concatenate([array, array[:1]])), [0], [-1], [0])
    if kind == INT64 and array.ndim == 0 and array > 0:
        ways["ReduceProd"] = lambda: m.node("ReduceProd", [inner([array, 1])], keepdims=0)
        ways["Size"] = lambda: m.node("Size", [m.constant(np.zeros(int(array) % 50), 0)])
    if kind == INT64 and array.ndim == 1 and 0 < array.size < 5 and (array > 0).all() and array.prod() < 500:
        ways["Shape"] = lambda: m.node("Shape", [m.constant(np.zeros(array), 0)])
    steps = np.diff(array) if array.ndim == 1 and array.size > 1 else np.zeros(0)
    if steps.size and (steps == steps[0]).all() and steps[0] != 0:
        ends = array[0], array[-1] + steps[0], steps[0]
        ways["Range"] = lambda: m.node("Range", [inner(end) for end in ends])
    return ways[rng.choice(sorted(ways))]()


def _mask(m: Maker, mask: np.ndarray) -> str:
    """Truth values, as they are or by a comparison."""
    way = m.rng.choice(("plain", "Equal", "Less", "Greater", "Not"))
    if way == "plain":
        return m.constant(mask, 0)
    if way == "Not":
        return m.node("Not", [m.constant(~mask, 0)])
    side = {"Equal": [1, 1], "Less": [0, 1], "Greater": [1, 0]}[way]
    first = np.where(mask, side[0], side[1] if way != "Equal" else 0).astype(np.float32)
    return m.node(way, [m.constant(first, 0), m.constant(np.float32(0.5 if way != "Equal" else 1), 0)])


def _filled(m: Maker, array: np.ndarray) -> str:
    if array.size == 0 or (array != array.flat[0]).any():
        return m.constant(array, 0)
    value = None if array.flat[0] == 0 and array.dtype == np.float32 else array.reshape(-1)[:1]
    return m.node("ConstantOfShape", [m.constant(np.int64(array.shape), 0)], value=value)


def _axes(m: Maker, op: str, x: str, axes: list[int]) -> str:
    """`Squeeze` and `Unsqueeze`, whose axes became an input."""
    if m.since(13):
        return m.node(op, [x, m.constant(np.int64(axes), 0)])
    return m.node(op, [x], axes=axes)


def _sliced(m: Maker, x: str, starts: list[int], ends: list[int], axes: list[int], steps: Any = None) -> str:
    if not m.since(10):
        return m.node("Slice", [x], starts=starts, ends=ends, axes=axes)
    inputs = [x, m.ints(starts), m.ints(ends), m.ints(axes)]
    return m.node("Slice", [*inputs, m.ints(steps)] if steps else inputs)


# --- ops on values -------------------------------------------------------------------------------------------------

Drawn = Callable[[Maker, str, Shape], object]
OPS: dict[str, Drawn] = {}


def ops(*names: str) -> Callable[[Callable[[Maker, str, str, Shape], object]], Any]:
    """Register how some ops are drawn: a function of the maker, the op, a value's name and its shape."""

    def register(function: Callable[[Maker, str, str, Shape], object]) -> Any:
        for op in names:
            OPS[op] = lambda m, x, shape, op=op: function(m, op, x, shape)
        return function

    return register


def maybe(m: Maker, value: Any, share: float = 0.5) -> Any:
    """The value, or None for the default."""
    return value if m.rng.random() < share else None


@ops("Relu", "Sigmoid", "Tanh", "Atan", "Abs", "Erf", "Exp", "Softplus", "Identity", "Neg")
def _plain(m: Maker, op: str, x: str, shape: Shape) -> object:
    return m.node(op, [x])


@ops("LeakyRelu", "Elu", "HardSigmoid")
def _with_numbers(m: Maker, op: str, x: str, shape: Shape) -> object:
    alpha = m.rng.choice((0.2, 1.0, -0.5, 0.01, 3.0, 0.0))
    beta = m.rng.choice((0.5, 0.0, 2.0, -1.0)) if op == "HardSigmoid" else None
    return m.node(op, [x], alpha=maybe(m, alpha), beta=maybe(m, beta))


@ops("Gelu")
def _gelu(m: Maker, op: str, x: str, shape: Shape) -> object:
    return m.node(op, [x], approximate=maybe(m, m.rng.choice(("tanh", "none"))))


@ops("Softmax")
def _softmax(m: Maker, op: str, x: str, shape: Shape) -> object:
    return m.node(op, [x], axis=maybe(m, m.rng.choice((-1, len(shape) - 1, m.rng.randrange(-len(shape), len(shape))))))


@ops("PRelu")
def _prelu(m: Maker, op: str, x: str, shape: Shape) -> object:
    return m.node(op, [x, m.constant(m.floats(*near_shape(m.rng, shape)))])


@ops("Dropout")
def _dropout(m: Maker, op: str, x: str, shape: Shape) -> object:
    if not m.since(12):
        return m.node(op, [x], ratio=maybe(m, 0.4))
    ratio = m.rng.choice(("", m.constant(np.float32(m.rng.choice((0.0, 0.5))))))
    mode = m.rng.choice(([], [m.constant(np.array(m.rng.random() < 0.3))]))
    return m.node(op, [x, ratio, *mode] if mode or ratio else [x], m.rng.choice((1, 1, 2)))


@ops("Cast")
def _cast(m: Maker, op: str, x: str, shape: Shape) -> object:
    kind = m.rng.choice((FLOAT, DOUBLE, DOUBLE, INT64))
    first = m.node(op, [x], to=kind)
    for _ in range(m.rng.choice((0, 1, 3)) if kind == DOUBLE else 0):
        first = _in_doubles(m, first)
    return m.node(op, [first], to=FLOAT)


def _in_doubles(m: Maker, x: str) -> str:
    """An op of doubles, with numbers that float32 does not hold."""
    way = m.rng.choice(("Clip", "Clip", "Mul", "Add", "Relu", "LeakyRelu", "Max", "Min"))
    if way in ("Relu", "LeakyRelu"):
        return m.node(way, [x])
    if way == "Clip" and not m.since(11):
        return m.node(way, [x], min=maybe(m, -m.rng.choice(WIDE[:-2])), max=maybe(m, m.rng.choice(WIDE[:-2])))
    ends = (-m.rng.choice(WIDE), m.rng.choice(WIDE)) if way == "Clip" else (m.rng.choice((-1, 1)) * m.rng.choice(WIDE),)
    names = [m.name() for _ in ends]
    m.file["tensors"].update((name, tensor(np.array(end))) for name, end in zip(names, ends, strict=True))
    return m.node(way, [x, *names])


@ops("Clip")
def _clip(m: Maker, op: str, x: str, shape: Shape) -> object:
    low, high = sorted(m.rng.choice((m.rng.gauss(0, 1), m.rng.choice(FAR))) for _ in range(2))
    if not m.since(11):
        return m.node(op, [x], min=maybe(m, float(low), 0.7), max=maybe(m, float(high), 0.7))
    ends = [m.constant(np.float32(end)) if m.rng.random() < 0.7 else "" for end in (low, high)]
    return m.node(op, [x, *ends][: m.rng.choice((3, 3, 3, 2, 1))])


@ops("Pow")
def _pow(m: Maker, op: str, x: str, shape: Shape) -> object:
    return m.node(op, [x, m.constant(np.full(near_shape(m.rng, shape), m.rng.choice((2, 2, 2, 1, 3)), np.float32))])


@ops("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum")
def _combined(m: Maker, op: str, x: str, shape: Shape) -> object:
    if op in ("Max", "Min") and m.rng.random() < 0.3:
        limit = np.float32(m.rng.choice(FAR))
        return m.node(op, m.rng.sample([x, m.constant(np.full(near_shape(m.rng, shape), limit))], 2))
    count = m.rng.choice((0, 1, 1, 2)) if op in ("Max", "Min", "Sum") else 1
    operands = [x, *(m.other(shape) for _ in range(count))]
    if op != "Div":
        m.rng.shuffle(operands)
    return m.node(op, operands)


@ops("Gemm")
def _gemm(m: Maker, op: str, x: str, shape: Shape) -> object:
    if len(shape) != 2:
        x = m.node("Flatten", [x])
        shape = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, shape[0])
    turned, across = (m.rng.random() < 0.3 for _ in range(2))
    rows, inside = shape[::-1] if turned else shape
    size = m.rng.choice((rows, rows, 3, 4, 1))
    inputs = [x, m.constant(m.floats(*((size, inside) if across else (inside, size))))]
    offsets = ((size,), (1, size), (rows, size), (rows, 1), (1, 1), (1,), (), (rows,), (2, size))
    if m.rng.random() < 0.85:
        inputs.append(m.constant(m.floats(*m.rng.choice(offsets))))
    flags = {"transA": int(turned) or maybe(m, 0), "transB": int(across) or maybe(m, 0)}
    scales = {name: maybe(m, m.rng.choice((1.0, 0.5, -2.0, 0.1, 0.0)), 0.4) for name in ("alpha", "beta")}
    return m.node(op, inputs, **flags, **scales)


@ops("MatMul")
def _matmul(m: Maker, op: str, x: str, shape: Shape) -> object:
    way, size = m.rng.random(), m.rng.choice((1, 2, 3, shape[-1]))
    if way < 0.2 and len(shape) > 1:
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        return m.node(op, m.rng.sample([x, m.node("Transpose", [x], perm=order)], 2))
    if way < 0.45:
        weight = m.floats(
            *m.rng.choice(
                ((size, shape[-2 % len(shape)]), (shape[-2 % len(shape)],), (1, size, shape[-2 % len(shape)]))
            )
        )
        return m.node(op, [m.constant(weight), x])
    weight = m.floats(*m.rng.choice(((shape[-1], size), (shape[-1], size), (shape[-1],), (1, shape[-1], size))))
    return m.node(op, [x, m.constant(weight)])


def _window(m: Maker, shape: Shape) -> Attributes:
    """Strides, pads and dilations."""
    axes = len(shape) - 2
    found: Attributes = {"strides": maybe(m, [m.rng.choice((1, 2, 3)) for _ in range(axes)])}
    if m.rng.random() < 0.3:
        found["auto_pad"] = m.rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    elif m.rng.random() < 0.6:
        found["pads"] = [m.rng.choice((0, 0, 1, 1, 2)) for _ in range(2 * axes)]
        if m.rng.random() < 0.5:
            found["pads"] = found["pads"][:axes] * 2
    found["dilations"] = maybe(m, [m.rng.choice((1, 1, 2)) for _ in range(axes)], 0.25)
    return found


def _image(m: Maker, x: str, shape: Shape) -> tuple[str, Shape]:
    """The value as an image of one or two axes."""
    if len(shape) in (3, 4) and shape[0] == 1:
        return x, shape
    size = math.prod(shape)
    made = m.rng.choice([s for s in ((1, 1, size), (1, 1, 1, size), (1, 2, size // 2)) if math.prod(s) == size])
    return m.node("Reshape", [x, m.ints(made)]), made


@ops("Conv", "ConvTranspose")
def _conv(m: Maker, op: str, x: str, shape: Shape) -> object:
    x, shape = _image(m, x, shape)
    group = m.rng.choice((1, 1, shape[1]))
    kernel = [m.rng.choice((1, 2, 3)) for _ in shape[2:]]
    out = group * m.rng.choice((1, 2))
    sides = (out, shape[1] // group) if op == "Conv" else (shape[1], out // group)
    inputs = [x, m.constant(m.floats(*sides, *kernel))]
    if m.rng.random() < 0.6:
        inputs.append(m.constant(m.floats(out)))
    more: Attributes = {"group": group if group > 1 else maybe(m, 1), "kernel_shape": maybe(m, kernel)}
    if op == "ConvTranspose":
        more["output_padding"] = maybe(m, [m.rng.choice((0, 1)) for _ in kernel], 0.3)
    return m.node(op, inputs, **more, **_window(m, shape))


@ops("AveragePool", "MaxPool")
def _pool(m: Maker, op: str, x: str, shape: Shape) -> object:
    x, shape = _image(m, x, shape)
    more = _window(m, shape)
    if op == "AveragePool":
        more["count_include_pad"] = maybe(m, m.rng.choice((0, 1)))
        more["dilations"] = more["dilations"] if m.since(19) else None
    elif not m.since(10):
        more["dilations"] = None
    more["ceil_mode"] = maybe(m, m.rng.choice((0, 1)), 0.6) if m.since(10) else None
    return m.node(op, [x], kernel_shape=[m.rng.choice((1, 2, 2, 3)) for _ in shape[2:]], **more)


@ops("GlobalAveragePool", "GlobalMaxPool")
def _global(m: Maker, op: str, x: str, shape: Shape) -> object:
    return m.node(op, [_image(m, x, shape)[0]])


@ops("BatchNormalization")
def _batch_norm(m: Maker, op: str, x: str, shape: Shape) -> object:
    size = shape[1] if len(shape) > 1 else shape[0]
    parts = [m.constant(m.floats(size, positive=k == 3)) for k in range(4)]
    mode = maybe(m, m.rng.choice((0, 0, 1)), 0.3) if m.since(14) else None
    spatial = maybe(m, m.rng.choice((0, 1)), 0.2) if not m.since(9) else None
    epsilon = maybe(m, m.rng.choice((1e-5, 1e-3, 0.0, 1.0)))
    return m.node(op, [x, *parts], epsilon=epsilon, momentum=maybe(m, 0.5), training_mode=mode, spatial=spatial)


@ops("ReduceMean", "ReduceSum")
def _reduce(m: Maker, op: str, x: str, shape: Shape) -> object:
    axes = m.rng.sample(range(len(shape)), m.rng.randint(0, len(shape)))
    axes = [axis - (len(shape) if m.rng.random() < 0.3 else 0) for axis in axes]
    keep = maybe(m, m.rng.choice((0, 1)))
    if not m.since(13 if op == "ReduceSum" else 18):
        return m.node(op, [x], axes=axes or None, keepdims=keep)
    inputs = [x] if m.rng.random() < 0.2 else [x, m.rng.choice((m.ints(axes), m.ints(axes), ""))]
    return m.node(op, inputs, keepdims=keep, noop_with_empty_axes=maybe(m, m.rng.choice((0, 1)), 0.3))


@ops("Flatten")
def _flatten(m: Maker, op: str, x: str, shape: Shape) -> object:
    return m.node(op, [x], axis=maybe(m, m.rng.randint(-len(shape), len(shape)), 0.6))


@ops("Reshape")
def _reshape(m: Maker, op: str, x: str, shape: Shape) -> object:
    size = math.prod(shape)
    wanted = m.rng.choice(
        [[size], [1, size], [-1], [0, -1], [size, 1], [1, -1, shape[-1]], [*shape[::-1]], [1, *shape]]
    )
    if m.rng.random() < 0.3:
        wanted[m.rng.randrange(len(wanted))] = m.rng.choice((-1, 0))
    target = m.ints(wanted)
    if m.rng.random() < 0.3:
        sizes = m.node(
            "Shape", [x], **({"start": m.rng.choice((0, 1, -1))} if m.since(15) and m.rng.random() < 0.3 else {})
        )
        first = m.node("Gather", [sizes, m.ints([m.rng.choice((0, -1))])], axis=maybe(m, 0))
        target = m.node("Concat", [first, m.ints([-1])], axis=0)
    return m.node(op, [x, target], allowzero=maybe(m, m.rng.choice((0, 1)), 0.2) if m.since(14) else None)


@ops("Squeeze", "Unsqueeze")
def _squeeze(m: Maker, op: str, x: str, shape: Shape) -> object:
    if op == "Squeeze":
        thin = [k for k, n in enumerate(shape) if n == 1]
        axes = [
            k - (len(shape) if m.rng.random() < 0.4 else 0) for k in m.rng.sample(thin, m.rng.randint(0, len(thin)))
        ]
        if not axes:
            return m.node(op, [x])
    else:
        rank = len(shape) + m.rng.choice((1, 1, 2))
        axes = [k - (rank if m.rng.random() < 0.4 else 0) for k in m.rng.sample(range(rank), rank - len(shape))]
    return _axes(m, op, x, axes)


@ops("Transpose")
def _transpose(m: Maker, op: str, x: str, shape: Shape) -> object:
    return m.node(op, [x], perm=maybe(m, m.rng.sample(range(len(shape)), len(shape)), 0.7))


@ops("Slice")
def _slice(m: Maker, op: str, x: str, shape: Shape) -> object:
    axes = m.rng.sample(range(len(shape)), m.rng.randint(1, len(shape)))
    steps = [m.rng.choice((1, 1, 2, -1, -2)) if m.since(10) else 1 for _ in axes]
    extreme = (0, 1, -1, 2, -2, 2**31, -(2**31), 2**63 - 1, -(2**63), 5, -5)
    starts, ends = ([m.rng.choice(extreme) for _ in axes] for _ in range(2))
    for k, step in enumerate(steps):
        if m.rng.random() < 0.6:
            starts[k], ends[k] = (m.rng.choice((0, 1)), 2**31) if step > 0 else (-1, -(2**31))
    axes = [axis - (len(shape) if m.rng.random() < 0.3 else 0) for axis in axes]
    return _sliced(
        m, x, starts, ends, axes, steps if any(step != 1 for step in steps) or m.rng.random() < 0.3 else None
    )


@ops("Gather")
def _gather(m: Maker, op: str, x: str, shape: Shape) -> object:
    axis = m.rng.randrange(len(shape))
    index = np.array(
        [m.rng.randrange(-shape[axis], shape[axis]) for _ in range(6)], m.rng.choice((np.int64, np.int64, np.int32))
    ).reshape(2, 3)
    index = m.rng.choice((index, index[0], index[:, :1], index[0, 0]))
    if m.rng.random() < 0.05:
        index = index * 0 + shape[axis]
    return m.node(op, [x, m.constant(index, 0)], axis=maybe(m, axis - (len(shape) if m.rng.random() < 0.3 else 0), 0.9))


@ops("Split")
def _split(m: Maker, op: str, x: str, shape: Shape) -> object:
    axis = m.rng.randrange(len(shape))
    cut = m.rng.randint(0, shape[axis])
    sizes, near = [cut, shape[axis] - cut], axis - (len(shape) if m.rng.random() < 0.3 else 0)
    if m.rng.random() < 0.4:
        count = m.rng.choice((1, 2, 3))
        parts = m.node(op, [x], count, axis=near, num_outputs=count if m.since(18) else None)
    elif m.since(13):
        parts = m.node(op, [x, m.ints(sizes)], 2, axis=near)
    else:
        parts = m.node(op, [x], 2, axis=near, split=sizes)
    names = m.file["nodes"][-1]["out"]
    if len(names) > 1 and m.rng.random() < 0.7:
        return m.node("Concat", m.rng.sample(names, len(names)), axis=near)
    return parts


@ops("Expand")
def _expand(m: Maker, op: str, x: str, shape: Shape) -> object:
    return m.node(op, [x, m.ints(near_shape(m.rng, shape))])


@ops("Concat")
def _concat(m: Maker, op: str, x: str, shape: Shape) -> object:
    axis = m.rng.randrange(len(shape))
    around = (shape[:axis], shape[axis + 1 :])
    fitting = [name for name, s in m.values.items() if (s[:axis], s[axis + 1 :]) == around]
    parts = [x]
    for _ in range(m.rng.choice((0, 1, 1, 2))):
        size = m.rng.choice((0, 1, 1, 2))
        stored = m.constant(m.floats(*shape[:axis], size, *shape[axis + 1 :]))
        parts.append(m.rng.choice((stored, m.rng.choice(fitting))))
    m.rng.shuffle(parts)
    return m.node(op, parts, axis=axis - (len(shape) if m.rng.random() < 0.3 else 0))


@ops("Pad")
def _pad(m: Maker, op: str, x: str, shape: Shape) -> object:
    pads = [m.rng.choice((0, 0, 0, 1, 2, -1)) for _ in range(2 * len(shape))]
    mode = maybe(m, m.rng.choice(("constant", "constant", "reflect", "edge")), 0.4)
    if not m.since(11):
        return m.node(op, [x], pads=pads, mode=mode, value=maybe(m, 0.7))
    inputs = [x, m.ints(pads)]
    if m.rng.random() < 0.6:
        inputs.append(m.rng.choice((m.constant(np.float32(0.7)), "", m.constant(np.float32(0)))))
    if m.since(18) and m.rng.random() < 0.3:
        axes = m.rng.sample(range(-len(shape), 0), m.rng.randint(1, len(shape)))
        inputs = [x, m.ints(pads[: 2 * len(axes)]), inputs[2] if len(inputs) > 2 else "", m.ints(axes)]
    return m.node(op, inputs, mode=mode)


@ops("LSTM", "GRU", "RNN")
def _recurrent(m: Maker, op: str, x: str, shape: Shape) -> object:
    if len(shape) != 3 or shape[1] != 1:
        size = math.prod(shape)
        shape = m.rng.choice([s for s in ((size, 1, 1), (1, 1, size), (2, 1, size // 2)) if math.prod(s) == size])
        x = m.node("Reshape", [x, m.ints(shape)])
    gates, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], m.rng.choice((1, 2))
    inputs = [x, *(m.constant(m.floats(1, gates * hidden, n)) for n in (shape[2], hidden))]
    if m.rng.random() < 0.7:
        inputs.append(m.constant(m.floats(1, 2 * gates * hidden)))
        if m.rng.random() < 0.2:
            length = m.rng.choice(("", m.constant(np.int32([shape[0] - m.rng.choice((0, 0, 1))]), 0)))
            inputs += [length, m.constant(np.zeros((1, 1, hidden)) if m.rng.random() < 0.7 else m.floats(1, 1, hidden))]
    more: Attributes = {"hidden_size": hidden if m.rng.random() < 0.9 else None}
    more["linear_before_reset"] = m.rng.choice((1, 1, 1, 0)) if op == "GRU" else None
    more["activations"] = maybe(m, ["Relu"], 0.3) if op == "RNN" else None
    more["clip"] = maybe(m, 0.5, 0.05)
    more["direction"] = maybe(m, m.rng.choice(("forward", "reverse")), 0.1)
    m.node(op, inputs, 2, **more)
    names = m.file["nodes"][-1]["out"]
    return m.node("Identity", [m.rng.choice(names)])


def by_schema(m: Maker, op: str, x: str, shape: Shape) -> object:
    """An op of which nothing is known but its schema: the value, constants of its shape, attributes of their type."""
    schema = onnx.defs.get_schema(op, m.opset)
    count = m.rng.randint(max(schema.min_input, 1), max(1, min(schema.max_input, 3)))
    kinds = {"INT": m.rng.randint(-1, 2), "FLOAT": m.rng.gauss(0, 1), "INTS": [m.rng.randint(0, 2)]}
    known = {name: kinds.get(a.type.name) for name, a in schema.attributes.items()}
    chosen = {name: value for name, value in known.items() if m.rng.random() < 0.4 or schema.attributes[name].required}
    return m.node(op, [x, *(m.other(shape) for _ in range(count - 1))], max(1, schema.min_output), **chosen)


@cache
def values_ops() -> tuple[str, ...]:
    """Every op that the reader knows for values."""
    return tuple(sorted(known_ops()))


@cache
def all_ops() -> tuple[str, ...]:
    """Every op that the reader knows for values, and for constants."""
    return tuple(sorted(known_ops().keys() | FOLDS.keys()))


def made(rng: random.Random) -> File:
    """A file of a few ops; nearly all are as onnxruntime accepts them."""
    m = Maker(rng)
    wanted, tries = rng.choice((1, 1, 2, 2, 3, 4)), 0
    while wanted and tries < 12:
        tries += 1
        before = len(m.file["nodes"]), dict(m.file["tensors"])
        x = rng.choice(list(m.values)[-2:])
        op = rng.choice(values_ops() if rng.random() < 0.98 else all_ops())
        try:
            OPS.get(op, lambda m, x, shape, op=op: by_schema(m, op, x, shape))(m, x, m.values[x])
        except (onnx.defs.SchemaError, ValueError, KeyError):
            del m.file["nodes"][before[0] :]
            m.file["tensors"] = before[1]
            continue
        if len(m.file["nodes"]) == before[0]:
            continue
        name = m.file["nodes"][-1]["out"][0]
        shape = _shape(m.file, name)
        if shape is None or math.prod(shape) > MOST:
            if shape is None and rng.random() < 0.05:
                m.file["output"] = name
                break
            del m.file["nodes"][before[0] :]
            m.file["tensors"] = before[1]
            continue
        m.file["output"] = name
        wanted -= 1
        if shape and 0 not in shape:
            m.values[name] = shape
    if not m.file["nodes"]:
        m.file["output"] = m.node("Relu", ["x"])
    if rng.random() < 0.1:
        m.file = lifted(m.file)
    return m.file


def _shape(file: File, name: str) -> Shape | None:
    """The shape of a value, as onnxruntime has it; None where it refuses the file."""
    sizes = [size if isinstance(size, int) and size else 1 for size in file["input"]["shape"]]
    try:
        session = session_of({**file, "output": name})
        return tuple(np.asarray(session.run(None, {"x": np.zeros(sizes, np.float32)})[0]).shape)
    except Exception:  # of many types
        return None
