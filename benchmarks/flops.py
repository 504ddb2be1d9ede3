"""The number of floating-point operations that even an ideal program needs for bounds."""

from __future__ import annotations

import math

from polycert.bounding.chunking import row_sizes
from polycert.graph import Graph
from polycert.rules.activation import Activation
from polycert.rules.affine import MatMul
from polycert.rules.conv2d import Conv2d


def forward_flops(graph: Graph, last: int | None = None) -> int:
    """Return the operations of one sample's pass through the affine layers (up to node `last`)."""
    nodes = graph.nodes if last is None else [graph.nodes[k] for k in graph.ancestors(last)]
    return sum(2 * math.prod(node.shape) * _fan_in(node.op) for node in nodes)


def bound_flops(graph: Graph, method: str) -> int:
    """Return the operations of bounds of one sample's margins, with its prediction."""
    margins = math.prod(graph.output_shape) - 1
    hidden = [graph.nodes[k].inputs[0] for k in graph.activations]
    predict = forward_flops(graph)
    if method == "ibp":
        return 3 * predict
    total = predict + margins * _row_flops(graph, graph.output)
    for target in hidden:
        if not graph.depends_on_activation[target]:
            total += 2 * forward_flops(graph, target)
        elif method == "crown-ibp":
            total += 2 * 2 * math.prod(graph.nodes[target].shape) * _fan_in(graph.nodes[target].op)
        else:
            total += math.prod(graph.nodes[target].shape) * _row_flops(graph, target)
    return total


def _fan_in(op: object) -> int:
    """Return how many inputs an output of the op depends on; 0 if the op has no weights."""
    if isinstance(op, MatMul):
        return int(op.weight.shape[1])
    return int(op.weight[0].numel()) if isinstance(op, Conv2d) else 0


def _row_flops(graph: Graph, target: int) -> int:
    """Return the operations that pull one row over a node to the input.

    The node's own weights are the row already, and windows stay windows.
    """
    total, begun = 0, False
    for index, size in row_sizes(graph, target):
        op = graph.nodes[index].op
        begun = begun or isinstance(op, Activation)
        if begun and isinstance(op, MatMul | Conv2d):
            total += 2 * size * int(op.weight[0].numel())
    return total
