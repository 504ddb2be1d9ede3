"""ONNX ops of one entry each: activations, and what does nothing in evaluation."""

from __future__ import annotations

from collections.abc import Callable

from polycert.errors import PolycertError
from polycert.graph.onnx.building import Building, Value
from polycert.graph.onnx.entries import TABLE, Entry, Inputs, entry, variable
from polycert.graph.onnx.folding import FLOAT_TYPES
from polycert.graph.onnx.reading import Call, Shape
from polycert.rules import Op
from polycert.rules.activation import Arctan, LeakyRelu, Tanh
from polycert.rules.recipe import Recipe


def elementwise(make: Callable[[Call, Shape], Op | Recipe]) -> Entry:
    """An op that keeps the shape."""

    def build(b: Building, call: Call, inputs: Inputs) -> Value:
        x = variable(call, inputs[0])
        return b.put(call, make(call, b.nodes[x.index].shape), x.shape, x)

    return build


TABLE["Relu"] = elementwise(lambda call, shape: LeakyRelu(shape))
TABLE["LeakyRelu"] = elementwise(lambda call, shape: LeakyRelu(shape, leak=float(call.get("alpha", 0.01))))
TABLE["Abs"] = elementwise(lambda call, shape: LeakyRelu(shape, leak=-1.0))
TABLE["Tanh"] = elementwise(lambda call, shape: Tanh(shape))
TABLE["Sigmoid"] = elementwise(lambda call, shape: Tanh(shape, shift=0.5, outer=0.5, inner=0.5))
TABLE["Atan"] = elementwise(lambda call, shape: Arctan(shape))


@entry("Identity", "Dropout")
def _identity(b: Building, call: Call, inputs: Inputs) -> Value:
    return variable(call, inputs[0])


@entry("Cast")
def _cast(b: Building, call: Call, inputs: Inputs) -> Value:
    if call.get("to") not in FLOAT_TYPES:
        raise PolycertError(f"{call} casts the network's values to another kind of number, which is not continuous")
    return variable(call, inputs[0])
