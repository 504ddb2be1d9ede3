"""Activations that are made of others: scaled, mirrored, added or multiplied. No rule here has bounds of its own."""

from __future__ import annotations

from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polycert.forms import Shape
from polycert.rules.affine import Add, Elementwise
from polycert.rules.arithmetic import product
from polycert.rules.convex import Elu, Softplus
from polycert.rules.examples import Example, activated, through
from polycert.rules.indexing import Pick, places_of
from polycert.rules.maximum import clipped
from polycert.rules.op import Decomposition
from polycert.rules.piecewise_linear import Relu
from polycert.rules.registry import Call, constant_rows, rule
from polycert.rules.s_shaped import Tanh

SELU_ALPHA, SELU_SCALE = 1.6732632423543772848, 1.0507009873554804934  # Klambauer et al. 2017
THRESHOLD = 20  # of torch's softplus: right of it, it is the identity


def _times(decomposition: Decomposition, node: int, factor: Tensor | float, like: Tensor) -> int:
    """Append a product with numbers, unless all are 1. Return its place."""
    shape = decomposition.shapes[node]
    if isinstance(factor, float) and factor == 1:
        return node
    return decomposition.add(Elementwise(constant_rows(factor, shape, like), None, shape), node)


def _plus(decomposition: Decomposition, node: int, shift: float, like: Tensor) -> int:
    """Append a sum with a number. Return its place."""
    shape = decomposition.shapes[node]
    return decomposition.add(Elementwise(None, constant_rows(shift, shape, like), shape), node)


def bent_elu(shape: Shape, alpha: float, scale: float, steepness: float, like: Tensor) -> Decomposition:
    """Return `scale * z` right of 0 and `scale * alpha * (exp(steepness * z) - 1)` left of it.

    That is `scale * alpha * elu(steepness * z) + scale * (1 - alpha * steepness) * relu(z)`. The second factor is
    computed exactly and rounded once: the difference would lose what `alpha * steepness` rounds.
    """
    if not steepness > 0:
        raise ValueError("elu is supported with an input_scale above 0 only")
    exact = [Fraction(value) for value in (alpha, scale, steepness)]
    curve, line = exact[0] * exact[1], exact[1] * (1 - exact[0] * exact[2])
    decomposition = Decomposition(shape)
    bent = decomposition.add(Elu(shape), _times(decomposition, 0, steepness, like))
    bent = _times(decomposition, bent, float(curve), like)
    if line:
        straight = _times(decomposition, decomposition.add(Relu(shape), 0), float(line), like)
        decomposition.add(Add(shape, (1, 1)), bent, straight)
    return decomposition


@rule(
    "aten.elu.default",
    "aten.elu_.default",
    family="convex",
    onnx=("Elu",),
    examples=(
        activated("aten.elu.default"),
        activated("aten.elu_.default", slow=True),
        activated("aten.elu.default", 0.7, 1.2, 2.0, name="elu-scaled", slow=True),
    ),
)
def _elu(call: Call) -> Elu | Decomposition:
    values = (float(call.get(k, name, 1)) for k, name in ((1, "alpha"), (2, "scale"), (3, "input_scale")))
    alpha, scale, steepness = values
    if alpha == scale == steepness == 1:
        return Elu(call.out_shape)
    return bent_elu(call.out_shape, alpha, scale, steepness, call.like)


@rule(
    family="composed", examples=(activated("aten.selu.default", slow=True), activated("aten.selu_.default", slow=True))
)
def _selu(call: Call) -> Decomposition:
    return bent_elu(call.out_shape, SELU_ALPHA, SELU_SCALE, 1.0, call.like)


@rule(
    family="composed",
    examples=(activated("aten.celu.default", 0.8), activated("aten.celu_.default", 1.5, slow=True)),
)
def _celu(call: Call) -> Decomposition:
    alpha = float(call.get(1, "alpha", 1.0))
    if not alpha > 0:
        raise ValueError("celu is supported with an alpha above 0 only")
    decomposition = Decomposition(call.out_shape)
    inner = _times(decomposition, 0, 1 / alpha, call.like)
    _times(decomposition, decomposition.add(Elu(call.out_shape), inner), alpha, call.like)
    return decomposition


