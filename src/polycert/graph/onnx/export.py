"""Write networks as ONNX files: every op of a graph as standard ONNX, with a free batch axis."""

from __future__ import annotations

import os
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

OPSET = 20


def export(net: Network, path: str | os.PathLike[str]) -> None:
    """Write a network as an ONNX file, and check it with onnxruntime before it appears under its name.

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
    """Check that onnxruntime computes the graph's outputs from the file."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, *graph.input_shape, generator=generator, dtype=graph.dtype) * 2 - 0.5
    verdicts = agreements(graph, OnnxRuntime(program), x)
    if not bool(verdicts.any() and verdicts.all()):
        raise PolycertError("onnxruntime does not reproduce the network from the file: please report it")


@dataclass(eq=False)
class OnnxWriter:
    """An ONNX file under construction."""

    graph: Graph
    nodes: list[Any] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)

    def store(self, values: Tensor | list[int]) -> str:
        """Append a constant and return its name."""
        from onnx import numpy_helper

        array = np.asarray(values, dtype=np.int64) if isinstance(values, list) else values.detach().cpu().numpy()
        self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), f"constant_{len(self.tensors)}"))
        return str(self.tensors[-1].name)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append one ONNX op and return the name of its result."""
        from onnx import helper

        result = f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [result], **attributes))
        return result

    def model(self) -> bytes:
        """Return the content of the whole file."""
        from onnx import TensorProto, helper

        names = ["input"]
        for node in self.graph.nodes[1:]:
            names.append(self._write(node, [names[i] for i in node.inputs]))
        self.nodes.append(helper.make_node("Identity", [names[-1]], ["output"]))
        self._drop_unused()
        kind = TensorProto.DOUBLE if self.graph.dtype == torch.float64 else TensorProto.FLOAT
        ends = [
            helper.make_tensor_value_info(name, kind, ["batch", *shape])
            for name, shape in (("input", self.graph.input_shape), ("output", self.graph.output_shape))
        ]
        made = helper.make_graph(self.nodes, "polycert", ends[:1], ends[1:], self.tensors)
        opsets = [helper.make_opsetid("", OPSET)]
        return bytes(helper.make_model(made, opset_imports=opsets, ir_version=9).SerializeToString())

    def _drop_unused(self) -> None:
        """Drop the ops and the constants that the output does not depend on, such as the rise of a maximum."""
        needed = {"output"}
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
        self.nodes = [node for node in self.nodes if needed.intersection(node.output)]
        self.tensors = [tensor for tensor in self.tensors if tensor.name in needed]

    def _write(self, node: Node, inputs: list[str]) -> str:
        """Append a node's op and return the name of its result."""
        assert node.op is not None
        try:
            return node.op.write(self, inputs)
        except ValueError as error:
            raise PolycertError(f"{error} (node {node.name!r})") from None
