"""The true value of a network: its traced program in 1600 bits, by definitions that share no code with polycert.

Arrays are numpy arrays of `mpf` with a batch axis of 1. Sums and products of floating-point numbers are exact in so
many bits, but for products over several layers at opposite ends of the range, where 480 digits are enough.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mpmath
import numpy as np
import torch
from mpmath import mp, mpf
from numpy.typing import NDArray
from torch import nn

BITS = 1600
LARGEST = mpf(2) ** 3000  # exponentials of more are not computed

Array = NDArray[Any]


class TooFarError(ArithmeticError):
    """A value is beyond what can be written down: such a point is left out."""


@contextmanager
def precise(bits: int = BITS) -> Iterator[None]:
    """So many bits for all of mpmath."""
    with mp.workprec(bits):
        yield


def exact(values: torch.Tensor | float | Sequence[float]) -> Array:
    """Numbers as they are."""
    given = np.asarray(values.detach().double().numpy() if isinstance(values, torch.Tensor) else values, dtype=object)
    return elementwise(lambda value: mpf(float(value)))(given)


def elementwise(function: Callable[..., Any]) -> Callable[..., Array]:
    """A function of numbers as one of arrays of objects."""
    vectorised = np.frompyfunc(function, 1, 1)
    return lambda values: np.asarray(vectorised(values), dtype=object).reshape(np.shape(values))


def _exp(z: mpf) -> mpf:
    if z > LARGEST:
        raise TooFarError
    return mpf(0) if z < -LARGEST else mpmath.exp(z)


def _log1p_exp(z: mpf) -> mpf:
    return z + _log1p_exp(-z) if z > 0 else mpmath.log1p(_exp(z))


def _sigmoid(z: mpf) -> mpf:
    return 1 / (1 + _exp(-z)) if z > 0 else _exp(z) / (1 + _exp(z))


def _tanh(z: mpf) -> mpf:
    return mpmath.sign(z) if abs(z) > LARGEST else mpmath.tanh(z)


def _erf(z: mpf) -> mpf:
    return mpmath.sign(z) if abs(z) > 2**12 else mpmath.erf(z)


def _gelu(z: mpf) -> mpf:
    return max(z, mpf(0)) if abs(z) > 2**12 else z * mpmath.erfc(-z / mpmath.sqrt(2)) / 2


def _gelu_tanh(z: mpf) -> mpf:
    # 0.044715 is written so in the definition, as a number in the code: its float64 value.
    return z * _sigmoid(2 * mpmath.sqrt(2 / mpmath.pi) * (z + mpf(0.044715) * z**3))


relu = elementwise(lambda z: max(z, mpf(0)))
sigmoid, tanh = elementwise(_sigmoid), elementwise(_tanh)


def leaky(slope: float) -> Callable[[Array], Array]:
    """`max(z, 0) + slope * min(z, 0)`."""
    return elementwise(lambda z: z if z >= 0 else mpf(slope) * z)


def clamp(values: Array, low: float | None, high: float | None) -> Array:
    """`min(max(z, low), high)`."""
    at_least = values if low is None else elementwise(lambda z: max(z, mpf(low)))(values)
    return at_least if high is None else elementwise(lambda z: min(z, mpf(high)))(at_least)


ELEMENTWISE: dict[str, Callable[[Array], Array]] = {
    "relu": relu,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "atan": elementwise(mpmath.atan),
    "arctan": elementwise(mpmath.atan),
    "erf": elementwise(_erf),
    "abs": elementwise(abs),
    "exp": elementwise(_exp),
    "square": elementwise(lambda z: z * z),
    "neg": elementwise(operator.neg),
    "elu": elementwise(lambda z: z if z > 0 else mpmath.expm1(max(z, -LARGEST))),
    "silu": elementwise(lambda z: z * _sigmoid(z)),
    "softplus": elementwise(_log1p_exp),
    "gelu": elementwise(_gelu),
    "gelu_tanh": elementwise(_gelu_tanh),
}


def bent_elu(x: Array, alpha: float = 1.0, scale: float = 1.0, steepness: Any = 1.0) -> Array:
    """`scale * z` right of 0, `scale * alpha * (exp(steepness * z) - 1)` left of it."""

    def value(z: mpf) -> mpf:
        left = mpf(alpha) * mpmath.expm1(max(mpf(steepness) * z, -LARGEST))
        return mpf(scale) * (z if z > 0 else left)

    return elementwise(value)(x)


SELU = (1.6732632423543772848, 1.0507009873554804934)


def _along(weight: Array, x: Array) -> Array:
    """A number for each channel of `[batch, channels, ...]`."""
    return np.asarray(weight).reshape(1, -1, *(1,) * (x.ndim - 2))


def _glu(x: Array, axis: int = -1) -> Array:
    first, second = np.split(x, 2, axis=axis)
    return np.asarray(first * sigmoid(second))


def softmax(values: Array, axis: int) -> Array:
    """Shifted by the largest."""
    powers = ELEMENTWISE["exp"](values - values.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """`x W^T + b` along the last axis."""
    value = np.dot(x, weight.T)
    return value if bias is None else value + bias


def _pair(value: Any, axes: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * axes if len(values) == 1 else values


def _zeros(shape: Sequence[int]) -> Array:
    return np.full(tuple(shape), mpf(0), dtype=object)


def _padded(x: Array, sides: Sequence[tuple[int, int]], value: Any) -> Array:
    """Sides of the last axes, negative ones cut."""
    for axis, (before, after) in enumerate(sides, start=x.ndim - len(sides)):
        keep = slice(max(-before, 0), x.shape[axis] - max(-after, 0))
        x = x[(slice(None),) * axis + (keep,)]
        width = [(0, 0)] * x.ndim
        width[axis] = (max(before, 0), max(after, 0))
        x = np.pad(x, width, constant_values=value)
    return x


def _offsets(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    return list(np.ndindex(*sizes))


def _windows(x: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[Array]:
    """For each place in the kernel, what it sees at all positions: a list of `[batch, channels, *positions]`."""
    axes = len(kernel)
    counts = [(x.shape[k - axes] - dilation[k] * (kernel[k] - 1) - 1) // stride[k] + 1 for k in range(axes)]
    found = []
    for place in _offsets(kernel):
        cuts = [
            slice(place[k] * dilation[k], place[k] * dilation[k] + (counts[k] - 1) * stride[k] + 1, stride[k])
            for k in range(axes)
        ]
        found.append(x[(slice(None), slice(None), *cuts)])
    return found


def convolution(
    x: Array, weight: Array, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Array:
    """Any number of axes."""
    axes = weight.ndim - 2
    stride, dilation, kernel = _pair(stride, axes), _pair(dilation, axes), weight.shape[2:]
    if padding == "same":
        total = [dilation[k] * (kernel[k] - 1) for k in range(axes)]
        sides = [(size // 2, size - size // 2) for size in total]
    else:
        sides = [(0, 0)] * axes if padding == "valid" else [(size, size) for size in _pair(padding, axes)]
    seen = _windows(_padded(x, sides, mpf(0)), kernel, stride, dilation)
    per_in, per_out = weight.shape[1], weight.shape[0] // groups
    value = _zeros((x.shape[0], weight.shape[0], *seen[0].shape[2:]))
    for part, place in zip(seen, _offsets(kernel), strict=True):
        for out in range(weight.shape[0]):
            first = out // per_out * per_in
            for channel in range(per_in):
                value[:, out] += weight[(out, channel, *place)] * part[:, first + channel]
    return value if bias is None else value + bias.reshape(1, -1, *(1,) * axes)


def transposed(
    x: Array,
    weight: Array,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Array:
    """Every input entry adds its multiple of the kernel to the output."""
    axes = weight.ndim - 2
    stride, dilation, kernel = _pair(stride, axes), _pair(dilation, axes), weight.shape[2:]
    padding, more = _pair(padding, axes), _pair(output_padding, axes)
    full = [(x.shape[2 + k] - 1) * stride[k] + dilation[k] * (kernel[k] - 1) + 1 + more[k] for k in range(axes)]
    per_in, per_out = x.shape[1] // groups, weight.shape[1]
    value = _zeros((x.shape[0], per_out * groups, *full))
    for position in _offsets(x.shape[2:]):
        for place in _offsets(kernel):
            at = tuple(position[k] * stride[k] + place[k] * dilation[k] for k in range(axes))
            for channel in range(x.shape[1]):
                first = channel // per_in * per_out
                for out in range(per_out):
                    value[(slice(None), first + out, *at)] += (
                        x[(slice(None), channel, *position)] * weight[(channel, out, *place)]
                    )
    keep = tuple(slice(padding[k], full[k] - padding[k]) for k in range(axes))
    value = value[(slice(None), slice(None), *keep)]
    return value if bias is None else value + bias.reshape(1, -1, *(1,) * axes)


def max_pool(x: Array, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1) -> Array:
    """The largest of each window; 1-D windows have one number."""
    axes = x.ndim - 2
    kernel = _pair(kernel, axes)
    sides = [(size, size) for size in _pair(padding, axes)]
    lowest = -mpf("inf")
    seen = _windows(_padded(x, sides, lowest), kernel, _pair(stride or kernel, axes), _pair(dilation, axes))
    return np.asarray(np.maximum.reduce(np.stack(seen)))


def average_pool(x: Array, kernel: Any, stride: Any = (), padding: Any = 0) -> Array:
    """The mean of each window, padding counted."""
    axes = x.ndim - 2
    kernel = _pair(kernel, axes)
    sides = [(size, size) for size in _pair(padding, axes)]
    seen = _windows(_padded(x, sides, mpf(0)), kernel, _pair(stride or kernel, axes), [1] * axes)
    return np.asarray(np.add.reduce(np.stack(seen)) / mpf(len(seen)))


def adaptive_pool(x: Array, sizes: Sequence[int]) -> Array:
    """Means over windows that share the input out."""
    value = _zeros((*x.shape[:2], *sizes))
    for i, j in np.ndindex(*sizes):
        rows = slice(i * x.shape[2] // sizes[0], -(-(i + 1) * x.shape[2] // sizes[0]))
        columns = slice(j * x.shape[3] // sizes[1], -(-(j + 1) * x.shape[3] // sizes[1]))
        part = x[:, :, rows, columns]
        value[:, :, i, j] = part.sum(axis=(2, 3)) / mpf(part.shape[2] * part.shape[3])
    return value


def batch_norm(
    x: Array, weight: Any, bias: Any, mean: Array, var: Array, training: bool, momentum: float, eps: float, *_: Any
) -> Array:
    """By the running statistics."""
    if training:
        raise NotImplementedError("batch norm in training mode")
    shape = (1, -1, *(1,) * (x.ndim - 2))
    value = (x - mean.reshape(shape)) / elementwise(mpmath.sqrt)(var + mpf(eps)).reshape(shape)
    value = value if weight is None else value * weight.reshape(shape)
    return value if bias is None else value + bias.reshape(shape)


def _split(x: Array, sizes: Any, axis: int = 0) -> list[Array]:
    lengths = [sizes] * -(-x.shape[axis] // sizes) if isinstance(sizes, int) else list(sizes)
    return np.split(x, np.cumsum(lengths)[:-1], axis=axis)


def _chunk(x: Array, count: int, axis: int = 0) -> list[Array]:
    return _split(x, -(-x.shape[axis] // count), axis)


def _slice(x: Array, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[(slice(None),) * axis + (slice(start, end, step),)]


def _pad(x: Array, sides: Sequence[int], mode: str = "constant", value: float | None = None) -> Array:
    pairs = [(sides[k], sides[k + 1]) for k in range(0, len(sides), 2)][::-1]
    if mode != "constant":
        width = [(0, 0)] * (x.ndim - len(pairs)) + pairs
        return np.pad(x, width, mode={"reflect": "reflect", "circular": "wrap", "replicate": "edge"}[mode])
    return _padded(x, pairs, mpf(value or 0))


def _flatten(x: Array, start: int = 0, end: int = -1) -> Array:
    start, end = start % x.ndim, end % x.ndim
    return x.reshape(*x.shape[:start], -1, *x.shape[end + 1 :])


def _unflatten(x: Array, axis: int, sizes: Sequence[int]) -> Array:
    axis %= x.ndim
    return x.reshape(*x.shape[:axis], *sizes, *x.shape[axis + 1 :])


def _squeeze(x: Array, axes: Any = None) -> Array:
    every = range(1, x.ndim)  # but the batch
    wanted = every if axes is None else [axes] if isinstance(axes, int) else axes
    return np.squeeze(x, tuple(k for k in wanted if x.shape[k] == 1))


def _sum(x: Array, axes: Any, keep: bool = False, **_: Any) -> Array:
    return np.asarray(x.sum(axis=tuple(axes), keepdims=keep))


def _mean(x: Array, axes: Any, keep: bool = False, **_: Any) -> Array:
    return _sum(x, axes, keep) / mpf(math.prod(x.shape[k] for k in axes))


def _pixel_shuffle(x: Array, factor: int) -> Array:
    """Channels become pixels: `[n, c * factor^2, h, w]` to `[n, c, h * factor, w * factor]`."""
    n, channels, height, width = x.shape
    parts = x.reshape(n, channels // factor**2, factor, factor, height, width).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, channels // factor**2, height * factor, width * factor)


def _pixel_unshuffle(x: Array, factor: int) -> Array:
    n, channels, height, width = x.shape
    parts = x.reshape(n, channels, height // factor, factor, width // factor, factor).transpose(0, 1, 3, 5, 2, 4)
    return parts.reshape(n, channels * factor**2, height // factor, width // factor)


def _channel_shuffle(x: Array, groups: int) -> Array:
    n, channels, *rest = x.shape
    return np.swapaxes(x.reshape(n, groups, channels // groups, *rest), 1, 2).reshape(x.shape)


def _nearest(x: Array, sizes: Sequence[int] | None, factors: Sequence[float] | None) -> Array:
    """Every pixel of the result is the one of x that it lies in."""
    for k, old in enumerate(x.shape[2:]):
        size = sizes[k] if sizes is not None else int(old * (factors or [])[k])
        x = np.take(x, [place * old // size for place in range(size)], axis=2 + k)
    return x


def _plus(sign: int) -> Callable[..., Array]:
    def apply(x: Any, other: Any, *, alpha: float = 1) -> Array:
        return np.asarray(x + sign * _number(alpha) * _number(other))

    return apply


def _number(value: Any) -> Any:
    return mpf(value) if isinstance(value, (int, float)) else value


def _maximum(x: Array, other: Array) -> Array:
    return np.asarray(np.maximum(x, other))


# --- recurrent layers: the gates' order is torch's --------------------------------------------------------------------


def _gates(x: Array, h: Array, weights: Sequence[Array]) -> tuple[Array, Array]:
    own = weights[2] if len(weights) > 2 else None
    other = weights[3] if len(weights) > 3 else None
    return linear(x, weights[0], own), linear(h, weights[1], other)


def lstm_cell(x: Array, state: Sequence[Array], *weights: Array) -> tuple[Array, Array]:
    """Input, forget, cell and output gate."""
    first, second = _gates(x, state[0], weights)
    i, f, g, o = np.split(first + second, 4, axis=1)
    cell = sigmoid(f) * state[1] + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(cell), cell


def gru_cell(x: Array, h: Array, *weights: Array) -> Array:
    """Reset, update and new gate."""
    first, second = _gates(x, h, weights)
    (r, z, n), (r2, z2, n2) = np.split(first, 3, axis=1), np.split(second, 3, axis=1)
    reset, update = sigmoid(r + r2), sigmoid(z + z2)
    return np.asarray((1 - update) * tanh(n + reset * n2) + update * h)


def rnn_cell(function: Callable[[Array], Array]) -> Callable[..., Array]:
    """One layer's step."""

    def step(x: Array, h: Array, *weights: Array) -> Array:
        first, second = _gates(x, h, weights)
        return function(first + second)

    return step


