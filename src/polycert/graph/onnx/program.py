"""Read an ONNX file as a program. Sizes are checked before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from polycert.errors import PolycertError, reason
from polycert.graph.onnx.external_data import read_inside
from polycert.graph.onnx.stored_tensors import tensor_of
from polycert.runtime import limits

ENDINGS = (".onnx", ".onnx.gz")
LARGEST_VALUE = limits.ENTRIES  # entries of any one tensor in the program
OPSETS = range(7, 24)
STANDARD = ("", "ai.onnx")
FLOAT, DOUBLE = 1, 11  # ONNX's numbers of these types

Shape = limits.Shape
checked_shape = limits.checked_shape


@dataclass(frozen=True)
class OnnxCall:
    """One node of the file. An optional input that was left out has the empty name."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.attributes.get(name, default)

    def number(self, name: str, default: float) -> float:
        """Return a number among the attributes; files hold them in float32, and ONNX's defaults are in float32."""
        found = float(np.float32(self.get(name, default)))
        if not math.isfinite(found):
            raise PolycertError(f"{self} has {name} = {found}, which is not a finite number")
        return found

    @property
    def label(self) -> str:
        """The node's name, or its first result's."""
        return self.name or next(name for name in self.outputs if name)

    def __str__(self) -> str:
        return f"{self.op} ({self.label!r})"


@dataclass(frozen=True, eq=False)
class OnnxProgram:
    """A file's calls in the order of computation, its stored tensors, its one input and one output."""

    source: str
    opset: int
    calls: tuple[OnnxCall, ...]
    tensors: dict[str, np.ndarray]
    input_name: str
    input_shape: Shape
    input_type: type[np.float32] | type[np.float64]
    output_name: str
    content: bytes  # the file with all its tensors, without calls that the output does not need

    @property
    def widest(self) -> type[np.float32] | type[np.float64]:
        """The widest type that a value which depends on the input may have."""
        cast = any(call.op == "Cast" and call.get("to") == DOUBLE for call in self.calls)
        return np.float64 if cast else self.input_type


def read_program(path: Path) -> OnnxProgram:
    """Read and check a file, `.onnx` or `.onnx.gz`, with the files beside it that hold its tensors."""
    import onnx
    from google.protobuf.message import DecodeError, EncodeError

    content = limits.read_bytes(path, limits.PROTOBUF)
    try:
        model = onnx.ModelProto.FromString(content)
    except (DecodeError, ValueError, RecursionError) as error:
        raise PolycertError(f"{path.name} is not an ONNX file or is cut off: {error}") from None
    if not model.HasField("graph") or not model.graph.node:
        raise PolycertError(f"{path.name} is not an ONNX file: it holds no graph")
    try:
        return _program(model, path, content)
    except PolycertError as error:
        raise PolycertError(f"cannot read {path.name}: {error}") from None
    except (ValueError, TypeError, UnicodeDecodeError, OverflowError, EncodeError) as error:
        raise PolycertError(f"cannot read {path.name}: {reason(error)}") from None


def _program(model: Any, path: Path, content: bytes) -> OnnxProgram:
    graph = model.graph
    if len(graph.sparse_initializer) or len(model.functions):
        raise PolycertError("sparse tensors and local functions are not supported")
    if read_inside(model, path.parent, len(content)):
        content = model.SerializeToString()
    tensors = {tensor.name: tensor_of(tensor) for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in tensors]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise PolycertError(
            f"a network needs one input and one output, this one has {len(inputs)} and {len(graph.output)}"
        )
    calls = _sorted([_call(node) for node in graph.node], {*tensors, inputs[0].name})
    needed = _needed(calls, graph.output[0].name)
    if len(needed) < len(calls):
        content = _without_rest(model, needed)
    return OnnxProgram(
        path.name,
        _opset(model),
        needed,
        tensors,
        inputs[0].name,
        _input_shape(inputs[0]),
        np.float64 if inputs[0].type.tensor_type.elem_type == DOUBLE else np.float32,
        graph.output[0].name,
        content,
    )


def _opset(model: Any) -> int:
    versions = {entry.version for entry in model.opset_import if entry.domain in STANDARD}
    if len(versions) > 1:
        listed = " and ".join(str(version) for version in sorted(versions))
        raise PolycertError(f"it imports opsets {listed} of the standard ops: only one can be meant")
    version = max(versions, default=1)
    if version not in OPSETS:
        raise PolycertError(f"opset {version} is not supported: export with opset {OPSETS[0]} to {OPSETS[-1]}")
    return int(version)


