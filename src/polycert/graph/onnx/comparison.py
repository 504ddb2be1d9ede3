"""Check whether a graph is the network that onnxruntime runs: its constants, its shapes and its values.

A unit that is off hides from the output what came before it. So every value of the file is compared, and every call is
also run by itself on random values, which no other call can have switched off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polycert.errors import PolycertError
from polycert.graph.onnx.builder import Place, Trace
from polycert.graph.onnx.onnxruntime_check import OnnxRuntime
from polycert.graph.onnx.program import Shape
from polycert.graph.self_check import Close, close_to, comparison_points, noise_of, peak, run_alone, sizes_of

if TYPE_CHECKING:
    from polycert.graph.graph import Graph
    from polycert.sets.ball import Region

Kinds = dict[str, np.dtype[Any]]  # by the names of values

NUMBERS = 2**24  # numbers in all values of a batch of points
INSIDE = 8  # points that are compared in boxes, at least
ALONE_SIZES = [4.0, 1e8]  # largest operands of calls that are run by themselves


def check_against(trace: Trace, constants: Mapping[str, np.ndarray], replay: OnnxRuntime) -> None:
    """Check that the graph computes what onnxruntime computes, on inputs of many sizes and signs, and call by call.

    Outputs are compared at all the points, the values on the way at some of them.

    Raises:
        PolycertError: if it does not, or if a value overflows at all points.
    """
    points = comparison_points(trace.graph)
    kinds = _check_first(trace, constants, replay, points[:1])
    wrong = _first_difference(trace, replay, torch.cat([points[:2], points[-3:]]), everywhere=True)
    if wrong is None and not bool(_outputs(trace, replay, points[2:-3]).all()):
        wrong = replay.program.output_name
    _refuse(wrong, replay, "on inputs of many sizes")
    _refuse(_first_difference_alone(trace, kinds, replay), replay, "in one of its calls alone")


def check_inside(trace: Trace, replay: OnnxRuntime, region: Region) -> None:
    """Compare all values at some points of the samples' boxes: ends, centres, other corners, random points."""
    lower, upper = (end.double().cpu().reshape(-1, *trace.graph.input_shape) for end in region.box)
    chosen = torch.linspace(0, len(lower) - 1, min(len(lower), INSIDE)).round().long()
    count = max(INSIDE, 2 * len(chosen))
    generator = torch.Generator().manual_seed(0)
    place = torch.rand(count, *trace.graph.input_shape, generator=generator, dtype=torch.float64)
    place[: count // 2] = place[: count // 2].round()
    place[:3] = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64).reshape(3, *(1,) * len(trace.graph.input_shape))
    sample = chosen[torch.arange(count) % len(chosen)]
    points = torch.lerp(lower[sample], upper[sample], place)
    _refuse(_first_difference(trace, replay, points, everywhere=False), replay, "in a set that is asked about")


def _refuse(wrong: str | None, replay: OnnxRuntime, where: str) -> None:
    """Raise `PolycertError` if there is a value that differs."""
    if wrong is not None:
        raise PolycertError(
            f"the graph read from {replay.program.source} does not reproduce onnxruntime {where}, at {wrong!r}: "
            "please report the file"
        )


# --- constants and shapes ------------------------------------------------------------------------------------------


def _check_first(trace: Trace, constants: Mapping[str, np.ndarray], replay: OnnxRuntime, point: Tensor) -> Kinds:
    """Compare the folded constants and the shapes of all values. Return the values' types in the file, by name."""
    names = [*constants, *_computed(trace, replay)]
    (found,) = replay.values(point, names)
    exact = not trace.graph.computed  # if constants were rounded, nothing is proved, and they may differ by as much
    for name, theirs in zip(names, found, strict=True):
        shape = constants[name].shape if name in constants else trace.places[name].shape
        _check_shape(name, shape, theirs, replay)
        if name in constants and not _same(constants[name], theirs, exact):
            _refuse(name, replay, "in a constant")
    return {replay.program.input_name: np.dtype(replay.program.input_type)} | {
        name: theirs.dtype for name, theirs in zip(names, found, strict=True)
    }


