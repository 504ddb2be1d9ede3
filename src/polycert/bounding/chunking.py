"""How many samples go into a batch, and how many rows into a chunk."""

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

CHUNK = 2**20  # coefficients of a chunk, which then stay in the processor's cache
COPIES = 12  # tensors of the size of a batch's activations that live at once
CHUNK_COPIES = 6  # tensors of the size of a chunk that live at once
FINAL_CHUNKS = 8  # chunks that the final rows may fill: with fewer samples at a time, reading the weights costs more
LARGEST_BATCH = 100
# The GNU allocator returns freed blocks to the system, which costs page faults, if they are larger than twice the
# largest block that was ever freed. Blocks above this size do not count for that.
ALLOCATOR_BLOCK = 31 * 2**20


class Chunk(NamedTuple):
    """Some rows over a node, for some samples."""

    sample: Tensor  # [samples]
    unit: Tensor  # [samples, rows]: entries of the node; 0 where a sample has fewer rows
    wanted: Tensor | None  # [samples, rows]: whether the sample has that row; None if all have


def chunks(unstable: Tensor, width: int) -> Iterator[Chunk]:
    """Split the unstable entries `[batch, entries]` of a node into chunks of about `CHUNK` coefficients.

    `width` is the number of coefficients of a row. Samples with similar numbers of unstable entries go together, so
    that few rows are filled up.
    """
    if unstable.shape[0] == 1:
        sample, unit = unstable.nonzero(as_tuple=True)
        if unit.numel():
            for part in unit.unsqueeze(0).split(max(1, CHUNK // width), 1):
                yield Chunk(sample[:1], part, None)
        return
    counts, order = unstable.sum(1).sort(descending=True)
    begin, sizes = 0, counts.tolist()
    while begin < len(sizes) and sizes[begin] > 0:
        samples = max(1, CHUNK // (sizes[begin] * width))
        group = order[begin : begin + samples].sort().values
        rows = max(1, CHUNK // width)
        units, wanted = _unstable_units(unstable[group], sizes[begin])
        for first in range(0, sizes[begin], rows):
            yield Chunk(group, units[:, first : first + rows], wanted[:, first : first + rows])
        begin += samples


def _unstable_units(unstable: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The unstable entries of each sample, `[samples, most]`, and which of these places are filled."""
    sample, unit = unstable.nonzero(as_tuple=True)
    place = (unstable.cumsum(1) - 1)[sample, unit]
    units = place.new_zeros(len(unstable), most).index_put((sample, place), unit)
    return units, torch.arange(most, device=units.device) < unstable.sum(1, keepdim=True)


def reuse_freed_blocks() -> None:
    """Make the allocator reuse the blocks of earlier chunks: free a large block, whose memory is never touched."""
    torch.empty(ALLOCATOR_BLOCK, dtype=torch.uint8)


def batch_size_for(
    graph: Graph,
    numbers: int | None = None,
    memory: int | None = None,
    threads: int = 1,
    *,
    batch_size: int | None = None,
) -> int:
    """The number of samples per batch.

    Args:
        graph: the graph that is bounded.
        numbers: coefficients that a method stores per sample, besides a few chunks; None for those of the final rows.
        memory: bytes for the batches of all threads; None for half of the free memory.
        threads: how many batches are computed at once.
        batch_size: the caller's own choice, which is returned if it is given.
    """
    check_counts(batch_size=batch_size, memory=memory, threads=threads)
    if batch_size is not None:
        return batch_size
    batch = FINAL_CHUNKS * CHUNK // (final_coefficients(graph) if numbers is None else numbers)
    number = torch.finfo(graph.dtype).bits // 8
    budget = (free_memory() // 2 if memory is None else memory) // threads - CHUNK_COPIES * CHUNK * number
    activations = sum(math.prod(node.shape) for node in graph.nodes)
    return max(1, min(LARGEST_BATCH, batch, budget // (COPIES * activations * number)))


def check_counts(**values: object) -> None:
    """Raise `PolycertError` unless all values (samples, bytes, threads) are whole numbers from 1, or None."""
    for name, value in values.items():
        whole = isinstance(value, (int, Integral)) and not isinstance(value, bool) and int(value) >= 1
        if value is not None and not whole:
            unit = " of bytes" if name == "memory" else ""
            raise PolycertError(f"{name} must be a whole number{unit} from 1, got {value!r}")


def final_coefficients(graph: Graph) -> int:
    """The coefficients of one sample's final rows, at the node where they are most."""
    return math.prod(graph.output_shape) * row_width(graph, graph.output)


def alpha_coefficients(graph: Graph) -> int:
    """The same for alpha-CROWN, where each row has its own intervals, slopes and values."""
    return 2 * FINAL_CHUNKS * final_coefficients(graph)


def free_memory() -> int:
    """The bytes of free memory; a gibibyte if the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2**30


def row_width(graph: Graph, target: int) -> int:
    """The most coefficients that a row over node `target` has at any node on its way to the input."""
    widths = graph.layout.widths
    if target not in widths:
        widths[target] = max((size for index, size in row_sizes(graph, target) if index != target), default=1)
    return widths[target]


def row_sizes(graph: Graph, target: int) -> Iterator[tuple[int, int]]:
    """Yield the nodes on the way from `target` to the input, with the number of coefficients of one row there.

    A row stays in a window as long as it passes convolutions only.
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
