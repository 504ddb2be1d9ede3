"""How much is worked on at a time: samples in a batch, rows in a chunk."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.errors import PolycertError
from polycert.graph import Graph
from polycert.rules.conv2d import Conv2d

# Coefficients at a time that stay in the processor's cache are fastest; a budget only makes them fewer.
CHUNK = 2**20
COPIES = 12  # tensors of a batch's activations that live at once
CHUNKS_AT_ONCE = 6  # tensors of a chunk that live at once
FINAL_CHUNKS = 8  # the final rows may be more: with few samples at a time, reading the weights would cost too much
LARGEST_BATCH = 100
# The GNU allocator hands blocks back to the system, at the price of page faults, above twice the largest block that
# was ever freed; this is the largest that counts.
KEPT_BLOCK = 31 * 2**20


class Chunk(NamedTuple):
    """Some rows of some samples."""

    sample: Tensor  # [samples]
    unit: Tensor  # [samples, rows]: entries of the node, filled up with 0
    wanted: Tensor | None  # [samples, rows]: which of them are not just filling; None for all


def chunks(still_open: Tensor, width: int) -> Iterator[Chunk]:
    """Split the open entries `[batch, entries]` of a node into chunks of about `CHUNK` coefficients.

    Samples with about as many open entries go together, so that little is filled up.
    """
    if still_open.shape[0] == 1:
        yield from _chunks_of_one(still_open, width)
        return
    counts, order = still_open.sum(1).sort(descending=True)
    begin, sizes = 0, counts.tolist()
    while begin < len(sizes) and sizes[begin] > 0:
        samples = max(1, CHUNK // (sizes[begin] * width))
        group = order[begin : begin + samples].sort().values
        rows = max(1, CHUNK // width)
        whole = _listed(still_open[group], sizes[begin])
        for first in range(0, sizes[begin], rows):
            yield Chunk(group, *(part[:, first : first + rows] for part in whole))
        begin += samples


def _chunks_of_one(still_open: Tensor, width: int) -> Iterator[Chunk]:
    """Of a single sample, where nothing has to be sorted or filled up."""
    sample, unit = still_open.nonzero(as_tuple=True)
    if unit.numel():
        for part in unit.unsqueeze(0).split(max(1, CHUNK // width), 1):
            yield Chunk(sample[:1], part, None)


def _listed(still_open: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The open entries of each sample one after the other, `[samples, most]`, and which places are taken."""
    sample, unit = still_open.nonzero(as_tuple=True)
    place = (still_open.cumsum(1) - 1)[sample, unit]
    units = place.new_zeros(len(still_open), most).index_put((sample, place), unit)
    return units, torch.arange(most, device=units.device) < still_open.sum(1, keepdim=True)


def keep_freed_blocks() -> None:
    """Have the allocator reuse the blocks of earlier chunks; costs nothing, as the memory is never touched."""
    torch.empty(KEPT_BLOCK, dtype=torch.uint8)


def batch_size_for(
    graph: Graph,
    numbers: int | None = None,
    memory: int | None = None,
    threads: int = 1,
    *,
    batch_size: int | None = None,
) -> int:
    """Samples per batch.

    Args:
        graph: what is bounded.
        numbers: coefficients that a method holds for one sample (a few chunks are for all); None for final rows.
        memory: bytes for the activations of all threads' batches; None for half of what is free.
        threads: batches at work at once.
        batch_size: what the caller asks for, which counts if it is given.
    """
    check_counts(batch_size=batch_size, memory=memory, threads=threads)
    if batch_size is not None:
        return batch_size
    batch = FINAL_CHUNKS * CHUNK // (of_rows(graph) if numbers is None else numbers)
    number = torch.finfo(graph.dtype).bits // 8
    budget = (free_memory() // 2 if memory is None else memory) // threads - CHUNKS_AT_ONCE * CHUNK * number
    activations = sum(math.prod(node.shape) for node in graph.nodes)
    return max(1, min(LARGEST_BATCH, batch, budget // (COPIES * activations * number)))


def check_counts(**values: object) -> None:
    """Samples, bytes, threads: whole numbers from 1, or None where nothing was said."""
    for name, value in values.items():
        whole = isinstance(value, (int, Integral)) and not isinstance(value, bool) and int(value) >= 1
        if value is not None and not whole:
            unit = " of bytes" if name == "memory" else ""
            raise PolycertError(f"{name} must be a whole number{unit} from 1, got {value!r}")


def of_rows(graph: Graph) -> int:
    """Coefficients of one sample's final rows where they are most."""
    return math.prod(graph.output_shape) * row_width(graph, graph.output)


def of_slopes(graph: Graph) -> int:
    """The same where every row has slopes of its own, and what their gradients need."""
    return 2 * FINAL_CHUNKS * of_rows(graph)


def free_memory() -> int:
    """Bytes that are free, as far as the system says; a gibibyte if it does not."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2**30


def row_width(graph: Graph, target: int) -> int:
    """The most coefficients that one row over node `target` has at any node on the way to the input."""
    widths = graph.layout.widths
    if target not in widths:
        widths[target] = max((size for index, size in row_sizes(graph, target) if index != target), default=1)
    return widths[target]


def row_sizes(graph: Graph, target: int) -> Iterator[tuple[int, int]]:
    """The nodes on the way from `target` to the input, and how many coefficients one row has there.

    A row stays within a window as long as it passes convolutions.
    """
    window: tuple[int, int] | None = (1, 1)
    for index in graph.ancestors(target):
        node = graph.nodes[index]
        size = math.prod(node.shape)
        if window is not None and len(node.shape) == 3:
            size = min(size, node.shape[0] * window[0] * window[1])
        elif index != target:
            window = None
        yield index, size
        if isinstance(node.op, Conv2d) and window is not None:
            window = node.op.reach(window)