def _recurrent(cell: Callable[..., Any], states: int) -> Callable[..., tuple[Array, ...]]:
    def run(
        x: Array,
        start: Any,
        weights: Sequence[Array],
        biases: bool,
        layers: int,
        dropout: float,
        training: bool,
        both_ways: bool,
        batch_first: bool,
    ) -> tuple[Array, ...]:
        if both_ways:
            raise NotImplementedError("both ways")
        values = x if batch_first else np.swapaxes(x, 0, 1)
        each = 4 if biases else 2
        for layer in range(layers):
            own = weights[each * layer : each * (layer + 1)]
            state = [part[layer] for part in start] if states == 2 else start[layer]
            steps = []
            for k in range(values.shape[1]):
                state = cell(values[:, k], state, *own)
                steps.append(state[0] if states == 2 else state)
            values = np.stack(steps, axis=1)
        return (values if batch_first else np.swapaxes(values, 0, 1), None, None)

    return run


def _exactly(name: str) -> Callable[..., Array]:
    def apply(x: Array, *rest: Any, **_: Any) -> Array:
        if name == "softplus" and rest and rest[0] != 1:
            raise NotImplementedError("softplus with beta")
        return ELEMENTWISE[name](x)

    return apply


OPS: dict[str, Callable[..., Any]] = {
    **{name: _exactly(name) for name in ELEMENTWISE if name != "gelu_tanh"},
    "gelu": lambda x, approximate="none": ELEMENTWISE["gelu_tanh" if approximate == "tanh" else "gelu"](x),
    "leaky_relu": lambda x, slope=0.01: leaky(slope)(x),
    "elu": bent_elu,
    "selu": lambda x: bent_elu(x, SELU[0], SELU[1]),
    "celu": lambda x, alpha=1.0: bent_elu(x, alpha, 1.0, 1 / mpf(alpha)),
    "softplus": lambda x, beta=1.0, threshold=20.0: ELEMENTWISE["softplus"](x * mpf(beta)) / mpf(beta),
    "log_sigmoid": lambda x: -ELEMENTWISE["softplus"](-x),
    "hardsigmoid": lambda x: clamp(x + 3, 0.0, 6.0) / 6,
    "prelu": lambda x, weight: np.where(x >= 0, x, x * _along(weight, x)),
    "glu": _glu,
    "clamp": lambda x, low=None, high=None: clamp(x, low, high),
    "hardtanh": lambda x, low=-1.0, high=1.0: clamp(x, low, high),
    "clamp_min": lambda x, low: clamp(x, low, None),
    "clamp_max": lambda x, high: clamp(x, None, high),
    "pow": lambda x, exponent: x**exponent,
    "linear": linear,
    "addmm": lambda bias, x, matrix: np.dot(x, matrix) + bias,
    "matmul": np.matmul,
    "mm": np.matmul,
    "bmm": np.matmul,
    "add": _plus(1),
    "sub": _plus(-1),
    "rsub": lambda x, other, alpha=1: _number(other) - _number(alpha) * x,
    "mul": lambda x, other: np.asarray(x * _number(other)),
    "div": lambda x, other: np.asarray(x / _number(other)),
    "maximum": _maximum,
    "minimum": lambda x, other: -_maximum(-x, -other),
    "conv1d": convolution,
    "conv2d": convolution,
    "convolution": lambda x, w, b, s, p, d, flipped, more, groups: (
        transposed(x, w, b, s, p, more, groups, d) if flipped else convolution(x, w, b, s, p, d, groups)
    ),
    "conv_transpose1d": transposed,
    "conv_transpose2d": transposed,
    "max_pool1d": max_pool,
    "max_pool2d": max_pool,
    "avg_pool2d": average_pool,
    "adaptive_avg_pool2d": adaptive_pool,
    "batch_norm": batch_norm,
    "_native_batch_norm_legit_no_training": lambda x, w, b, mean, var, momentum, eps: (
        batch_norm(x, w, b, mean, var, False, momentum, eps),
        None,
        None,
    ),
    "softmax": softmax,
    "_softmax": lambda x, axis, half: softmax(x, axis),
    "lstm": _recurrent(lstm_cell, 2),
    "gru": _recurrent(gru_cell, 1),
    "rnn_tanh": _recurrent(rnn_cell(tanh), 1),
    "rnn_relu": _recurrent(rnn_cell(relu), 1),
    "lstm_cell": lstm_cell,
    "gru_cell": gru_cell,
    "rnn_tanh_cell": rnn_cell(tanh),
    "rnn_relu_cell": rnn_cell(relu),
    "full": lambda shape, value, **_: np.full(tuple(shape), mpf(value), dtype=object),
    "zeros": lambda shape, **_: _zeros(shape),
    "cat": lambda parts, axis=0: np.concatenate(parts, axis=axis),
    "concat": lambda parts, axis=0: np.concatenate(parts, axis=axis),
    "stack": lambda parts, axis=0: np.stack(parts, axis=axis),
    "split": _split,
    "split_with_sizes": _split,
    "chunk": _chunk,
    "unbind": lambda x, axis=0: [np.take(x, k, axis=axis) for k in range(x.shape[axis])],
    "slice": _slice,
    "select": lambda x, axis, index: np.take(x, index, axis=axis),
    "pad": _pad,
    "constant_pad_nd": lambda x, sides, value=0: _pad(x, sides, value=value),
    "expand": lambda x, sizes: np.broadcast_to(x, [x.shape[k] if n == -1 else n for k, n in enumerate(sizes)]),
    "flip": lambda x, axes: np.flip(x, axes),
    "roll": lambda x, shifts, axes: np.roll(x, shifts, axes),
    "movedim": lambda x, source, target: np.moveaxis(x, source, target),
    "pixel_shuffle": _pixel_shuffle,
    "pixel_unshuffle": _pixel_unshuffle,
    "channel_shuffle": _channel_shuffle,
    "upsample_nearest1d": _nearest,
    "upsample_nearest2d": _nearest,
    "view": lambda x, sizes: x.reshape(sizes),
    "reshape": lambda x, sizes: x.reshape(sizes),
    "_unsafe_view": lambda x, sizes: x.reshape(sizes),
    "flatten": _flatten,
    "unflatten": _unflatten,
    "squeeze": _squeeze,
    "unsqueeze": lambda x, axis: np.expand_dims(x, axis),
    "permute": lambda x, axes: np.transpose(x, axes),
    "transpose": lambda x, first, second: np.swapaxes(x, first, second),
    "t": lambda x: x.T,
    "numpy_T": lambda x: x.T,
    "mean": _mean,
    "sum": _sum,
    **{
        name: lambda x, *_, **__: x
        for name in ("dropout", "feature_dropout", "alpha_dropout", "contiguous", "clone", "detach", "alias")
    },
}


