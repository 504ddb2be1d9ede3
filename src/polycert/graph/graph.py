"""Graphs: nodes in the order of computation, the input first. Networks: what gives a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn

from polycert.errors import PolycertError
from polycert.forms import Shape
from polycert.rules import Activation, Linear, Op
from polycert.rules.affine import Elementwise
from polycert.rules.maximum import Extremum
from polycert.rules.op import Decomposition

if TYPE_CHECKING:
    from polycert.sets.ball import Region


@dataclass(frozen=True)
class Node:
    """One op applied to earlier nodes; the input has no op."""

    name: str
    op: Op | None
    inputs: tuple[int, ...]
    shape: Shape

    def fresh(self) -> Node:
        """Return the same node, its op without what was derived from its weights."""
        op = None if self.op is None else self.op.fresh()
        return self if op is self.op else Node(self.name, op, self.inputs, self.shape)


class Topology:
    """How nodes depend on each other, whatever their weights are. It is found once for all bindings of a network."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._inputs = tuple(node.inputs for node in nodes)
        self._ancestors: dict[int, tuple[int, ...]] = {}
        self.activations = tuple(k for k, node in enumerate(nodes) if isinstance(node.op, Activation))
        self.curved = frozenset(self.activations)
        self.extrema = frozenset(k for k, node in enumerate(nodes) if isinstance(node.op, Extremum))
        self.fusion_ends = (
            self.curved | self.extrema
        )  # where rows are no longer fused: an interval is as good or better
        self.widths: dict[int, int] = {}  # widths of the rows over a node, which `chunking.row_width` stores here
        self.readers: dict[int, tuple[int, ...]] = {}  # the activations applied to a node
        for k in self.activations:
            source = self._inputs[k][0]
            self.readers[source] = (*self.readers.get(source, ()), k)
        found: list[bool] = []
        for k, inputs in enumerate(self._inputs):
            found.append(k in self.curved or any(found[i] for i in inputs))
        self.depends_on_activation = tuple(found)

    def ancestors(self, target: int) -> tuple[int, ...]:
        """Return the nodes that `target` depends on, itself included, latest first."""
        if target not in self._ancestors:
            needed = {target}
            for index in range(target, -1, -1):
                if index in needed:
                    needed.update(self._inputs[index])
            self._ancestors[target] = tuple(sorted(needed, reverse=True))
        return self._ancestors[target]

    def extrema_before(self, target: int) -> tuple[int, ...]:
        """Return the maxima and minima of two nodes that `target` depends on, in order."""
        return tuple(k for k in reversed(self.ancestors(target)) if k in self.extrema) if self.extrema else ()

    def activations_before(self, target: int) -> tuple[int, ...]:
        """Return the activations that `target` depends on, in order."""
        return tuple(k for k in reversed(self.ancestors(target)) if k in self.curved)


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes with their tensors at one moment; the last node is the output (the logits)."""

    nodes: tuple[Node, ...]
    dtype: torch.dtype
    device: torch.device
    computed: tuple[str, ...] = ()  # names of weights that the program computes with rounding from stored ones
    narrowed: bool = False  # whether the type does not hold all of the stored weights

    @property
    def output(self) -> int:
        """Index of the last node."""
        return len(self.nodes) - 1

    @property
    def input_shape(self) -> Shape:
        """Shape of one sample."""
        return self.nodes[0].shape

    @property
    def output_shape(self) -> Shape:
        """Shape of the output of one sample."""
        return self.nodes[-1].shape

    @cached_property
    def layout(self) -> Topology:
        """How the nodes depend on each other."""
        return Topology(self.nodes)

    @property
    def activations(self) -> tuple[int, ...]:
        """Indices of the activation nodes, in order."""
        return self.layout.activations

    @property
    def depends_on_activation(self) -> tuple[bool, ...]:
        """For each node, whether an activation lies at or before it."""
        return self.layout.depends_on_activation

    def readers(self, index: int) -> list[Activation]:
        """Return the activations that are applied to a node."""
        return [self.activation(k) for k in self.layout.readers.get(index, ())]

    def activation(self, index: int) -> Activation:
        """Return the op of an activation node."""
        return cast(Activation, self.nodes[index].op)  # isinstance would cost more than what is done with it

    def extremum(self, index: int) -> Extremum:
        """Return the op of a node that is the maximum or minimum of two others."""
        return cast(Extremum, self.nodes[index].op)

    @cached_property
    def linear(self) -> dict[int, Linear]:
        """The affine ops by their nodes' indices."""
        return {k: node.op for k, node in enumerate(self.nodes) if isinstance(node.op, Linear)}

    def ancestors(self, target: int) -> tuple[int, ...]:
        """Return the nodes that `target` depends on, itself included, latest first."""
        return self.layout.ancestors(target)

    def fresh(self) -> Graph:
        """Return the same graph without what was derived from the weights, which may have changed; the layout stays."""
        found = replace(self, nodes=tuple(node.fresh() for node in self.nodes))
        found.__dict__["layout"] = self.layout
        return found

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's output for `[batch, *input_shape]`."""
        return self.values(x)[-1]

    def values(self, x: Tensor) -> list[Tensor]:
        """Return the value of every node, `[batch, *shape]` each."""
        found = [x]
        for node in self.nodes[1:]:
            assert node.op is not None
            found.append(node.op.forward(*(found[i] for i in node.inputs)))
        return found


