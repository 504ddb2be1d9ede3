"""Check whether a captured network computes what its module does: each call alone, and all of them together.

A unit that is off hides from the output what came before it. But nothing can switch off the operands that a call alone
is given, and a call that mixes the samples of a batch shows at once.

The last part decides whether two evaluations are equal up to rounding. ONNX files are compared with it, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from polycert.errors import PolycertError, reason
from polycert.graph.batch_sizes import Watch
from polycert.graph.graph import Graph, Node, append
from polycert.rules import Op
from polycert.rules.op import Decomposition

if TYPE_CHECKING:
    from polycert.graph.capture import CapturedNetwork

SIZES = (4.0, 300.0, 1e8)  # largest entries of the operands of a call
SINGLE = 4  # samples that the module is given one by one, besides the first
STEP = 2.0**-20  # rounding relative to the sizes on the way: sixteen roundings of float32, in which most files compute
LIBRARY = 2.0**-24  # absolute error of functions such as `log(exp(z) + 1)` near 0
TIMES, RELATIVE = 8.0, 1e-5  # outputs may differ by so many times the noise, and by this share of the largest one
LEAST = 2.0**-149  # what underflow in float32 takes from a number
SMALLEST = 1e-37  # numbers below underflow in float32
LARGEST = 1e30  # values above may overflow in float32 on the way
LARGE = 10**8  # a network with more products is compared at fewer points
RANGES = [  # the ends between which the entries of a random input lie
    (0.0, 1.0),
    (-0.5, 0.5),
    (-5.0, 5.0),
    (-1e6, 1e6),
    (-1e-3, 1e-3),
    (-3.0, 0.0),
    (0.0, 30.0),
    (-30.0, 30.0),
    (-0.1, 0.1),
    (-300.0, 0.0),
    (-300.0, 300.0),
    (0.0, 3e3),
    (-1e3, -1.0),
    (-1e4, 1e4),
    (-1e5, 1e5),
    (0.0, 1e6),
]
_FINISH = {"": Tensor.detach, "softmax": lambda z: z.softmax(-1), "log_softmax": lambda z: z.log_softmax(-1)}


# --- each call alone -------------------------------------------------------------------------------------------------


class RuledCall(NamedTuple):
    """A call of a traced program, and the op that a rule made of it."""

    call: fx.Node
    known: dict[str, Any]  # the program's constants by name
    operands: list[fx.Node]  # the values that depend on the input, in the order in which rules count them
    made: Op | Decomposition

    def graph(self, like: Tensor) -> tuple[Graph, tuple[int, ...]]:
        """Return what the rule made as a graph whose first nodes are the operands, and the places of its results."""
        nodes = [Node(f"operand {k}", None, (), _shape(node)) for k, node in enumerate(self.operands)]
        places = append(nodes, self.call.name, self.made, range(len(nodes)))
        return Graph(tuple(nodes), like.dtype, like.device), places

    def run(self, given: dict[fx.Node, Tensor]) -> list[Tensor]:
        """Return the results of the call itself."""

        def argument(node: fx.Node) -> Any:
            return given[node].clone() if node in given else self.known[node.name]

        args, kwargs = fx.node.map_arg((self.call.args, self.call.kwargs), argument)
        results = self.call.target(*args, **kwargs)  # type: ignore[operator]
        return [results] if isinstance(results, Tensor) else list(results)


def operands_of(args: Any, variable: set[str]) -> Iterator[fx.Node]:
    """Yield the nodes among a call's arguments that depend on the input, also inside lists."""
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
    """Return the shape of a sample; a single number is a vector of one."""
    return tuple(node.meta["val"].shape[1:]) or (1,)


def _random(shape: tuple[int, ...], size: float, like: Tensor, generator: torch.Generator) -> Tensor:
    """Return random numbers between -size and size."""
    noise = torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device)
    return noise.mul_(2 * size).sub_(size)


# --- the whole network -----------------------------------------------------------------------------------------------


def check_network(model: nn.Module, network: CapturedNetwork) -> bool:
    """Compare the graph with the module, on inputs of many sizes, in a batch and one by one.

    Returns:
        Whether the module asks for sizes on its way, which may be the batch's.

    Raises:
        PolycertError: if they differ.
    """
    graph, watch = network.bind(), Watch()
    points = comparison_points(graph).to(graph.device, graph.dtype)
    if graph.narrowed:  # the module computes with the wider weights
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
        if len(batch) == 1 and expected.numel() == math.prod(
            network.output_shape
        ):  # `squeeze` may have removed the batch
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


def comparison_points(graph: Graph) -> Tensor:
    """Return random inputs of the sizes in `RANGES`, then 0 and two with a single entry; fewer for a large network."""
    generator = torch.Generator().manual_seed(0)
    ranges = torch.tensor(RANGES if _work(graph) <= LARGE else RANGES[::4], dtype=torch.float64)
    low, high = ranges.reshape(-1, 2, *(1,) * len(graph.input_shape)).unbind(1)
    shape = (len(ranges), *graph.input_shape)
    noise = torch.lerp(low, high, torch.rand(shape, generator=generator, dtype=torch.float64))
    single = torch.zeros(3, math.prod(graph.input_shape), dtype=torch.float64)
    places = torch.randint(single.shape[1], (2,), generator=generator).tolist()
    single[1, places[0]], single[2, places[1]] = 100.0, -100.0
    return torch.cat([noise, single.reshape(3, *graph.input_shape)])


def _work(graph: Graph) -> int:
    """Return about how many products one evaluation of the graph takes."""
    return sum(max(op.forward_terms, 1) * math.prod(op.out_shape) for op in graph.linear.values())