def op_of(target: str) -> str:
    """`aten.leaky_relu_.default` is `leaky_relu`."""
    name = target.split(".")[1]
    return name if name.startswith("_") or not name.endswith("_") else name[:-1]


class Oracle:
    """A module's traced program: true outputs for the weights that the module has at the moment."""

    def __init__(self, module: nn.Module, shape: tuple[int, ...]) -> None:
        like = next(iter(module.parameters())).dtype
        self.module = module
        self.program = torch.export.export(module, (torch.rand(1, *shape, dtype=like),), strict=False)
        self.targets = {str(n.target) for n in self.program.graph.nodes if n.op == "call_function"}

    def outputs(self, point: Array) -> Array:
        """`[outputs]` at a point `[*shape]`."""
        tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        signature, constants = self.program.graph_signature, self.program.constants
        places = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        lifted = signature.inputs_to_lifted_tensor_constants
        values: dict[Any, Any] = {}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                if node.name in places:
                    values[node] = exact(tensors[places[node.name]])
                else:
                    values[node] = exact(constants[lifted[node.name]]) if node.name in lifted else point[None]
            elif node.op == "output":
                (result,) = node.args[0]
                if op_of(str(result.target)) in ("softmax", "_softmax"):  # claims are about the logits
                    result = result.args[0]
                return np.asarray(values[result][0]).reshape(-1)
            else:
                args, options = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                if node.target is operator.getitem:
                    values[node] = args[0][args[1]]
                else:
                    try:
                        values[node] = OPS[op_of(str(node.target))](*args, **options)
                    except ZeroDivisionError:
                        raise TooFarError from None
        raise AssertionError("a program ends with its output")
