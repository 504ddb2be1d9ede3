"""ONNX files as plain JSON: what a case of the hunt holds, and the bytes that come of it.

A description holds `opsets` (pairs of domain and version), `input` and `tensors` (type, shape, values), `nodes` (op,
names of inputs and outputs, attributes as pairs of a kind and a value), the name of the `output`, and whether
initialisers are inputs too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto, ValueInfoProto, numpy_helper

File = dict[str, Any]

FLOAT, INT32, INT64, BOOL, DOUBLE = 1, 6, 7, 9, 11
DTYPES = {FLOAT: np.float32, INT32: np.int32, INT64: np.int64, BOOL: np.bool_, DOUBLE: np.float64}
FIELDS = {FLOAT: "float_data", INT32: "int32_data", INT64: "int64_data", BOOL: "int32_data", DOUBLE: "double_data"}
# How attributes are called in a description: their field in the protobuf, and its number.
ATTRIBUTES = {"f": 1, "i": 2, "s": 3, "t": 4, "floats": 6, "ints": 7, "strings": 8}
KINDS = {number: name for name, number in ATTRIBUTES.items()}


def tensor(array: Any, kind: int | None = None) -> dict[str, Any]:
    """A description of an array."""
    given = np.asarray(array)
    number = kind or next(k for k, dtype in DTYPES.items() if dtype == given.dtype)
    return {"type": number, "shape": list(given.shape), "values": given.astype(DTYPES[number]).reshape(-1).tolist()}


def array_of(described: dict[str, Any]) -> np.ndarray:
    """The array of a description, if its values fit its shape."""
    return np.array(described["values"], DTYPES[described["type"]]).reshape(described["shape"])


def model_of(file: File, shown: Iterable[str] = ()) -> bytes:
    """The file; values that are `shown` become outputs too."""
    model = ModelProto(ir_version=8)
    for domain, version in file["opsets"]:
        model.opset_import.add(domain=domain, version=version)
    graph = model.graph
    graph.name = "hunt"
    _declare(graph.input.add(), "x", file["input"]["type"], file["input"]["shape"])
    for name, described in file["tensors"].items():
        _fill(graph.initializer.add(name=name), described)
        if file.get("as_inputs"):
            _declare(graph.input.add(), name, described["type"], described["shape"])
    for node in file["nodes"]:
        made = graph.node.add(op_type=node["op"], name=node["out"][0], input=node["in"], output=node["out"])
        for name, (kind, value) in node["attributes"].items():
            _attribute(made.attribute.add(name=name, type=ATTRIBUTES[kind]), kind, value)
    for name in dict.fromkeys((file["output"], *shown)):
        graph.output.append(ValueInfoProto(name=name))
    graph.output[0].type.tensor_type.elem_type = file["input"]["type"]
    return model.SerializeToString()


def _declare(value: Any, name: str, kind: int, shape: list[int | str]) -> None:
    value.name = name
    value.type.tensor_type.elem_type = kind
    value.type.tensor_type.shape.SetInParent()
    for size in shape:
        axis = value.type.tensor_type.shape.dim.add()
        if isinstance(size, str):
            axis.dim_param = size
        else:
            axis.dim_value = size


def _fill(made: TensorProto, described: dict[str, Any]) -> None:
    made.data_type = described["type"]
    made.dims.extend(described["shape"])
    getattr(made, FIELDS[described["type"]]).extend(
        int(v) if v is True or v is False else v for v in described["values"]
    )


def _attribute(made: AttributeProto, kind: str, value: Any) -> None:
    if kind == "t":
        _fill(made.t, value)
    elif kind == "s":
        made.s = value.encode()
    elif kind == "strings":
        made.strings.extend(text.encode() for text in value)
    elif kind in ("f", "i"):
        setattr(made, kind, value)
    else:
        getattr(made, kind).extend(value)


def description_of(content: bytes) -> File:
    """A file with one input as a description of it."""
    model = ModelProto.FromString(content)
    graph = model.graph
    tensors = {t.name: tensor(numpy_helper.to_array(t)) for t in graph.initializer}
    (given,) = [value for value in graph.input if value.name not in tensors]
    renamed = {given.name: "x"}
    kind = given.type.tensor_type
    return {
        "opsets": [[entry.domain, entry.version] for entry in model.opset_import],
        "input": {"type": kind.elem_type, "shape": [axis.dim_param or axis.dim_value for axis in kind.shape.dim]},
        "tensors": tensors,
        "nodes": [
            {
                "op": node.op_type,
                "in": [renamed.get(name, name) for name in node.input],
                "out": list(node.output),
                "attributes": {a.name: _described(a) for a in node.attribute},
            }
            for node in graph.node
        ],
        "output": graph.output[0].name,
        "as_inputs": len(graph.input) > 1,
    }


def _described(attribute: AttributeProto) -> list[Any]:
    kind = KINDS[attribute.type]
    value = getattr(attribute, kind)
    if kind == "t":
        return [kind, tensor(numpy_helper.to_array(value))]
    if kind == "s":
        return [kind, value.decode()]
    if kind == "strings":
        return [kind, [text.decode() for text in value]]
    return [kind, value if kind in ("f", "i") else list(value)]


def lifted(file: File) -> File:
    """The same program in float64."""
    return _retyped(file, FLOAT, DOUBLE)


def lowered(file: File) -> File:
    """The same program in float32."""
    return _retyped(file, DOUBLE, FLOAT)


def _retyped(file: File, old: int, new: int) -> File:
    nodes = []
    for node in file["nodes"]:
        attributes = {
            name: _attribute_in(node["op"], name, held, old, new) for name, held in node["attributes"].items()
        }
        if node["op"] == "ConstantOfShape":
            attributes.setdefault("value", ["t", tensor(np.zeros(1), new)])
        if node["op"] == "Constant" and {held[0] for held in attributes.values()} == {"t"}:
            attributes = {"value": next(iter(attributes.values()))}
        nodes.append({**node, "attributes": attributes})
    tensors = {name: _tensor_in(held, old, new) for name, held in file["tensors"].items()}
    return {**file, "nodes": nodes, "tensors": tensors, "input": {**file["input"], "type": new}}


def _tensor_in(described: dict[str, Any], old: int, new: int) -> dict[str, Any]:
    return {**described, "type": new} if described["type"] == old else described


def _attribute_in(op: str, name: str, held: list[Any], old: int, new: int) -> list[Any]:
    kind, value = held
    if kind == "t":
        return [kind, _tensor_in(value, old, new)]
    if op == "Constant" and kind in ("f", "floats"):
        return ["t", tensor(np.asarray(value, np.float32), new)]
    if op == "Cast" and name == "to" and value == old:
        return [kind, new]
    return held
