"""Small ONNX files, one for each op and variant: the registry that the importer's tests run over."""
# ruff: noqa: E501 (one line per case, however long)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray


def rand(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, dtype=np.int64)


class Graph:
    """A file in the making: `g("Relu", "x")` appends an op and names its result."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def __call__(self, op: str, *inputs: str | Array, outputs: int = 1, **attributes: Any) -> Any:
        names = [value if isinstance(value, str) else self.store(value) for value in inputs]
        results = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, names, results, **attributes))
        return results[0] if outputs == 1 else results

    def store(self, array: Array) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(array, name))
        return name


@dataclass(frozen=True)
class File:
    """A network with one input `x`, written by `build`."""

    name: str
    shape: tuple[int | str, ...]
    build: Callable[[Graph], str]
    opset: int = 13
    sample: tuple[int, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def model(self) -> Any:
        graph = Graph()
        result = self.build(graph)
        kind = self.options.get("kind", TensorProto.FLOAT)
        ends = [helper.make_tensor_value_info("x", kind, list(self.shape)), helper.make_empty_tensor_value_info(result)]
        given = ends[:1]
        if self.options.get("initialisers as inputs"):
            given = given + [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in graph.tensors]
        made = helper.make_graph(graph.nodes, self.name, given, [_output(result, kind)], graph.tensors)
        return helper.make_model(made, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def write(self, folder: Path) -> Path:
        path = folder / f"{self.name}.onnx"
        path.write_bytes(self.model().SerializeToString())
        return path


def _output(name: str, kind: int) -> Any:
    value = helper.make_empty_tensor_value_info(name)
    value.type.tensor_type.elem_type = kind
    return value


def head(g: Graph, value: str, size: int, classes: int = 3) -> str:
    """Flatten and a last layer: a classifier of three classes."""
    return g("Gemm", g("Flatten", value), rand(classes, size, seed=9) / size**0.5, rand(classes, seed=8), transB=1)


def elementwise(op: str, **attributes: Any) -> Callable[[Graph], str]:
    return lambda g: head(g, g(op, g("Gemm", "x", rand(4, 6), rand(6, seed=1)), **attributes), 6)


def image(op: str, size: int, *inputs: Array, **attributes: Any) -> Callable[[Graph], str]:
    """A convolution, a ReLU, the op, a last layer."""

    def build(g: Graph) -> str:
        first = g("Relu", g("Conv", "x", rand(2, 1, 3, 3), pads=[1, 1, 1, 1]))
        return head(g, g(op, first, *inputs, **attributes), size)

    return build


def moved(op: str, size: int, *inputs: Array, **attributes: Any) -> Callable[[Graph], str]:
    """The op on the input itself, then a layer, a ReLU, a last layer."""

    def build(g: Graph) -> str:
        flat = g("Flatten", g(op, "x", *inputs, **attributes))
        return head(g, g("Relu", g("MatMul", flat, rand(size, 5))), 5)

    return build


def shape_subgraph(g: Graph) -> str:
    """What torch writes for `x.view(x.size(0), x.size(1) * x.size(2))`."""
    sizes = g("Shape", "x")
    parts = [g("Gather", sizes, np.array(k, dtype=np.int64), axis=0) for k in range(3)]
    area = g("Mul", parts[1], parts[2])
    target = g("Concat", g("Unsqueeze", parts[0], ints(0)), g("Unsqueeze", area, ints(0)), axis=0)
    return head(g, g("Relu", g("Reshape", "x", target)), 12)


def split_sum(g: Graph) -> str:
    first, second = g("Split", g("Relu", "x"), ints(2, 4), outputs=2, axis=1)
    return head(g, g("Concat", g("Neg", second), first, rand(1, 2), axis=1), 8)


def residual(g: Graph) -> str:
    first = g("Relu", g("MatMul", "x", rand(4, 4)))
    second = g("Sum", first, "x", g("Sub", rand(1, 4, seed=3), first))
    return head(g, g("Add", g("Relu", second), g("Mul", "x", np.array(0.5, np.float32))), 4)


def broadcast(g: Graph) -> str:
    """A value that a constant, and another value, enlarges."""
    column = g("Reshape", g("Relu", g("MatMul", "x", rand(4, 3))), ints(1, 3, 1))
    row = g("Unsqueeze", "x", ints(1))
    wide = g("Add", column, row)
    return head(g, g("Reshape", g("Relu", g("Add", wide, rand(2, 1, 1))), ints(1, 24)), 24)


def from_left(g: Graph) -> str:
    return head(g, g("Relu", g("MatMul", rand(5, 3), "x")), 10)


def normalised(g: Graph) -> str:
    scaled = g("Div", g("Sub", "x", np.float32([[[[0.4]]]])), np.float32([[[[0.3]]]]))
    return head(g, g("BatchNormalization", scaled, *(abs(rand(1, seed=k)) + 0.1 for k in range(4))), 16)


def constant_op(g: Graph) -> str:
    value = g("Constant", value=numpy_helper.from_array(rand(1, 4), "c"))
    return head(g, g("Relu", g("Mul", "x", g("Cast", value, to=1))), 4)


def vector(g: Graph) -> str:
    """No batch at all, as tiny test files have it."""
    return g("MatMul", rand(3, 4, seed=2), g("Relu", g("MatMul", rand(4, 2), "x")))


def folded(g: Graph) -> str:
    zeros = g("Expand", g("ConstantOfShape", ints(1, 1)), ints(1, 4))
    picked = g("Slice", g("Transpose", rand(4, 4), perm=[1, 0]), ints(0), ints(1), ints(0))
    return head(g, g("Relu", g("Add", g("Add", "x", zeros), g("Squeeze", picked, ints(0)))), 4)


def recurrent(op: str, gates: int, last: bool = False, **attributes: Any) -> Callable[[Graph], str]:
    """A recurrent op over three steps of two inputs; all its states, or the last one."""

    def build(g: Graph) -> str:
        weights = rand(1, 3 * gates, 2), rand(1, 3 * gates, 3, seed=1), rand(1, 6 * gates, seed=2)
        sequence = g("Transpose", "x", perm=[1, 0, 2])
        states, end = g(op, sequence, *weights, outputs=2, hidden_size=3, **attributes)
        return head(g, g("Squeeze", end, ints(0)), 3) if last else head(g, g("Transpose", states, perm=[2, 0, 1, 3]), 9)

    return build


F = File
FILES = [
    F("gemm", (1, 4), lambda g: head(g, g("Relu", g("Gemm", "x", rand(4, 5), rand(5), alpha=0.5, beta=2.0)), 5)),
    F("gemm-matrix-offset", (1, 4), lambda g: head(g, g("Gemm", "x", rand(4, 5), rand(1, 1)), 5)),
    F("free-batch", ("N", 4), elementwise("Relu")),
    F("initialisers-as-inputs", (1, 4), elementwise("Relu"), 8, options={"initialisers as inputs": True}),
    F("double", (1, 4), lambda g: g("Relu", g("MatMul", "x", rand(4, 3).astype(np.float64))), options={"kind": TensorProto.DOUBLE}),
    F("vector", (2,), vector, sample=(2,)),
    F("leaky", (1, 4), elementwise("LeakyRelu", alpha=0.2)),
    F("sigmoid", (1, 4), elementwise("Sigmoid")),
    F("tanh", (1, 4), elementwise("Tanh")),
    F("atan", (1, 4), elementwise("Atan")),
    F("abs", (1, 4), elementwise("Abs")),
    F("erf", (1, 4), elementwise("Erf")),
    F("exp", (1, 4), elementwise("Exp")),
    F("softplus", (1, 4), elementwise("Softplus")),
    F("elu", (1, 4), elementwise("Elu")),
    F("gelu", (1, 4), elementwise("Gelu"), 20),
    F("gelu-tanh", (1, 4), elementwise("Gelu", approximate="tanh"), 20),
    F("gelu-by-erf", (1, 4), lambda g: head(g, g("Mul", g("Mul", "x", g("Add", g("Erf", g("Div", "x", np.float32(1.4142135))), np.float32(1))), np.float32(0.5)), 4)),
    F("silu", (1, 4), lambda g: head(g, g("Mul", "x", g("Sigmoid", "x")), 4)),
    F("hard-sigmoid", (1, 4), elementwise("HardSigmoid", alpha=0.25)),
    F("square", (1, 4), lambda g: head(g, g("Add", g("Mul", "x", "x"), g("Pow", "x", np.float32(2))), 4)),
    F("product", (1, 4), lambda g: head(g, g("Mul", g("Tanh", "x"), g("MatMul", "x", rand(4, 4))), 4)),
    F("maximum", (1, 4), lambda g: head(g, g("Min", g("Max", "x", g("Neg", "x"), np.float32([[0.2]])), rand(1, 4)), 4)),
    F("prelu", (1, 2, 3, 3), lambda g: head(g, g("PRelu", "x", np.float32([[[0.2]], [[-0.4]]])), 18)),
    F("clip", (1, 4), lambda g: head(g, g("Clip", "x", np.float32(-0.3), np.float32(0.6)), 4)),
    F("clip-attribute", (1, 4), elementwise("Clip", min=-0.3, max=0.6), 8),
    F("clip-one-side", (1, 4), lambda g: head(g, g("Clip", "x", "", np.float32(0.6)), 4)),
    F("softmax", (1, 4), elementwise("Softmax", axis=-1)),
    F("bilinear", (1, 3, 2), lambda g: head(g, g("MatMul", "x", g("Transpose", g("Tanh", "x"), perm=[0, 2, 1])), 9)),
    F("identity", (1, 4), elementwise("Identity")),
    F("dropout", (1, 4), elementwise("Dropout")),
    F("cast", (1, 4), elementwise("Cast", to=1)),
    F("constant-op", (1, 4), constant_op),
    F("folded-constants", (1, 4), folded),
    F("conv", (1, 1, 4, 4), image("Conv", 18, rand(2, 2, 2, 2), rand(2))),
    F("conv-1d", (1, 2, 7), lambda g: head(g, g("Relu", g("Conv", "x", rand(3, 2, 3), strides=[2], pads=[1, 0])), 9)),
    F("conv-uneven", (1, 1, 4, 5), image("Conv", 30, rand(2, 2, 3, 2), pads=[2, 0, 1, 1], strides=[1, 2])),
    F("conv-same-upper", (1, 1, 5, 4), image("Conv", 12, rand(2, 2, 2, 3), auto_pad="SAME_UPPER", strides=[2, 2])),
    F("conv-same-lower", (1, 1, 5, 4), image("Conv", 40, rand(2, 2, 2, 2), auto_pad="SAME_LOWER")),
    F("conv-groups", (1, 1, 4, 4), image("Conv", 36, rand(4, 1, 2, 2), group=2)),
    F("conv-dilated", (1, 1, 5, 5), image("Conv", 18, rand(2, 2, 2, 2), dilations=[2, 2])),
    F("conv-transpose", (1, 1, 3, 3), image("ConvTranspose", 108, rand(2, 3, 3, 3), rand(3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])),
    F("conv-transpose-groups", (1, 1, 3, 3), image("ConvTranspose", 64, rand(2, 2, 2, 2), group=2)),
    F("average-pool", (1, 1, 4, 4), image("AveragePool", 8, kernel_shape=[2, 2], strides=[2, 2])),
    F("average-pool-padding", (1, 1, 4, 5), image("AveragePool", 12, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])),
    F("average-pool-count-padding", (1, 1, 4, 4), image("AveragePool", 8, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0], count_include_pad=1)),
    F("max-pool", (1, 1, 4, 4), image("MaxPool", 8, kernel_shape=[2, 2], strides=[2, 2])),
    F("max-pool-overlap", (1, 1, 5, 5), image("MaxPool", 18, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])),
    F("max-pool-ceil", (1, 1, 5, 5), image("MaxPool", 18, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)),
    F("max-pool-1d", (1, 2, 6), lambda g: head(g, g("MaxPool", "x", kernel_shape=[3], strides=[3]), 4)),
    F("global-average-pool", (1, 1, 4, 4), image("GlobalAveragePool", 2)),
    F("global-max-pool", (1, 1, 3, 3), image("GlobalMaxPool", 2)),
    F("batch-norm", (1, 1, 4, 4), normalised),
    F("residual", (1, 4), residual),
    F("broadcast", (1, 4), broadcast),
    F("from-left", (1, 3, 2), from_left),
    F("concat-split", (1, 6), split_sum),
    F("split-equal", (1, 6), lambda g: head(g, g("Sub", *g("Split", "x", outputs=2, axis=1)), 3)),
    F("split-attribute", (1, 6), lambda g: head(g, g("Relu", g("Split", "x", outputs=2, axis=1, split=[4, 2])[0]), 4), 11),
    F("slice", (1, 4, 5), moved("Slice", 4, ints(-1, 1), ints(-5, 9), ints(1, 2), ints(-2, 2)), sample=(4, 5)),
    F("slice-attribute", (1, 4, 5), moved("Slice", 6, starts=[1, 2], ends=[3, 5], axes=[1, 2]), 9),
    F("pad", (1, 2, 3), moved("Pad", 20, ints(0, 1, 0, 0, 1, 2), np.float32(0.7)), 13),
    F("pad-attribute", (1, 2, 3), moved("Pad", 12, pads=[0, 1, 0, 0, 0, 1], value=0.0), 10),
    F("pad-crop", (1, 4, 3), moved("Pad", 8, ints(0, -1, 0, 0, -1, 1)), 13),
    F("gather", (1, 4, 3), moved("Gather", 9, ints(2, 0, -1), axis=1)),
    F("expand", (1, 1, 3), moved("Expand", 12, ints(1, 4, 3))),
    F("reshape-keep", (1, 4, 3), moved("Reshape", 12, ints(0, -1, 2))),
    F("flatten-axis", (1, 4, 3), lambda g: head(g, g("Reshape", g("Relu", g("Flatten", "x", axis=2)), ints(1, 12)), 12)),
    F("squeeze", (1, 4, 1, 3), moved("Squeeze", 12, ints(2))),
    F("squeeze-attribute", (1, 4, 1, 3), moved("Squeeze", 12, axes=[2]), 11),
    F("unsqueeze-attribute", (1, 4), moved("Unsqueeze", 4, axes=[1]), 11),
    F("transpose", (1, 4, 3), moved("Transpose", 12, perm=[0, 2, 1])),
    F("transpose-batch", (1, 4, 3), lambda g: head(g, g("Reshape", g("Transpose", g("Relu", "x"), perm=[2, 0, 1]), ints(1, 12)), 12)),
    F("shape-subgraph", ("N", 4, 3), shape_subgraph),
    F("reduce-mean", (1, 4, 3), moved("ReduceMean", 3, axes=[1], keepdims=0)),
    F("reduce-sum", (1, 4, 3), moved("ReduceSum", 4, ints(2), keepdims=1)),
    F("lstm", (1, 3, 2), recurrent("LSTM", 4)),
    F("lstm-last", (1, 3, 2), recurrent("LSTM", 4, last=True)),
    F("gru", (1, 3, 2), recurrent("GRU", 3, last=True, linear_before_reset=1)),
    F("rnn", (1, 3, 2), recurrent("RNN", 1)),
    F("rnn-relu", (1, 3, 2), recurrent("RNN", 1, activations=["Relu"])),
    F("reduce-mean-input", (1, 4, 3), moved("ReduceMean", 1, ints(1, 2)), 18),
]  # fmt: skip
