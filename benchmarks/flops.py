"""How many floating-point operations bounds need: what an ideal program could not do without."""

from __future__ import annotations

import math

from polycert.graph import Graph
from polycert.rules.affine import MatMul
from polycert.rules.base import Activation
from polycert.rules.convolution import Conv2d


def forward_flops(graph: Graph, last: int | None = None) -> int:
    """One sample through the affine layers (up to node `last`)."""
    nodes = graph.nodes if last is None else [graph.nodes[k] for k in graph.ancestors(last)]
    return sum(2 * math.prod(node.shape) * _fan_in(node.op) for node in nodes)


def bound_flops(graph: Graph, method: str) -> int:
    """Bounds of the margins of one sample, with the prediction."""
    margins = math.prod(graph.output_shape) - 1
    hidden = [graph.nodes[k].inputs[0] for k in graph.activations]
    predict = forward_flops(graph)
    if method == "ibp":
        return 3 * predict
    if method == "forward":  # the first affine layers' columns are their weights
        later = [node for k, node in enumerate(graph.nodes) if graph.depends_on_activation[k]]
        pushed = sum(2 * math.prod(node.shape) * _fan_in(node.op) for node in later)
        return 3 * predict + math.prod(graph.input_shape) * pushed
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
    if isinstance(op, MatMul):
        return int(op.weight.shape[1])
    return int(op.weight[0].numel()) if isinstance(op, Conv2d) else 0


def _row_flops(graph: Graph, target: int) -> int:
    """One row over a node pulled to the input; its own weights are there already, and windows stay windows."""
    window: tuple[int, int] | None = (1, 1)
    total, begun = 0, False
    for index in graph.ancestors(target):
        node = graph.nodes[index]
        size = math.prod(node.shape)
        if window is not None and len(node.shape) == 3:
            size = min(size, node.shape[0] * window[0] * window[1])
        elif index != target:
            window = None
        begun = begun or isinstance(node.op, Activation)
        if begun and isinstance(node.op, MatMul):
            total += 2 * size * node.op.weight.shape[1]
        elif isinstance(node.op, Conv2d):
            total += 2 * size * int(node.op.weight[0].numel()) if begun else 0
            window = None if window is None else node.op.reach(window)
    return total
