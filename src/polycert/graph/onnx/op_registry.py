"""The table that the ONNX ops register in, and what their builders share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from polycert.errors import PolycertError
from polycert.graph.onnx.builder import GraphBuilder, Known, OnnxValue
from polycert.graph.onnx.program import OnnxCall

Inputs = list[Known]
Entry = Callable[[GraphBuilder, OnnxCall, Inputs], OnnxValue | Sequence[Known]]
TABLE: dict[str, Entry] = {}


AnyEntry = TypeVar("AnyEntry", bound=Entry)


def entry(*names: str) -> Callable[[AnyEntry], AnyEntry]:
    """Register the builder of some ops."""

    def register(function: AnyEntry) -> AnyEntry:
        for name in names:
            TABLE[name] = function
        return function

    return register


def variable(call: OnnxCall, value: Known) -> OnnxValue:
    """An input that must depend on the network's input."""
    if not isinstance(value, OnnxValue):
        raise PolycertError(f"{call} needs the value that depends on the input in another place")
    return value


def constant(call: OnnxCall, inputs: Inputs, position: int) -> np.ndarray | None:
    """An optional input that must be constant."""
    value = inputs[position] if position < len(inputs) else None
    if isinstance(value, OnnxValue):
        raise PolycertError(f"{call} needs constants, but its input {call.inputs[position]!r} depends on the input")
    return value


def floats(call: OnnxCall, inputs: Inputs, position: int) -> np.ndarray:
    """An input that must be there and constant."""
    value = constant(call, inputs, position)
    if value is None:
        raise PolycertError(f"{call} lacks input {position}")
    return value
