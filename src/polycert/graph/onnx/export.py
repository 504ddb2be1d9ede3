"""Networks to ONNX files: every op of a graph as standard ONNX, with a free batch axis."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polycert.errors import PolycertError
from polycert.graph.graph import Graph, Network, Node
from polycert.graph.onnx.comparison import agreements
from polycert.graph.onnx.onnxruntime_check import OnnxRuntime
from polycert.graph.onnx.program import OnnxProgram, read_program
from polycert.records.files import whole_file
from polycert.rules.affine import Add, Elementwise, MatMul, Mean
from polycert.rules.bump import Gelu, Silu, TanhGelu
from polycert.rules.conv2d import Conv2d, ConvTranspose2d
from polycert.rules.convex import Elu, Exp, Softplus, Square
from polycert.rules.indexing import Concat, Permute, Pick, Reshape
from polycert.rules.piecewise_linear import LeakyRelu, Relu
from polycert.rules.pooling import AvgPool2d, WindowShift
from polycert.rules.s_shaped import Arctan, Erf, Tanh

OPSET = 20


def export(net: Network, path: str | os.PathLike[str]) -> None:
    """Write a network as an ONNX file, checked with onnxruntime before it appears under its name.

    Examples:
        >>> net = polycert.capture(torch.nn.Linear(3, 2), (3,))
        >>> export(net, "/tmp/linear.onnx")
    """
    target = Path(path)
    if target.suffix != ".onnx":
        raise PolycertError(f"networks are exported as .onnx, not {target.name!r}")
    if not target.resolve().parent.is_dir():
        raise PolycertError(f"cannot write {str(target)!r}: its folder does not exist; make it first")
    if net.softmax:
        raise PolycertError("the network ends in a softmax, which was dropped: export a model that returns logits")
    graph = net.bind()
    content = OnnxWriter(graph).model()
    with whole_file(target) as name:
        Path(name).write_bytes(content)
        _check(graph, read_program(Path(name)))


def _check(graph: Graph, program: OnnxProgram) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, *graph.input_shape, generator=generator, dtype=graph.dtype) * 2 - 0.5
    verdicts = agreements(graph, OnnxRuntime(program), x)
    if not bool(verdicts.any() and verdicts.all()):
        raise PolycertError("onnxruntime does not reproduce the network from the file: please report it")


@dataclass(eq=False)
class OnnxWriter:
    """A file under construction."""

    graph: Graph
    nodes: list[Any] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)

    def store(self, values: Tensor | list[int]) -> str:
        """A constant; gives its name."""
        from onnx import numpy_helper

        array = np.asarray(values, dtype=np.int64) if isinstance(values, list) else values.detach().cpu().numpy()
        self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), f"constant_{len(self.tensors)}"))
        return str(self.tensors[-1].name)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """One ONNX op; gives the name of its result."""
        from onnx import helper

        result = f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [result], **attributes))
        return result

    def model(self) -> bytes:
        """The whole file."""
        from onnx import TensorProto, helper

        names = ["input"]
        for node in self.graph.nodes[1:]:
            names.append(self._write(node, [names[i] for i in node.inputs]))
        self.nodes.append(helper.make_node("Identity", [names[-1]], ["output"]))
        kind = TensorProto.DOUBLE if self.graph.dtype == torch.float64 else TensorProto.FLOAT
        ends = [
            helper.make_tensor_value_info(name, kind, ["batch", *shape])
            for name, shape in (("input", self.graph.input_shape), ("output", self.graph.output_shape))
        ]
        made = helper.make_graph(self.nodes, "polycert", ends[:1], ends[1:], self.tensors)
        opsets = [helper.make_opsetid("", OPSET)]
        return bytes(helper.make_model(made, opset_imports=opsets, ir_version=9).SerializeToString())

    def _write(self, node: Node, inputs: list[str]) -> str:
        kind = type(node.op)
        if kind not in WRITERS:
            raise PolycertError(f"no way to write {kind.__name__} (node {node.name!r}) as ONNX")
        return WRITERS[kind](self, node.op, inputs)


def _matmul(w: OnnxWriter, op: MatMul, inputs: list[str]) -> str:
    product = w.op("MatMul", inputs[0], w.store(op.weight.T))
    return product if op.offset is None else w.op("Add", product, w.store(op.offset))


def _elementwise(w: OnnxWriter, op: Elementwise, inputs: list[str]) -> str:
    value = inputs[0] if op.factor is None else w.op("Mul", inputs[0], w.store(op.factor))
    return value if op.shift is None else w.op("Add", value, w.store(op.shift))


def _conv(w: OnnxWriter, op: Conv2d, inputs: list[str]) -> str:
    given = [*inputs, w.store(op.weight)] + ([] if op.offset is None else [w.store(op.offset)])
    return w.op("Conv", *given, **_sliding(op))


def _sliding(op: Conv2d) -> dict[str, Any]:
    return {"strides": op.stride, "pads": op.padding * 2, "dilations": op.dilation, "group": op.groups}


def _transposed(w: OnnxWriter, op: ConvTranspose2d, inputs: list[str]) -> str:
    base = op.base
    reach = [
        (n - 1) * s - 2 * p + d * (k - 1) + 1
        for n, s, p, d, k in zip(
            base.out_shape[1:], base.stride, base.padding, base.dilation, base.weight.shape[2:], strict=True
        )
    ]
    extra = [n - r for n, r in zip(base.in_shape[1:], reach, strict=True)]
    given = [*inputs, w.store(base.weight)] + ([] if op.offset is None else [w.store(op.offset)])
    return w.op("ConvTranspose", *given, output_padding=extra, **_sliding(base))


def _pick(w: OnnxWriter, op: Pick, inputs: list[str]) -> str:
    """From the flat sample with a zero behind it."""
    flat = w.op("Flatten", inputs[0], axis=1)
    padded = w.op("Pad", flat, w.store([0, 0, 0, 1]))
    size = int(np.prod(op.in_shape))
    index = torch.where(op.index < 0, size, op.index)
    return w.op("Reshape", w.op("Gather", padded, w.store(index), axis=1), w.store([-1, *op.out_shape]))


def _tanh(w: OnnxWriter, op: Tanh, inputs: list[str]) -> str:
    constants = (op.shift, op.outer, op.inner)
    return w.op({(0.0, 1.0, 1.0): "Tanh", (0.5, 0.5, 0.5): "Sigmoid"}[constants], *inputs)


def _permute(w: OnnxWriter, op: Permute, inputs: list[str]) -> str:
    return w.op("Transpose", *inputs, perm=[0, *(axis + 1 for axis in op.order)])


WRITERS: dict[type, Callable[[OnnxWriter, Any, list[str]], str]] = {
    Add: lambda w, op, inputs: w.op("Add" if op.signs[1] > 0 else "Sub", *inputs),
    Arctan: lambda w, op, inputs: w.op("Atan", *inputs),
    AvgPool2d: _conv,
    Concat: lambda w, op, inputs: w.op("Concat", *inputs, axis=op.axis + 1),
    Conv2d: _conv,
    Silu: lambda w, op, inputs: w.op("Mul", inputs[0], w.op("Sigmoid", *inputs)),
    WindowShift: _conv,
    Softplus: lambda w, op, inputs: w.op("Softplus", *inputs),
    Square: lambda w, op, inputs: w.op("Mul", inputs[0], inputs[0]),
    ConvTranspose2d: _transposed,
    Elementwise: _elementwise,
    Elu: lambda w, op, inputs: w.op("Elu", *inputs),
    Erf: lambda w, op, inputs: w.op("Erf", *inputs),
    Exp: lambda w, op, inputs: w.op("Exp", *inputs),
    Gelu: lambda w, op, inputs: w.op("Gelu", *inputs),
    LeakyRelu: lambda w, op, inputs: w.op("LeakyRelu", *inputs, alpha=op.leak),
    MatMul: _matmul,
    Mean: _matmul,
    Permute: _permute,
    Pick: _pick,
    Relu: lambda w, op, inputs: w.op("Relu", *inputs),
    Reshape: lambda w, op, inputs: w.op("Reshape", *inputs, w.store([-1, *op.out_shape])),
    Tanh: _tanh,
    TanhGelu: lambda w, op, inputs: w.op("Gelu", *inputs, approximate="tanh"),
}