def _computed(trace: Trace, replay: OnnxRuntime) -> list[str]:
    """Return the names of the values that depend on the input, in the order of computation."""
    return [name for name in trace.places if name != replay.program.input_name]


def _check_shape(name: str, shape: Sequence[int], theirs: np.ndarray, replay: OnnxRuntime) -> None:
    """Check that a value has the shape in onnxruntime that it has in the graph."""
    if tuple(shape) != theirs.shape:
        _refuse(name, replay, f"in the shape {list(theirs.shape)}, read as {list(shape)}")


def _same(ours: np.ndarray, theirs: np.ndarray, exact: bool) -> bool:
    """Whether two constants are equal, or nearly so if they need not be exact."""
    if not ours.size:
        return True
    if ours.dtype != theirs.dtype:
        return False
    if ours.dtype.kind != "f":
        return np.array_equal(ours, theirs)
    return np.array_equal(ours, theirs, equal_nan=True) if exact else np.allclose(ours, theirs, equal_nan=True)


# --- values --------------------------------------------------------------------------------------------------------


def agreements(graph: Graph, replay: OnnxRuntime, points: Tensor) -> Tensor:
    """Return whether the graph's outputs are onnxruntime's, for those of `[n, *input_shape]` that can be compared.

    Both round at every step, see `polycert.graph.self_check.agrees`.
    """
    found = [_output(graph, replay, part, list(replay(part))) for part in _batches(graph, points)]
    close = Close(*map(torch.cat, zip(*found, strict=True)))
    return close.agrees[close.compared]


def _outputs(trace: Trace, replay: OnnxRuntime, points: Tensor) -> Tensor:
    """Return the same as `agreements`, with the outputs that onnxruntime computes together with all other values."""
    found = []
    for part in _batches(trace.graph, points):
        theirs = [torch.from_numpy(values[0].copy()) for values in replay.values(part, [replay.program.output_name])]
        found.append(_output(trace.graph, replay, part, theirs))
    close = Close(*map(torch.cat, zip(*found, strict=True)))
    return close.agrees[close.compared]


def _output(graph: Graph, replay: OnnxRuntime, points: Tensor, theirs: Sequence[Tensor]) -> Close:
    """Compare the outputs at some points."""
    values = _values(graph, replay, points)
    sizes = sizes_of(values)
    noise = noise_of(graph, values, {graph.output})
    expected = torch.stack([part.reshape(-1) for part in theirs])
    return close_to(values[-1], noise[graph.output], expected, sizes[-1], sizes.amax(0))


