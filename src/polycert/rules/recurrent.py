"""Recurrent layers over a fixed length, unrolled: RNN, GRU and LSTM, as layers and as cells, from a state of zeros.

The states `h` and `c` are places in a decomposition, or None for zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from polycert.forms import Shape
from polycert.rules.affine import Add, Elementwise, MatMul
from polycert.rules.arithmetic import product
from polycert.rules.examples import Example, Fn
from polycert.rules.indexing import Concat, Pick, Reshape, places_of
from polycert.rules.op import Decomposition, Op
from polycert.rules.piecewise_linear import Relu
from polycert.rules.registry import Call, Value, rule
from polycert.rules.s_shaped import Tanh

State = tuple[int | None, int | None]


class Weights(NamedTuple):
    """The weights and offsets of one layer, with the gates stacked.

    `inputs` is `[gates * hidden, inputs]`, `hidden` is `[gates * hidden, hidden]`, and each offset is `[gates *
    hidden]`.
    """

    inputs: Tensor
    hidden: Tensor
    input_offset: Tensor | None
    hidden_offset: Tensor | None

    @property
    def size(self) -> int:
        """Units of the hidden state."""
        return int(self.hidden.shape[1])


class CellBuilder:
    """Appends the steps of a cell to a decomposition, one after the other."""

    def __init__(self, decomposition: Decomposition, weights: Weights) -> None:
        self.decomposition, self.weights = decomposition, weights
        self.shape: Shape = (weights.size,)
        self.like = weights.hidden.new_empty(0)

    def gates(self, x: int | None, weight: Tensor, offset: Tensor | None) -> list[int | None]:
        """Append the affine part of every gate; it is None without a state."""
        parts = weight.split(self.weights.size)
        offsets = [None] * len(parts) if offset is None else offset.split(self.weights.size)
        if x is None:
            return [None] * len(parts)
        source = self.decomposition.shapes[x]
        return [
            self.decomposition.add(MatMul(part, shift, source, self.shape), x)
            for part, shift in zip(parts, offsets, strict=True)
        ]

    def offset(self, gate: int) -> Tensor | None:
        """Return what a gate adds although the state is zero."""
        given = self.weights.hidden_offset
        return None if given is None else given.split(self.weights.size)[gate].unsqueeze(0)

    def both(self, x: int, h: int | None, gate: int) -> int:
        """Append the sum of a gate's parts from the input and from the state."""
        if h is not None:
            return self.add(x, h)
        shift = self.offset(gate)
        return x if shift is None else self.decomposition.add(Elementwise(None, shift, self.shape), x)

    def add(self, first: int, second: int, sign: int = 1) -> int:
        """Append a sum or difference."""
        return self.decomposition.add(Add(self.shape, (1, sign)), first, second)

    def times(self, first: int, second: int) -> int:
        """Append a product."""
        return self.decomposition.follow(product(self.shape, self.like), first, second)

    def sigmoid(self, x: int) -> int:
        """Append the gates' activation."""
        return self.decomposition.add(Tanh(self.shape, shift=0.5, outer=0.5, inner=0.5), x)

    def tanh(self, x: int) -> int:
        """Append the states' activation."""
        return self.decomposition.add(Tanh(self.shape), x)

    def sums(self, x: int, h: int | None) -> list[int]:
        """Append all gates before their activations."""
        given = self.weights
        first = self.gates(x, given.inputs, given.input_offset)
        second = self.gates(h, given.hidden, given.hidden_offset)
        return [self.both(a, b, k) for k, (a, b) in enumerate(zip(first, second, strict=True)) if a is not None]

    def lstm(self, x: int, state: State) -> State:
        """Append `c = f c + i g` and `h = o tanh(c)`."""
        h, c = state
        i, f, g, o = self.sums(x, h)
        new = self.times(self.sigmoid(i), self.tanh(g))
        if c is not None:
            new = self.add(self.times(self.sigmoid(f), c), new)
        return self.times(self.sigmoid(o), self.tanh(new)), new

    def gru(self, x: int, state: State) -> State:
        """Append `n = tanh(W x + r (U h + b))` and `h = n + z (h - n)`."""
        h, given = state[0], self.weights
        first = [a for a in self.gates(x, given.inputs, given.input_offset) if a is not None]
        second = self.gates(h, given.hidden, given.hidden_offset)
        r, z = (self.sigmoid(self.both(first[k], second[k], k)) for k in (0, 1))
        candidate = first[2]
        shift = self.offset(2)
        if second[2] is not None:
            candidate = self.add(candidate, self.times(r, second[2]))
        elif shift is not None:
            scaled = self.decomposition.add(Elementwise(shift, None, self.shape, stored_weights=True), r)
            candidate = self.add(candidate, scaled)
        n = self.tanh(candidate)
        back = self.times(z, n if h is None else self.add(h, n, -1))
        return self.add(n, back, -1 if h is None else 1), None

    def rnn_tanh(self, x: int, state: State) -> State:
        """Append `tanh(W x + U h + b)`."""
        return self.tanh(self.sums(x, state[0])[0]), None

    def rnn_relu(self, x: int, state: State) -> State:
        """Append `relu(W x + U h + b)`."""
        return self.decomposition.add(Relu(self.shape), self.sums(x, state[0])[0]), None


