"""Which arithmetic a proof may rest on: types, precision modes, and the error model of a graph."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from polycert.errors import PolycertError
from polycert.graph import Graph, Network
from polycert.rules import Affine
from polycert.sets.rounding import Rounding, holds


class _Switch:
    """A switch of torch's that all threads share: off while at least one of them wants it so, then as it was."""

    def __init__(self) -> None:
        self._lock, self._users, self._before = threading.Lock(), 0, (True,)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Off for the time of the block, whoever else enters or leaves."""
        with self._lock:
            if self._users == 0:
                self._before = torch.backends.nnpack.set_flags(False)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    torch.backends.nnpack.set_flags(*self._before)


_FAST_TRANSFORMS = _Switch()


@contextmanager
def plain_products(device: torch.device) -> Iterator[None]:
    """Products as plain sums in the type of their operands: the error model knows no fast transforms, no autocast."""
    mixed = torch.is_autocast_enabled(device.type)
    with _FAST_TRANSFORMS.off(), torch.autocast(device.type, enabled=False) if mixed else nullcontext():
        yield


def provable(net: Network, graph: Graph) -> Graph:
    """The graph itself if its type can carry a proof, else the same in float64; refuses what float64 cannot mend."""
    if graph.computed:
        raise PolycertError(
            f"rigorous bounds need stored weights, but the model computes some (node '{graph.computed[0]}'): "
            "fold them into parameters, or use rigorous=False"
        )
    if flushes():
        raise PolycertError(
            "rigorous bounds need subnormal numbers, but this thread takes them for 0: "
            "call torch.set_flush_denormal(False) first, or use rigorous=False"
        )
    fits = not graph.narrowed and error_model(graph).usable(longest_sum(graph)) and full_precision(graph.device)
    return graph if fits or graph.dtype == torch.float64 else net.bind(torch.float64)


def flushes() -> bool:
    """Whether the processor takes numbers below the smallest normal one for 0 in this thread."""
    return bool(torch.full((1,), 1e-310, dtype=torch.float64).mul_(2) == 0)


def error_model(graph: Graph) -> Rounding:
    """Rounding in a pass over the graph."""
    return Rounding(graph.dtype, 4 * len(graph.nodes) + 16)


def full_precision(device: torch.device) -> bool:
    """Whether float32 products are computed in float32: on a processor, with no faster mode switched on."""
    backends = torch.backends.mkldnn
    modes = [getattr(getattr(backends, name, None), "fp32_precision", "none") for name in ("matmul", "conv")]
    if device.type != "cpu" or any(mode not in ("none", "ieee") for mode in modes):
        return False
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # mixed settings have no common name
        return False


def longest_sum(graph: Graph) -> int:
    """The most terms in any sum of a pass over the graph."""
    sizes = [math.prod(node.shape) for node in graph.nodes]
    terms = [max(op.terms) for op in graph.linear.values() if isinstance(op, Affine)]
    return max([*sizes, *terms, 1])


def live_graph(network: Network, inputs: Tensor, rigorous: bool) -> Graph:
    """The graph for one call: live under gradients, in a type that can carry a proof if one is asked for."""
    graph = network.trainable() if torch.is_grad_enabled() else network.bind()
    if not rigorous:
        return graph
    proof = provable(network, graph)
    return proof if holds(proof.dtype, inputs) else network.bind(torch.float64)
