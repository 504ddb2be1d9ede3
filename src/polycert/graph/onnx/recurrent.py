"""Converter of recurrent ONNX ops over the fixed length of their input, in one direction and from a state of zeros."""

from __future__ import annotations

import numpy as np

from polycert.errors import PolycertError
from polycert.graph.onnx.builder import GraphBuilder, Inputs, OnnxValue, constant, converts, floats, variable
from polycert.graph.onnx.program import OnnxCall, checked_shape
from polycert.rules.recurrent import Weights, unrolled

# PyTorch and the rules order the gates as i f g o and r z n. These are their places in ONNX.
GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
LONGEST = 1024  # steps, of which each becomes some twenty nodes of the graph
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@converts("LSTM", "GRU", "RNN")
def _recurrent(b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> list[OnnxValue]:
    """Return the states of every step, and the last one; the final `c` of a cell is not given."""
    x = variable(call, inputs[0])
    kind = _kind(call)
    _check(call, inputs, x)
    length, _, width = x.shape
    weights = _weights(b, call, inputs, width)
    states = b.put(
        call,
        unrolled(kind, [weights], (length, width), b.like),
        (length, 1, 1, weights.size),
        b.view(call, x, (length, width)),
    )
    last = b.pick(call, states, b.places(states)[-1])
    return [b.reshape(call, states, states.shape), last]


def _kind(call: OnnxCall) -> str:
    """Return the rules' name of the op with its activations."""
    names = call.get("activations") or DEFAULTS[call.op]
    names = [name.decode() if isinstance(name, bytes) else name for name in names]
    if call.op == "RNN" and names == ["Relu"]:
        return "rnn_relu"
    if names != DEFAULTS[call.op]:
        raise PolycertError(f"{call} has activations {names}: only {DEFAULTS[call.op]} are supported")
    return "rnn_tanh" if call.op == "RNN" else call.op.lower()


def _check(call: OnnxCall, inputs: Inputs, x: OnnxValue) -> None:
    """Refuse what the rules do not unroll, such as other directions and initial states."""
    if len(x.shape) != 3 or x.shape[1] != 1 or x.shape[0] > LONGEST or call.get("layout", 0):
        raise PolycertError(f"{call} needs one sequence of at most {LONGEST} vectors, got shape {list(x.shape)}")
    if call.get("direction", "forward") != "forward" or "clip" in call.attributes or call.get("input_forget", 0):
        raise PolycertError(f"{call} is supported in forward direction, without clipping or coupled gates")
    if call.op == "GRU" and not call.get("linear_before_reset", 0):
        raise PolycertError(f"{call} is supported with linear_before_reset=1 only")
    length = constant(call, inputs, 4)
    if length is not None and (length != x.shape[0]).any():
        raise PolycertError(f"{call} has a sequence length that is not its input's: only whole sequences are supported")
    for position in (5, 6, 7):
        state = constant(call, inputs, position)
        if state is not None and np.any(state):
            raise PolycertError(f"{call} is supported from a state of zeros and without peepholes only")


def _weights(b: GraphBuilder, call: OnnxCall, inputs: Inputs, width: int) -> Weights:
    """Return the weights with the gates in the rules' order."""
    gates = GATES[call.op]
    recurrence = floats(call, inputs, 2)
    size = recurrence.shape[-1]
    given, rows = floats(call, inputs, 1), len(gates) * size
    offsets = constant(call, inputs, 3)
    if recurrence.shape != (1, rows, size) or given.shape != (1, rows, width):
        raise PolycertError(f"{call} has weights of shapes {list(given.shape)} and {list(recurrence.shape)}")
    if offsets is not None and offsets.shape != (1, 2 * rows):
        raise PolycertError(f"{call} has offsets of shape {list(offsets.shape)}")
    checked_shape((width + size, rows), str(call))

    def ordered(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array[g * size : (g + 1) * size] for g in gates])

    shifts = [None, None] if offsets is None else [b.tensor(call, ordered(part)) for part in np.split(offsets[0], 2)]
    return Weights(b.tensor(call, ordered(given[0])), b.tensor(call, ordered(recurrence[0])), shifts[0], shifts[1])
