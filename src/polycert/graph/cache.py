"""A graph that serves again: bound once, for as long as the module has the same tensors, whatever their values."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polycert.graph.graph import Graph

Kind = tuple[torch.Size, torch.dtype, torch.device]


class CachedGraph(NamedTuple):
    """A graph and the stored tensors that are in it."""

    graph: Graph
    tensors: dict[str, Tensor]
    kinds: list[Kind]

    @staticmethod
    def of(graph: Graph, tensors: dict[str, Tensor]) -> CachedGraph:
        """For a graph that is `keepable`."""
        return CachedGraph(graph, tensors, _kinds(tensors))

    def serves(self, tensors: dict[str, Tensor], dtype: torch.dtype, device: torch.device) -> bool:
        """Whether these very tensors are in it."""
        if (dtype, device) != (self.graph.dtype, self.graph.device):
            return False
        same = all(new is old for new, old in zip(tensors.values(), self.tensors.values(), strict=True))
        return same and _kinds(tensors) == self.kinds  # which `.data = ...` may have changed


def _kinds(tensors: dict[str, Tensor]) -> list[Kind]:
    return [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors.values()]


def keepable(graph: Graph, tensors: dict[str, Tensor]) -> bool:
    """Whether each of these tensors is in an op as it is, and no other is: then none was converted or computed."""
    own, held = {id(tensor) for tensor in tensors.values()}, set()

    def known(value: Any) -> bool:
        if isinstance(value, tuple):
            return all(map(known, value))
        if isinstance(value, Tensor):
            held.add(id(value))
        return id(value) in own or isinstance(value, (int, float, str, type(None)))

    ops: list[Any] = [node.op for node in graph.nodes[1:]]
    plain = all(is_dataclass(op) and all(known(getattr(op, one.name)) for one in fields(op)) for op in ops)
    return plain and held == own
