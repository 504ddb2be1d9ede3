"""Whether a captured network computes what its module does: each call alone, and all of them together.

The module's output tells little where units are off. Nothing can have switched off the operands that a call alone is
given, and a call that mixes the samples of a batch shows at once.
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

SIZES = (4.0, 300.0, 1e8)  # of the entries of operands
SINGLE = 4  # samples that the module is given one by one, and the first

_FINISH = {"": Tensor.detach, "softmax": lambda z: z.softmax(-1), "log_softmax": lambda z: z.log_softmax(-1)}
STEP = 2.0**-20  # of the sizes on the way: sixteen roundings of float32, in which most files compute
LIBRARY = 2.0**-24  # what functions such as `log(exp(z) + 1)` lose near 0
TIMES, RELATIVE = 8.0, 1e-5
LEAST = 2.0**-149  # what underflow in float32 takes from a number
SMALLEST = 1e-37  # underflow in float32
LARGEST = 1e30  # beyond it, the other may overflow in float32
LARGE = 10**8  # products from which on each evaluation takes its time
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


# --- each call alone -------------------------------------------------------------------------------------------------


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


# --- the whole network -----------------------------------------------------------------------------------------------


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


def spread_out(graph: Graph) -> Tensor:
    """Random inputs of the sizes in `RANGES`, then 0 and two with a single entry; fewer for a large network."""
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
    """Products in one evaluation of the graph, roughly."""
    return sum(max(op.forward_terms, 1) * math.prod(op.out_shape) for op in graph.linear.values())


def agrees(graph: Graph, x: Tensor, expected: Tensor, finish: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Whether the graph's outputs are the `expected` ones `[n, ...]`, for those samples that can be compared.

    Both round at every step. How far that moves the outputs is measured, see `noise_of`: they may differ by `TIMES` as
    much, and by `RELATIVE` of the largest one. Not compared are points where either overflows, the other evaluation
    because a value on the way is larger than `LARGEST`. `finish` is a softmax or its logarithm, applied to the graph's
    outputs.
    """
    with torch.no_grad():
        values = graph.values(x)
        found, theirs = values[-1].flatten(1), expected.detach().double().cpu().reshape(len(x), -1)
        noise = noise_of(graph, values, {graph.output})[graph.output].flatten(1)
        if finish is not None:  # no entry moves by more than twice what the largest one of its input does
            found, noise = finish(found), (2 * noise.amax(1, keepdim=True)).expand_as(found)
        sizes = sizes_of(values)
        close = close_to(found.double(), noise.double(), theirs, sizes[-1].double(), sizes.amax(0).double())
    return close.agrees[close.compared]


# --- equal up to rounding --------------------------------------------------------------------------------------------


class Close(NamedTuple):
    """For each of some points whether a value agrees, where it can be compared at all."""

    agrees: Tensor  # [n] bool
    compared: Tensor  # [n] bool


def sizes_of(values: Sequence[Tensor]) -> Tensor:
    """The largest entry of every value at every point: `[values, n]`."""
    return torch.stack([peak(value.flatten(1)) for value in values]).cpu()


def peak(value: Tensor) -> Tensor:
    """The largest size of an entry of each sample: `[n]`."""
    low, high = value.aminmax(dim=1)
    return torch.maximum(high, -low)


def close_to(value: Tensor, noise: Tensor, expected: Tensor, size: Tensor, before: Tensor) -> Close:
    """Compare a value `[n, *shape]` with onnxruntime's `[n, entries]`, given its size and that of all before it."""
    found, spread = value.cpu().flatten(1), noise.cpu().flatten(1)
    if found.shape != expected.shape:
        return Close(torch.zeros(len(found), dtype=torch.bool), torch.ones(len(found), dtype=torch.bool))
    largest, mean = peak(expected).to(found), spread.mean(1)
    # One entry of the noise is small by chance, all are not.
    allowed = TIMES * mean + RELATIVE * largest + SMALLEST
    theirs = torch.isfinite(largest)
    compared = torch.isfinite(size + mean) & (theirs | (before <= LARGEST))
    gap = (found - expected).abs_().sub_(spread, alpha=TIMES).amax(1)
    return Close(theirs & (gap <= allowed), compared)


def noise_of(graph: Graph, values: list[Tensor], wanted: set[int]) -> dict[int, Tensor]:
    """How far some nodes move, in two trials, if every value moves at random by what rounding may do to it."""
    steps = [step_of(graph, k, [values[i] for i in node.inputs]) for k, node in enumerate(graph.nodes) if k]
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
    """The values of some nodes in a row, computed from given ones; how far rounding may move each of the wanted."""
    found, *trials = (dict(given) for _ in range(3))
    for k in nodes:
        node = graph.nodes[k]
        assert node.op is not None
        with torch.no_grad():
            found[k] = node.op.forward(*(found[i] for i in node.inputs))
            step = step_of(graph, k, [found[i] for i in node.inputs])
            for trial in trials:
                trial[k] = moved(node.op.forward(*(trial[i] for i in node.inputs)), step, generator)
    first, second = trials
    noise = {
        k: torch.maximum((first[k] - found[k]).abs_(), (second[k] - found[k]).abs_()) for k in found if k in wanted
    }
    return found, noise


def step_of(graph: Graph, index: int, inputs: list[Tensor]) -> Tensor | None:
    """`STEP` of all that is added up in a node, or of what an activation computes with; `LIBRARY` for curved ones."""
    if index not in graph.linear:
        op = graph.activation(index)
        return STEP * op.peak(inputs[0], inputs[0]) + (LEAST if op.piecewise_linear else LIBRARY)
    linear = graph.linear[index]
    if linear.forward_terms == 0 and linear.bias is None:
        return None
    return STEP * linear.magnitude(*(value.abs() for value in inputs)) + LEAST


def moved(value: Tensor, step: Tensor | None, generator: torch.Generator) -> Tensor:
    """A value with every entry moved at random by up to its step."""
    if step is None:
        return value
    share = torch.rand(value.shape, generator=generator, device=value.device, dtype=value.dtype)
    return torch.addcmul(value, share.mul_(2).sub_(1), step)
