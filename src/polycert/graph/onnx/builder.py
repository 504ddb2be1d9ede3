"""Build the nodes of a graph from a checked program. A batch of one is read as the sample itself.

The rules declare which ONNX ops are read. Ops that need more than their rule are converted by functions that register
here. Importing this package imports the files that hold them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from polycert.errors import PolycertError
from polycert.graph.graph import Graph, Node, append, needed, prune
from polycert.graph.onnx.constant_folding import FOLDS, broadcast_to, constant_of
from polycert.graph.onnx.exact_folding import is_exact
from polycert.graph.onnx.program import OnnxCall, OnnxProgram, Shape, checked_shape
from polycert.rules import Call, Op, Rule, Value
from polycert.rules.indexing import Pick, Reshape, places_of
from polycert.rules.op import Decomposition
from polycert.rules.registry import nearest, onnx_rules

BUDGET = 2**25  # entries that all computed values of a file may have together


@dataclass(frozen=True)
class OnnxValue:
    """A tensor that depends on the input: its node, and its shape in the file (with the batch of one, if any)."""

    index: int
    shape: Shape


Known = OnnxValue | np.ndarray | None


def inner(shape: Shape) -> Shape:
    """Return the shape of a sample: a leading axis of size 1 is the batch."""
    return shape[1:] if len(shape) > 1 and shape[0] == 1 else shape or (1,)


@dataclass(eq=False)
class GraphBuilder:
    """A graph under construction. Constants are arrays until an op needs them as tensors of the graph's type."""

    program: OnnxProgram
    like: Tensor
    nodes: list[Node] = field(default_factory=list)
    computed: list[str] = field(default_factory=list)  # labels of calls with constants that were rounded
    spent: int = 0

    def spend(self, call: OnnxCall, shape: Shape) -> None:
        """Count the entries of a computed value, and refuse a file that computes too many of them."""
        self.spent += math.prod(checked_shape(shape, str(call)))
        if self.spent > BUDGET:
            raise PolycertError(f"its values have more than {BUDGET} entries together, at {call}")

    @property
    def opset(self) -> int:
        """Version of the operators' definitions."""
        return self.program.opset

    def tensor(self, call: OnnxCall, array: Any) -> Tensor:
        """Return a constant in the graph's type, and note if this type does not hold it: then nothing is proved."""
        found = self.rounded(call, array)
        if not np.array_equal(found.double().cpu(), array):
            self.computed.append(call.label)
        return found

    def rounded(self, call: OnnxCall, array: Any) -> Tensor:
        """Return finite numbers in the graph's type, for constants whose rounding the op covers."""
        found = torch.from_numpy(np.array(array, dtype=np.float64)).to(self.like)
        if not bool(torch.isfinite(found).all()):
            raise PolycertError(f"{call} has a constant that is not a finite number in {self.like.dtype}")
        return found

    def put(self, call: OnnxCall, made: Op | Decomposition, shape: Shape, *sources: OnnxValue | int) -> OnnxValue:
        """Append an op over these nodes and return its value; `shape` is the result's in the file."""
        if 0 in shape:
            raise PolycertError(f"{call} has an empty result, of shape {list(shape)}")
        before = len(self.nodes)
        places = tuple(s.index if isinstance(s, OnnxValue) else s for s in sources)
        result = append(self.nodes, call.label, made, places)[0]
        for node in self.nodes[before:]:
            self.spend(call, node.shape)
        return OnnxValue(result, shape)

    def view(self, call: OnnxCall, value: OnnxValue, shape: Shape) -> int:
        """Return the node of a value in another shape with as many entries."""
        now = self.nodes[value.index].shape
        if now == shape:
            return value.index
        return self.put(call, Reshape(now, shape), shape, value).index

    def reshape(self, call: OnnxCall, value: OnnxValue, shape: Shape) -> OnnxValue:
        """Return the value in another shape."""
        return OnnxValue(self.view(call, value, inner(checked_shape(shape, str(call)))), shape)

    def pick(self, call: OnnxCall, value: OnnxValue, places: Tensor) -> OnnxValue:
        """Return the entries of a value at these places, in the places' shape."""
        shape = tuple(places.shape)
        source = self.nodes[value.index].shape
        return self.put(call, Pick.of(places.reshape(inner(shape)), source), shape, value)

    def places(self, value: OnnxValue) -> Tensor:
        """Return the place of every entry, in the file's shape."""
        return places_of(value.shape, self.like)

    def expand(self, call: OnnxCall, value: OnnxValue, shape: Shape) -> OnnxValue:
        """Return the value broadcast to a larger shape."""
        if value.shape == shape:
            return value
        places = broadcast_to(call, self.places(value).cpu().numpy(), shape)
        return self.pick(call, value, torch.from_numpy(places.copy()).to(self.like.device))


Inputs = list[Known]
Converter = Callable[[GraphBuilder, OnnxCall, Inputs], OnnxValue | Sequence[Known]]
CONVERTERS: dict[str, Converter] = {}
AnyConverter = TypeVar("AnyConverter", bound=Converter)


def converts(*names: str) -> Callable[[AnyConverter], AnyConverter]:
    """Register a function that converts these ops; a rule must declare that they are read into it."""

    def register(function: AnyConverter) -> AnyConverter:
        CONVERTERS.update(dict.fromkeys(names, function))
        return function

    return register


def known_ops() -> dict[str, Converter]:
    """Return how each ONNX op is converted: by its converter, or into the op of the rule that declares it."""
    return {name: CONVERTERS.get(name) or partial(_by_rule, found) for name, found in onnx_rules().items()}


