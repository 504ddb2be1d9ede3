"""Where the values of a file are in the graph that was made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from polycert.graph.graph import Graph, needed, prune
from polycert.graph.onnx.builder import Built, OnnxValue
from polycert.graph.onnx.program import Shape


class Place(NamedTuple):
    """A value of the file that depends on the input."""

    node: int | None  # None where the graph does without the value
    shape: Shape  # in the file


@dataclass(frozen=True, eq=False)
class Trace:
    """A graph, the places of the file's values in it, and for each node the call that it comes from."""

    graph: Graph
    places: dict[str, Place]
    makers: tuple[int, ...]

    @staticmethod
    def of(built: Built, dtype: torch.dtype, device: torch.device) -> Trace:
        """Only with the nodes that the output depends on."""
        kept = needed(built.nodes, built.output)
        graph = Graph(prune(built.nodes, built.output), dtype, device, built.computed)
        places = {
            name: Place(kept.get(value.index), value.shape)
            for name, value in built.known.items()
            if isinstance(value, OnnxValue)
        }
        return Trace(graph, places, tuple(built.makers[k] for k in kept))


def constants_of(built: Built) -> dict[str, np.ndarray]:
    """What the file's calls compute without the input."""
    return {name: value for name, value in built.known.items() if isinstance(value, np.ndarray)}