def _batches(graph: Graph, points: Tensor) -> Iterator[Tensor]:
    """Split points into batches whose values take a bounded part of the memory."""
    step = max(1, NUMBERS // sum(math.prod(node.shape) for node in graph.nodes))
    return (points[k : k + step] for k in range(0, len(points), step))


def _values(graph: Graph, replay: OnnxRuntime, points: Tensor) -> list[Tensor]:
    """Return the values of all nodes for inputs that were rounded to the file's type."""
    x = points.to(graph.dtype) if replay.program.input_type is np.float64 else points.float().to(graph.dtype)
    with torch.no_grad():
        return graph.values(x.to(graph.device))


def _first_difference(trace: Trace, replay: OnnxRuntime, points: Tensor, *, everywhere: bool) -> str | None:
    """Return the name of the first value that differs from onnxruntime's at one of the points `[n, *input_shape]`.

    Args:
        trace: a graph and the places of the file's values in it.
        replay: the file.
        points: inputs.
        everywhere: whether a value that can be compared at none of the points counts as such.
    """
    graph = trace.graph
    places = {name: trace.places[name] for name in _computed(trace, replay) if trace.places[name].node is not None}
    compared = dict.fromkeys(places, not everywhere)
    for part in _batches(graph, points):
        values = _values(graph, replay, part)
        noise = noise_of(graph, values, {node for node, _ in places.values() if node is not None})
        sizes = sizes_of(values)
        before = sizes.cummax(0).values
        theirs = replay.values(part, list(places))
        for (name, (node, shape)), expected in zip(places.items(), zip(*theirs, strict=True), strict=True):
            assert node is not None
            _check_shape(name, shape, expected[0], replay)
            close = close_to(values[node], noise[node], _stacked(expected), sizes[node], before[node])
            if not bool(close.agrees[close.compared].all()):
                return name
            compared[name] |= bool(close.compared.any())
    return next((name for name, done in compared.items() if not done), None)


def _stacked(arrays: Sequence[np.ndarray]) -> Tensor:
    """Return arrays of one shape as `[arrays, entries]`."""
    return torch.from_numpy(np.stack([array.reshape(-1) for array in arrays]))


# --- calls by themselves -------------------------------------------------------------------------------------------


class Alone(NamedTuple):
    """A call that can be run by itself."""

    sources: frozenset[int]  # nodes of its operands
    nodes: tuple[int, ...]  # nodes of the call itself
    results: dict[str, Place]


def _alone(trace: Trace, replay: OnnxRuntime) -> list[Alone]:
    """Return all calls whose nodes read exactly their operands. A call that is fused with others does not."""
    own: dict[int, list[int]] = {}
    for node, maker in enumerate(trace.makers):
        own.setdefault(maker, []).append(node)
    found = []
    for position, call in enumerate(replay.program.calls):
        nodes = own.get(position, [])
        results = {name: trace.places[name] for name in call.outputs if name in trace.places}
        operands = {trace.places[name].node for name in call.inputs if name in trace.places}
        read = {i for k in nodes for i in trace.graph.nodes[k].inputs} - set(nodes) if nodes else operands
        live = {name: place for name, place in results.items() if place.node is not None}
        if live and read == operands:
            found.append(Alone(frozenset(k for k in operands if k is not None), tuple(nodes), live))
    return found


def _first_difference_alone(trace: Trace, kinds: Kinds, replay: OnnxRuntime) -> str | None:
    """Return the name of the first value that onnxruntime computes otherwise from random operands of its call."""
    alone = _alone(trace, replay)
    names = [name for call in alone for name in call.results]
    if not names:  # onnxruntime takes no names for all names
        return None
    read = {name for call in replay.program.calls for name in call.inputs}
    operands = {name: place for name, place in trace.places.items() if name in read}
    run = replay.calls_alone({name: (kinds[name], place.shape) for name, place in operands.items()})
    generator = torch.Generator().manual_seed(0)
    rounding = torch.Generator(device=trace.graph.device).manual_seed(0)
    compared = dict.fromkeys(names, False)
    for sizes in _batches(trace.graph, torch.tensor(ALONE_SIZES)):
        given = {k: _random(sizes, trace.graph.nodes[k].shape, generator) for call in alone for k in call.sources}
        theirs = [run(names, fed) for fed in _operands_given(given, operands, kinds, len(sizes))]
        expected = dict(zip(names, map(_stacked, zip(*theirs, strict=True)), strict=True))
        for call in alone:
            own = {k: given[k].to(trace.graph.device, trace.graph.dtype) for k in call.sources}
            results = {place.node for place in call.results.values()}
            values, noise = run_alone(trace.graph, own, call.nodes, results, rounding)
            peaks = {k: peak(value.flatten(1)).cpu() for k, value in values.items()}
            before = torch.stack(list(peaks.values())).amax(0)
            for name, (node, _) in call.results.items():
                assert node is not None
                close = close_to(values[node], noise[node], expected[name], peaks[node], before)
                if not bool(close.agrees[close.compared].all()):
                    return name
                compared[name] |= bool(close.compared.any())
    return next((name for name, done in compared.items() if not done), None)


def _random(sizes: Tensor, shape: Shape, generator: torch.Generator) -> Tensor:
    """Return random numbers between minus and plus each of the sizes, in float32: `[sizes, *shape]`."""
    noise = torch.rand(len(sizes), *shape, generator=generator).mul_(2).sub_(1)
    return noise * sizes.reshape(-1, *(1,) * len(shape))


def _operands_given(
    given: dict[int, Tensor], operands: dict[str, Place], kinds: Kinds, count: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield what onnxruntime is given for each sample: zeros where only fused calls read a value."""
    for row in range(count):
        yield {
            name: given[node][row].numpy().reshape(shape).astype(kinds[name])
            if node in given
            else np.zeros(shape, kinds[name])
            for name, (node, shape) in operands.items()
        }
