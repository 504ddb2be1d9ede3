"""Whether a captured network computes what its module does: each call alone, and all of them together.

The module's output tells little where units are off. Nothing can have switched off the operands that a call alone is
given, and a call that mixes the samples of a batch shows at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from polycert.errors import PolycertError, reason
from polycert.graph.batch_sizes import Watch
from polycert.graph.graph import Graph, Node, append
from polycert.graph.same_outputs import agrees, close_to, peak, run_alone, spread_out
from polycert.rules import Op
from polycert.rules.op import Decomposition

if TYPE_CHECKING:
    from polycert.graph.capture import CapturedNetwork

SIZES = (4.0, 300.0, 1e8)  # of the entries of operands
SINGLE = 4  # samples that the module is given one by one, and the first

_FINISH = {"": Tensor.detach, "softmax": lambda z: z.softmax(-1), "log_softmax": lambda z: z.log_softmax(-1)}


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


def check_network(model: nn.Module, network: CapturedNetwork) -> bool:
    """Compare the graph with the module, on inputs of many sizes, in a batch and one by one.

    Returns:
        Whether the module asks for sizes on its way, which may be the batch's.

    Raises:
        PolycertError: if they differ.
    """
    graph, watch = network.bind(), Watch()
    points = spread_out(graph).to(graph.device, graph.dtype)
    if graph.narrowed:  # the module computes with the longer numbers
        graph = network.bind(torch.float64)
    network.check_calls(graph.dtype)
    batches = [points[:1], points, *points[1:].split(1)[:: len(points) // SINGLE + 1]]
    for batch in batches:
        with torch.no_grad(), watch:
            try:
                expected = model(batch.clone())
            except Exception as error:
                raise PolycertError(f"the model works for one size of batch only: {reason(error)}") from None
        if not isinstance(expected, Tensor):
            raise PolycertError(f"a network needs one tensor as its output, this one returns {type(expected).__name__}")
        if len(batch) == 1 and expected.numel() == math.prod(network.output_shape):  # `squeeze` may have taken it away
            expected = expected.reshape(1, *network.output_shape)
        if expected.shape != (len(batch), *network.output_shape):
            raise PolycertError(
                f"{len(batch)} samples give shape {tuple(expected.shape)}: the batch must stay the first axis"
            )
        if batch is batches[0] and not bool(torch.isfinite(expected).all()):
            raise PolycertError(
                "the model's output is not finite: its weights hold NaN or infinite values, or overflow"
            )
        if not bool(agrees(graph, batch.to(graph.dtype), expected, _FINISH[network.dropped]).all()):
            raise PolycertError(
                "the captured graph does not reproduce the model on random batches; "
                "does its forward depend on data, randomness or the batch?"
            )
    return watch.asked
