"""A `Network`: a program whose tensors stay live, turned into a `Graph` whenever one is needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from polycert.errors import PolycertError
from polycert.forms import Shape
from polycert.graph.graph import Graph
from polycert.rules.affine import Elementwise

if TYPE_CHECKING:
    from polycert.sets.ball import Region


class Network(ABC):
    """What `pc.capture` and `pc.load` return and every other function takes."""

    input_shape: Shape
    output_shape: Shape

    @abstractmethod
    def bind(self, dtype: torch.dtype | None = None) -> Graph:
        """The graph with the tensors as they are now, converted to `dtype` if one is given."""

    @property
    @abstractmethod
    def softmax(self) -> bool:
        """Whether a final softmax was dropped; margins do not need it."""

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""
        return self.bind().dtype

    def check_inside(self, region: Region) -> None:  # noqa: B027 (nothing to check is the rule)
        """Called once for every question about samples: whether the graph is the network there, or a clear error.

        A captured module was compared when it was captured.
        """

    def parameters(self) -> Sequence[nn.Parameter]:
        """What training may change: nothing, unless the network belongs to a module."""
        return ()

    def __call__(self, x: Tensor) -> Tensor:
        """The logits for `[batch, *input_shape]`."""
        return self.bind().forward(x)

    def trainable(self) -> Graph:
        """The live graph for a training loss; refuses batch norm in training mode, which bounds do not follow."""
        graph = self.bind()
        for node in graph.nodes:
            if isinstance(node.op, Elementwise) and node.op.training:
                raise PolycertError(
                    f"batch norm {node.name!r} is in training mode but bounds use its running statistics: "
                    "call model.eval() (or freeze its batch norms) before a loss on the captured network"
                )
        return graph