def append(nodes: list[Node], name: str, made: Op | Decomposition, sources: Sequence[int]) -> tuple[int, ...]:
    """Append one op, or all steps of a decomposition, over earlier nodes. Return the places of the results."""
    if isinstance(made, Op):
        nodes.append(Node(name, made, tuple(sources), made.out_shape))
        return (len(nodes) - 1,)
    places = list(sources)
    for position, (op, inputs) in enumerate(made.steps):
        places += append(nodes, f"{name}.{position}", op, [places[i] for i in inputs])
    return (places[-1],) if made.several is None else tuple(places[k] for k in made.several)


def needed(nodes: Sequence[Node], output: int) -> dict[int, int]:
    """Return the places that the input, and the nodes that the output depends on, have without the other nodes."""
    found = {0, output}
    for index in range(output, 0, -1):
        if index in found:
            found.update(nodes[index].inputs)
    return {old: new for new, old in enumerate(sorted(found))}


def prune(nodes: Sequence[Node], output: int) -> tuple[Node, ...]:
    """Return only the nodes that the output depends on, renumbered."""
    place = needed(nodes, output)
    return tuple(
        Node(nodes[k].name, nodes[k].op, tuple(place[i] for i in nodes[k].inputs), nodes[k].shape) for k in place
    )


class Digested(NamedTuple):
    """A network's digest, the tensors that it was computed from, and marks that tell whether those have changed."""

    digest: str
    tensors: list[Tensor]
    marks: list[tuple[int, int]]


class Network(ABC):
    """A network as `pc.capture` and `pc.load` return it and all other functions take it."""

    input_shape: Shape
    output_shape: Shape
    digested: Digested | None = None  # see `fingerprint.network_digest`

    @abstractmethod
    def bind(self, dtype: torch.dtype | None = None) -> Graph:
        """Return the graph with the tensors as they are now, converted to `dtype` if one is given."""

    @property
    @abstractmethod
    def softmax(self) -> bool:
        """Whether a final softmax was dropped; margins do not need it."""

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""
        return self.bind().dtype

    def check_inside(self, region: Region) -> None:  # noqa: B027 (nothing to check is the rule)
        """Check that the graph is the network at points of the region; called once for every question about samples.

        A captured module was compared when it was captured, so there is nothing to do.
        """

    def parameters(self) -> Sequence[nn.Parameter]:
        """Return what training may change: nothing, unless the network belongs to a module."""
        return ()

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits for `[batch, *input_shape]`."""
        return self.bind().forward(x)

    def trainable(self) -> Graph:
        """Return the graph with live parameters for a training loss.

        Raises:
            PolycertError: if a batch norm is in training mode, which bounds do not follow.
        """
        graph = self.bind()
        for node in graph.nodes:
            if isinstance(node.op, Elementwise) and node.op.training:
                raise PolycertError(
                    f"batch norm {node.name!r} is in training mode but bounds use its running statistics: "
                    "call model.eval() (or freeze its batch norms) before a loss on the captured network"
                )
        return graph