def _input_shape(value: Any) -> Shape:
    """Return the input's shape; a free first axis is a batch of one."""
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise PolycertError(f"the input {value.name!r} does not say its shape")
    if kind.elem_type not in (FLOAT, DOUBLE):
        raise PolycertError(f"the input {value.name!r} must hold float32 or float64 numbers")
    sizes = [int(axis.dim_value) for axis in kind.shape.dim]
    if len(sizes) > 1 and sizes[0] == 0:
        sizes[0] = 1
    if not sizes or min(sizes) < 1:
        raise PolycertError(f"the input {value.name!r} has free axes beside the batch: export it with fixed sizes")
    return checked_shape(sizes, f"the input {value.name!r}")


def _call(node: Any) -> OnnxCall:
    from onnx import AttributeProto, helper

    if node.domain not in STANDARD:
        raise PolycertError(f"no rule for {node.domain}.{node.op_type}: only standard ONNX ops are supported")
    attributes: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) or attribute.ref_attr_name:
            raise PolycertError(f"no rule for {node.op_type} ({node.name!r}): programs inside ops are not supported")
        if attribute.type in (AttributeProto.TENSORS, AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS):
            raise PolycertError(f"no rule for {node.op_type} ({node.name!r}): its attributes must be plain tensors")
        value = tensor_of(attribute.t) if attribute.HasField("t") else helper.get_attribute_value(attribute)
        attributes[attribute.name] = value.decode() if isinstance(value, bytes) else value
    named = [name for name in node.output if name]
    if not named or len(set(named)) != len(named):
        raise PolycertError(f"the op {node.op_type} ({node.name!r}) needs outputs with names of their own")
    _refuse_left_out(node)
    return OnnxCall(node.op_type, node.name, tuple(node.input), tuple(node.output), attributes)


def _refuse_left_out(node: Any) -> None:
    """Refuse a node without an input that its op needs. An input that was left out has no name."""
    from onnx import defs

    if "" not in node.input or not defs.has(node.op_type):
        return
    places = defs.get_schema(node.op_type).inputs
    for position, name in enumerate(node.input):
        if not name and places[min(position, len(places) - 1)].option != defs.OpSchema.FormalParameterOption.Optional:
            raise PolycertError(f"the op {node.op_type} ({node.name!r}) needs its input {position}: it has no name")


def _sorted(calls: list[OnnxCall], known: Iterable[str]) -> list[OnnxCall]:
    """Return the calls in the order of computation, whatever their order in the file."""
    known = {*known, ""}
    makers: dict[str, int] = {}
    for position, call in enumerate(calls):
        for name in filter(None, call.outputs):
            if name in makers or name in known:
                raise PolycertError(f"{name!r} is computed twice")
            makers[name] = position
    missing = {name for call in calls for name in call.inputs} - known - makers.keys()
    if missing:
        raise PolycertError(f"{sorted(missing)[0]!r} is used but never computed")
    waiting = [{makers[name] for name in call.inputs if name not in known} for call in calls]
    users: list[list[int]] = [[] for _ in calls]
    for position, sources in enumerate(waiting):
        for source in sources:
            users[source].append(position)
    ready = [position for position, sources in enumerate(waiting) if not sources]
    order: list[OnnxCall] = []
    while ready:
        done = ready.pop()
        order.append(calls[done])
        for user in users[done]:
            waiting[user].discard(done)
            if not waiting[user]:
                ready.append(user)
    if len(order) < len(calls):
        raise PolycertError("its graph has a cycle")
    return order


def _needed(calls: list[OnnxCall], output: str) -> tuple[OnnxCall, ...]:
    """Return only the calls that the output depends on."""
    wanted = {output}
    kept: list[OnnxCall] = []
    for call in reversed(calls):
        if wanted.intersection(call.outputs) - {""}:
            kept.append(call)
            wanted.update(call.inputs)
    return tuple(reversed(kept))


def _without_rest(model: Any, calls: Iterable[OnnxCall]) -> bytes:
    """Return the file with these calls only: onnxruntime would run the others, whose sizes nothing checks."""
    results = {name for call in calls for name in call.outputs if name}
    kept = [node for node in model.graph.node if results.intersection(node.output)]
    model.graph.ClearField("node")
    model.graph.node.extend(kept)
    content: bytes = model.SerializeToString()
    return content
