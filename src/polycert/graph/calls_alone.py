"""Whether each call of a traced program computes what its rule says, alone and with random samples as operands.

The module's output tells little where units are off. Nothing can have switched off the operands that are drawn here,
and a call that mixes the samples of a batch shows at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from polycert.graph.graph import Graph, Node, append
from polycert.graph.same_outputs import close_to, peak, run_alone
from polycert.rules import Op
from polycert.rules.op import Decomposition

SIZES = (4.0, 300.0, 1e8)  # of the entries of operands


class RuledCall(NamedTuple):
    """A call of a traced program, and what a rule made of it."""

    call: fx.Node
    known: dict[str, Any]  # the program's constants by name
    operands: list[fx.Node]  # the values that depend on the input, in the order in which rules count them
    made: Op | Decomposition

    def graph(self, like: Tensor) -> tuple[Graph, tuple[int, ...]]:
        """What the rule made as a graph whose first nodes are the operands; the places of its results."""
        nodes = [Node(f"operand {k}", None, (), _shape(node)) for k, node in enumerate(self.operands)]
        places = append(nodes, self.call.name, self.made, range(len(nodes)))
        return Graph(tuple(nodes), like.dtype, like.device), places

    def run(self, given: dict[fx.Node, Tensor]) -> list[Tensor]:
        """The results of the call itself."""

        def argument(node: fx.Node) -> Any:
            return given[node].clone() if node in given else self.known[node.name]

        args, kwargs = fx.node.map_arg((self.call.args, self.call.kwargs), argument)
        results = self.call.target(*args, **kwargs)  # type: ignore[operator]
        return [results] if isinstance(results, Tensor) else list(results)


def operands_of(args: Any, variable: set[str]) -> Iterator[fx.Node]:
    """The operands among a call's arguments that depend on the input, also inside lists."""
    for argument in args:
        if isinstance(argument, fx.Node) and argument.name in variable:
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from operands_of(argument, variable)


def check_alone(ruled: RuledCall, like: Tensor) -> None:
    """Compare a call with what its rule says of it, in the type and on the device of `like`.

    Raises:
        ValueError: if results differ by more than rounding explains.
    """
    graph, places = ruled.graph(like)
    count = len(ruled.operands)
    generator = torch.Generator(device=like.device).manual_seed(0)
    for size in SIZES:
        given = {node: _random(tuple(node.meta["val"].shape), size, like, generator) for node in ruled.operands}
        values = {k: given[node].reshape(-1, *graph.nodes[k].shape) for k, node in enumerate(ruled.operands)}
        with torch.no_grad():
            theirs = ruled.run(given)
            found, noise = run_alone(graph, values, range(count, len(graph.nodes)), set(places), generator)
        before = torch.stack([peak(value.flatten(1)).cpu() for value in found.values()]).amax(0)
        for place, expected in zip(places, theirs, strict=False):
            flat = expected.double().cpu().reshape(len(before), -1)
            close = close_to(found[place], noise[place], flat, peak(found[place].flatten(1)).cpu(), before)
            if not bool(close.agrees[close.compared].all()):
                raise ValueError("it does not give each sample what its rule says: does it mix the samples of a batch?")


def _shape(node: fx.Node) -> tuple[int, ...]:
    """The shape of a sample; a single number is a vector of one."""
    return tuple(node.meta["val"].shape[1:]) or (1,)


def _random(shape: tuple[int, ...], size: float, like: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers between -size and size."""
    noise = torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device)
    return noise.mul_(2 * size).sub_(size)