@rule(
    "aten.softplus.default",
    family="convex",
    onnx=("Softplus",),
    examples=(
        activated("aten.softplus.default"),
        activated("aten.softplus.default", 2.5, name="softplus-steep", slow=True),
    ),
)
def _softplus(call: Call) -> Softplus | Decomposition:
    beta = float(call.get(1, "beta", 1))
    if beta == 1:
        return Softplus(call.out_shape)
    if not beta > 0 or call.get(2, "threshold", THRESHOLD) != THRESHOLD:
        raise ValueError(f"softplus is supported with a beta above 0 and a threshold of {THRESHOLD} only")
    decomposition = Decomposition(call.out_shape)
    inner = _times(decomposition, 0, beta, call.like)
    _times(decomposition, decomposition.add(Softplus(call.out_shape), inner), 1 / beta, call.like)
    return decomposition


@rule(family="composed", examples=(activated("aten.log_sigmoid.default", slow=True),))
def _log_sigmoid(call: Call) -> Decomposition:
    """Build `-softplus(-z)`."""
    decomposition = Decomposition(call.out_shape)
    inner = _times(decomposition, 0, -1.0, call.like)
    _times(decomposition, decomposition.add(Softplus(call.out_shape), inner), -1.0, call.like)
    return decomposition


@rule(
    family="composed",
    examples=(activated("aten.hardsigmoid.default", slow=True), activated("aten.hardsigmoid_.default", slow=True)),
)
def _hardsigmoid(call: Call) -> Decomposition:
    """Build `min(max(z + 3, 0), 6) / 6`."""
    decomposition = Decomposition(call.out_shape)
    inner = _plus(decomposition, 0, 3.0, call.like)
    _times(decomposition, decomposition.follow(clipped(call.out_shape, 0.0, 6.0, call.like), inner), 1 / 6, call.like)
    return decomposition


class Leaks(nn.PReLU):
    """A PReLU whose channels differ."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        with torch.no_grad():
            self.weight.copy_(torch.linspace(-0.5, 1.5, channels))


@rule(
    "aten.prelu.default",
    family="composed",
    examples=(
        Example("prelu", (5,), lambda: nn.Sequential(nn.Linear(5, 6), Leaks(6), nn.Linear(6, 3))),
        Example("prelu-shared", (5,), lambda: nn.Sequential(nn.Linear(5, 6), nn.PReLU(), nn.Linear(6, 3)), slow=True),
    ),
)
def _prelu(call: Call) -> Decomposition:
    """Build `w z + (1 - w) relu(z)` with a weight for each channel, which may be trained."""
    weight, shape = call.args[1], call.out_shape
    if not isinstance(weight, Tensor):
        raise ValueError("a slope that depends on the input is not supported")
    wide = weight.reshape(-1, *(1,) * (len(shape) - 1)).expand(shape)
    decomposition = Decomposition(shape)
    straight = _times(decomposition, 0, wide, call.like)
    bent = _times(decomposition, decomposition.add(Relu(shape), 0), 1 - wide, call.like)
    decomposition.add(Add(shape, (1, 1)), straight, bent)
    return decomposition


@rule("aten.glu.default", family="composed", examples=(through("glu", (6,), lambda z: F.glu(z, 1)),))
def _glu(call: Call) -> Decomposition:
    """Build the product of the first half with the sigmoid of the second."""
    shape = call.in_shapes[0]
    axis = int(call.get(1, "dim", -1)) % (len(shape) + 1)
    if axis == 0:
        raise ValueError("the batch axis cannot be halved")
    first, second = places_of(shape, call.like).chunk(2, axis - 1)
    decomposition = Decomposition(shape)
    value = decomposition.add(Pick.of(first, shape), 0)
    sigmoid = Tanh(call.out_shape, shift=0.5, outer=0.5, inner=0.5)
    gate = decomposition.add(sigmoid, decomposition.add(Pick.of(second, shape), 0))
    decomposition.follow(product(call.out_shape, call.like), value, gate)
    return decomposition
