"""How many samples fit into a memory budget."""

from __future__ import annotations

import math

import torch

from polycert.graph import Graph
from polycert.rules.convolution import Conv2d

# Batches whose coefficients stay in the processor's cache are fastest; a budget only makes them smaller.
CACHE_FRIENDLY = 32 * 2**20
COPIES = 3  # tensors of the largest size that live at once in a backward pass
LARGEST_BATCH = 100


def batch_size_for(graph: Graph, memory: int | None = None) -> int:
    """Samples per batch so that the largest coefficients of a backward pass stay within the budget (in bytes)."""
    bytes_per_number = torch.finfo(graph.dtype).bits // 8
    targets = [graph.nodes[k].inputs[0] for k in graph.activations] + [graph.output]
    largest = max(_numbers(graph, target) for target in targets)
    budget = CACHE_FRIENDLY if memory is None else min(memory, CACHE_FRIENDLY)
    return max(1, min(LARGEST_BATCH, budget // (COPIES * bytes_per_number * largest)))


def _numbers(graph: Graph, target: int) -> int:
    """The most coefficients of one sample's rows at any node on the way from `target` to the input.

    Above the last activation they are the weights themselves, shared by all samples.
    """
    if not any(graph.depends_on_activation[index] for index in graph.ancestors(target)):
        return 1
    rows = math.prod(graph.nodes[target].shape)
    window: tuple[int, int] | None = (1, 1)
    most = 1
    for index in graph.ancestors(target):
        node = graph.nodes[index]
        size = math.prod(node.shape)
        if window is not None and len(node.shape) == 3:
            size = min(size, node.shape[0] * window[0] * window[1])
        elif index != target:
            window = None
        most = max(most, size) if index != target else most
        if isinstance(node.op, Conv2d) and window is not None:
            kernel = node.op.kernel.shape[2:]
            window = (
                (window[0] - 1) * node.op.stride[0] + kernel[0],
                (window[1] - 1) * node.op.stride[1] + kernel[1],
            )
    return rows * most