def agrees(graph: Graph, x: Tensor, expected: Tensor, finish: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Return whether the graph's outputs are the `expected` ones `[n, ...]`, for the samples that can be compared.

    Both round at every step. `noise_of` measures how far that moves the outputs. They may differ by `TIMES` as much,
    and by `RELATIVE` of the largest one. A sample cannot be compared where the graph overflows, or where the other
    evaluation does and a value on the way is larger than `LARGEST`. `finish` is a softmax or its logarithm, applied to
    the graph's outputs.
    """
    with torch.no_grad():
        values = graph.values(x)
        found, theirs = values[-1].flatten(1), expected.detach().double().cpu().reshape(len(x), -1)
        noise = noise_of(graph, values, {graph.output})[graph.output].flatten(1)
        if finish is not None:  # an entry moves at most twice as far as the largest one of its input
            found, noise = finish(found), (2 * noise.amax(1, keepdim=True)).expand_as(found)
        sizes = sizes_of(values)
        close = close_to(found.double(), noise.double(), theirs, sizes[-1].double(), sizes.amax(0).double())
    return close.agrees[close.compared]


# --- equal up to rounding --------------------------------------------------------------------------------------------


class Close(NamedTuple):
    """For each of some points, whether a value agrees, and whether it can be compared at all."""

    agrees: Tensor  # [n]
    compared: Tensor  # [n]


def sizes_of(values: Sequence[Tensor]) -> Tensor:
    """Return the largest absolute entry of every value at every point: `[values, n]`."""
    return torch.stack([peak(value.flatten(1)) for value in values]).cpu()


def peak(value: Tensor) -> Tensor:
    """Return the largest absolute entry of each sample: `[n]`."""
    low, high = value.aminmax(dim=1)
    return torch.maximum(high, -low)


def close_to(value: Tensor, noise: Tensor, expected: Tensor, size: Tensor, before: Tensor) -> Close:
    """Compare a value `[n, *shape]` with another evaluation's `[n, entries]`.

    `size` is the largest absolute entry of the value at each point, `before` that of all values up to it: `[n]`.
    """
    found, spread = value.cpu().flatten(1), noise.cpu().flatten(1)
    if found.shape != expected.shape:
        return Close(torch.zeros(len(found), dtype=torch.bool), torch.ones(len(found), dtype=torch.bool))
    largest, mean = peak(expected).to(found), spread.mean(1)
    # A single entry of the noise may be small by chance, but not all of them.
    allowed = TIMES * mean + RELATIVE * largest + SMALLEST
    theirs = torch.isfinite(largest)
    compared = torch.isfinite(size + mean) & (theirs | (before <= LARGEST))
    gap = (found - expected).abs_().sub_(spread, alpha=TIMES).amax(1)
    return Close(theirs & (gap <= allowed), compared)


def noise_of(graph: Graph, values: list[Tensor], wanted: set[int]) -> dict[int, Tensor]:
    """Return how far each of the wanted nodes moves, in two trials, if rounding moves every value at random."""
    steps = [rounding_step(graph, k, [values[i] for i in node.inputs]) for k, node in enumerate(graph.nodes) if k]
    generator = torch.Generator(device=graph.device).manual_seed(0)
    noise = {0: torch.zeros_like(values[0])}
    for _ in range(2):
        found = [values[0]]
        for k, (node, step) in enumerate(zip(graph.nodes[1:], steps, strict=True), 1):
            assert node.op is not None
            found.append(moved(node.op.forward(*(found[i] for i in node.inputs)), step, generator))
            if k in wanted:
                gap = (found[k] - values[k]).abs_()
                noise[k] = torch.maximum(noise[k], gap) if k in noise else gap
    return noise


def run_alone(
    graph: Graph, given: dict[int, Tensor], nodes: Iterable[int], wanted: set[int | None], generator: torch.Generator
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Compute some nodes from given values. Return all values, and how far rounding may move the wanted ones."""
    found, *trials = (dict(given) for _ in range(3))
    for k in nodes:
        node = graph.nodes[k]
        assert node.op is not None
        with torch.no_grad():
            found[k] = node.op.forward(*(found[i] for i in node.inputs))
            step = rounding_step(graph, k, [found[i] for i in node.inputs])
            for trial in trials:
                trial[k] = moved(node.op.forward(*(trial[i] for i in node.inputs)), step, generator)
    first, second = trials
    noise = {
        k: torch.maximum((first[k] - found[k]).abs_(), (second[k] - found[k]).abs_()) for k in found if k in wanted
    }
    return found, noise


def rounding_step(graph: Graph, index: int, inputs: list[Tensor]) -> Tensor | None:
    """Return how far rounding may move each entry of a node's value, or None if the node rounds nothing.

    It is `STEP` of all that is added up in the node, or of what an activation computes with, and `LIBRARY` for curved
    ones.
    """
    if index not in graph.linear:
        op = graph.activation(index)
        return STEP * op.peak(inputs[0], inputs[0]) + (LEAST if op.piecewise_linear else LIBRARY)
    linear = graph.linear[index]
    if linear.forward_terms == 0 and linear.bias is None:
        return None
    return STEP * linear.magnitude(*(value.abs() for value in inputs)) + LEAST


def moved(value: Tensor, step: Tensor | None, generator: torch.Generator) -> Tensor:
    """Return the value with every entry moved at random by up to its step."""
    if step is None:
        return value
    share = torch.rand(value.shape, generator=generator, device=value.device, dtype=value.dtype)
    return torch.addcmul(value, share.mul_(2).sub_(1), step)