def _by_rule(found: Rule, b: GraphBuilder, call: OnnxCall, inputs: Inputs) -> OnnxValue:
    """Convert an op that is applied to each entry and has no constants."""
    x = variable(call, inputs[0])
    if call.attributes or len(inputs) > 1:
        raise PolycertError(f"{call} is supported with one input and without attributes only")
    shape = b.nodes[x.index].shape
    made = found.build(Call(found.targets[0], (Value(x.index),), {}, (shape,), shape, b.like))
    return b.put(call, made, x.shape, x)


def variable(call: OnnxCall, value: Known) -> OnnxValue:
    """Return an input that must depend on the network's input."""
    if not isinstance(value, OnnxValue):
        raise PolycertError(f"{call} needs a value that depends on the input where it has a constant")
    return value


def constant(call: OnnxCall, inputs: Inputs, position: int) -> np.ndarray | None:
    """Return an input that must be constant, or None if it was left out."""
    value = inputs[position] if position < len(inputs) else None
    if isinstance(value, OnnxValue):
        raise PolycertError(f"{call} needs constants, but its input {call.inputs[position]!r} depends on the input")
    return value


def floats(call: OnnxCall, inputs: Inputs, position: int) -> np.ndarray:
    """Return an input that must be there and constant."""
    value = constant(call, inputs, position)
    if value is None:
        raise PolycertError(f"{call} lacks input {position}")
    return value


class Built(NamedTuple):
    """The nodes that a program became."""

    nodes: list[Node]
    output: int  # place of the output's node
    computed: tuple[str, ...]  # names of constants that were computed with rounding
    known: dict[str, Known]  # the input and the results of all calls
    makers: list[int]  # for each node the call that appended it; -1 for the input


def build(program: OnnxProgram, like: Tensor) -> Built:
    """Build the nodes of a program, in the type and on the device of `like`."""
    building = GraphBuilder(program, like)
    building.nodes.append(Node("input", None, (), inner(program.input_shape)))
    known: dict[str, Known] = {"": None, program.input_name: OnnxValue(0, program.input_shape), **program.tensors}
    converters = known_ops()
    _refuse_unknown(program, {*converters, *FOLDS, "Constant", "Shape", "Size"})
    makers = [-1]
    for position, call in enumerate(program.calls):
        missing = [name for name in call.inputs if name not in known]
        if missing:
            raise PolycertError(f"{call} uses {missing[0]!r}, an output that no rule computes")
        results = _run(building, converters, call, [known[name] for name in call.inputs])
        known.update((name, value) for name, value in zip(call.outputs, results, strict=False) if name)
        makers += [position] * (len(building.nodes) - len(makers))
    result = known.get(program.output_name)
    if not isinstance(result, OnnxValue):
        raise PolycertError("the network's output does not depend on its input")
    held = {name: value for name, value in known.items() if name and name not in program.tensors}
    return Built(building.nodes, result.index, tuple(building.computed), held, makers)


def _refuse_unknown(program: OnnxProgram, supported: set[str]) -> None:
    unknown = [call for call in program.calls if call.op not in supported]
    if unknown:
        listed = ", ".join(sorted({str(call) for call in unknown})[:5])
        raise PolycertError(
            f"no rule for {listed}: export the model with supported ops, such as "
            f"{nearest((call.op for call in unknown), supported)}"
        )


def _run(building: GraphBuilder, converters: dict[str, Converter], call: OnnxCall, inputs: list[Known]) -> list[Known]:
    """Return the results of a call: values if it reads a value, else constants."""
    if call.op == "Constant":
        return [constant_of(call)]
    first = inputs[0] if inputs else None
    if call.op in ("Shape", "Size") and first is not None:
        sizes = np.asarray(first.shape, dtype=np.int64)
        if call.op == "Size":
            return [np.asarray(sizes.prod())]
        return [sizes[slice(call.get("start"), call.get("end"))]]
    if any(isinstance(value, OnnxValue) for value in inputs):
        if call.op not in converters:
            raise PolycertError(f"no rule for {call} of values that depend on the input")
        made = converters[call.op](building, call, inputs)
        return [made] if isinstance(made, OnnxValue) else list(made)
    return [_fold(building, call, inputs)]


def _fold(building: GraphBuilder, call: OnnxCall, inputs: list[Known]) -> np.ndarray:
    """Compute a call of constants, and note if its result is rounded."""
    if call.op not in FOLDS:
        raise PolycertError(f"no rule for {call} of constants")
    result = np.asarray(FOLDS[call.op](call, list(inputs), building.opset))
    building.spend(call, result.shape)
    if result.dtype.kind == "f" and not is_exact(call, inputs, result):
        building.computed.append(call.label)
    return result


class Place(NamedTuple):
    """A value of the file that depends on the input."""

    node: int | None  # None if the graph does not need the value
    shape: Shape  # in the file


@dataclass(frozen=True, eq=False)
class Trace:
    """A graph, the places of the file's values in it, and for each node the call that it comes from."""

    graph: Graph
    places: dict[str, Place]
    makers: tuple[int, ...]

    @staticmethod
    def of(built: Built, dtype: torch.dtype, device: torch.device) -> Trace:
        """Keep only the nodes that the output depends on."""
        kept = needed(built.nodes, built.output)
        graph = Graph(prune(built.nodes, built.output), dtype, device, built.computed)
        places = {
            name: Place(kept.get(value.index), value.shape)
            for name, value in built.known.items()
            if isinstance(value, OnnxValue)
        }
        return Trace(graph, places, tuple(built.makers[k] for k in kept))


def constants_of(built: Built) -> dict[str, np.ndarray]:
    """Return what the file's calls compute without the input, by name."""
    return {name: value for name, value in built.known.items() if isinstance(value, np.ndarray)}