KINDS: dict[str, Callable[[CellBuilder, int, State], State]] = {
    "lstm": CellBuilder.lstm,
    "gru": CellBuilder.gru,
    "rnn_tanh": CellBuilder.rnn_tanh,
    "rnn_relu": CellBuilder.rnn_relu,
}


def unrolled(kind: str, layers: list[Weights], shape: Shape, like: Tensor) -> Decomposition:
    """Return layers over `[length, inputs]`, which give the states `[length, hidden]` of the last one."""
    decomposition = Decomposition(shape)
    places = places_of(shape, like)
    steps = [decomposition.add(Pick.of(places[t], shape), 0) for t in range(shape[0])]
    for weights in layers:
        cell = CellBuilder(decomposition, weights)
        state: State = (None, None)
        outputs: list[int] = []
        for x in steps:
            state = KINDS[kind](cell, x, state)
            outputs += [h for h in state[:1] if h is not None]
        steps = outputs
    tall = (1, layers[-1].size)
    rows = [decomposition.add(Reshape(tall[1:], tall), h) for h in steps]
    decomposition.several = (decomposition.add(Concat((tall,) * len(rows), 0), *rows),)
    return decomposition


def _zero(value: Any) -> bool:
    """Whether a value is a constant of zeros."""
    return isinstance(value, Tensor) and not bool(value.any())


def _last(layer: nn.Module) -> nn.Module:
    return Fn(lambda m, x: m.b(m.a(x)[0][:, -1]), layer, nn.Linear(3, 3))


@rule(
    "aten.lstm.input",
    "aten.gru.input",
    "aten.rnn_tanh.input",
    "aten.rnn_relu.input",
    family="recurrent",
    onnx=("LSTM", "GRU", "RNN"),
    examples=(
        Example("rnn", (3, 2), lambda: _last(nn.RNN(2, 3, num_layers=2, batch_first=True))),
        Example("rnn-relu", (3, 2), lambda: _last(nn.RNN(2, 3, nonlinearity="relu", bias=False, batch_first=True))),
        Example("gru", (3, 2), lambda: _last(nn.GRU(2, 3, batch_first=True))),
        Example(
            "lstm",
            (2, 2),
            lambda: Fn(lambda m, x: m.b(m.a(x)[0].flatten(1)), nn.LSTM(2, 2, batch_first=True), nn.Linear(4, 3)),
        ),
    ),
)
def _layers(call: Call) -> Decomposition:
    kind = call.target.split(".")[1]
    states = call.args[1] if kind == "lstm" else [call.args[1]]
    params, biased, count = list(call.args[2]), bool(call.args[3]), int(call.args[4])
    if not all(_zero(state) for state in states):
        raise ValueError("recurrent layers are supported from a state of zeros only")
    dropout, train = call.args[5:7]
    if dropout and train:
        raise ValueError("dropout between recurrent layers (train=True) is random: a network must not be")
    if call.args[7] or not call.args[8]:
        raise ValueError("recurrent layers are supported with batch_first=True and in one direction only")
    each = 4 if biased else 2
    layers = [_weights(params[k * each : (k + 1) * each]) for k in range(count)]
    return unrolled(kind, layers, call.in_shapes[0], call.like)


def _weights(params: list[Tensor]) -> Weights:
    return Weights(params[0], params[1], *params[2:]) if len(params) == 4 else Weights(params[0], params[1], None, None)


def _twice(cell: nn.Module) -> nn.Module:
    return Fn(lambda m, x: m.b(m.a(x[:, 1], m.a(x[:, 0]))), cell, nn.Linear(3, 3))


@rule(
    "aten.lstm_cell.default",
    "aten.gru_cell.default",
    "aten.rnn_tanh_cell.default",
    "aten.rnn_relu_cell.default",
    family="recurrent",
    examples=(
        Example(
            "lstm-cell",
            (2, 2),
            lambda: Fn(lambda m, x: m.b(m.a(x[:, 1], m.a(x[:, 0]))[0]), nn.LSTMCell(2, 3), nn.Linear(3, 3)),
        ),
        Example("gru-cell", (2, 2), lambda: _twice(nn.GRUCell(2, 3))),
        Example("rnn-cell", (2, 2), lambda: _twice(nn.RNNCell(2, 3)), slow=True),
        Example("rnn-relu-cell", (2, 2), lambda: _twice(nn.RNNCell(2, 3, nonlinearity="relu")), slow=True),
    ),
)
def _cell(call: Call) -> Op | Decomposition:
    kind = call.target.split(".")[1].removesuffix("_cell")
    given = list(call.args[1]) if kind == "lstm" else [call.args[1]]
    decomposition = Decomposition(*call.in_shapes)
    state: list[int | None] = [None, None]
    place = 1
    for k, value in enumerate(given):
        if isinstance(value, Value):
            state[k], place = place, place + 1
        elif not _zero(value):
            raise ValueError("a constant state of a recurrent cell must be zero")
    cell = CellBuilder(decomposition, Weights(call.args[2], call.args[3], call.get(4, "b_ih"), call.get(5, "b_hh")))
    new = KINDS[kind](cell, 0, (state[0], state[1]))
    if kind == "lstm":
        decomposition.several = tuple(p for p in new if p is not None)
    return decomposition
