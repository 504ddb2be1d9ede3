"""Whether a graph computes what another evaluation of the same network gives, on inputs of many sizes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from polycert.graph.core import Graph

STEP = 2.0**-20  # of the sizes on the way: sixteen roundings of float32, in which most files compute
LIBRARY = 2.0**-24  # what functions such as `log(exp(z) + 1)` lose near 0
TIMES, RELATIVE = 8.0, 1e-5
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


def agrees(
    graph: Graph, x: Tensor, expected: Tensor, finish: Callable[[Tensor], Tensor] = torch.Tensor.detach
) -> Tensor:
    """Whether the graph's outputs are the `expected` ones `[n, ...]`, for those samples that can be compared.

    Both round at every step. How far that moves the outputs is measured, see `_noise`: they may differ by `TIMES` as
    much, and by `RELATIVE` of the largest one. Not compared are points where either overflows, the other evaluation
    because a value on the way is larger than `LARGEST`. `finish` is applied to the graph's outputs.
    """
    with torch.no_grad():
        values = graph.values(x)
        found, expected = (one.double().cpu().flatten(1) for one in (finish(values[-1]), expected.detach()))
        if found.shape != expected.shape:
            return torch.zeros(1, dtype=torch.bool)
        error = (found - expected).abs()
        allowed = RELATIVE * expected.abs().amax(1, keepdim=True) + SMALLEST
        theirs = torch.isfinite(expected).all(1)
        close = theirs & (error <= allowed).all(1)
        rest = (~close).nonzero().squeeze(1)
        if not len(rest):
            return close
        values = [value[rest.to(value.device)] for value in values]  # how far rounding goes takes its time to measure
        noise = _noise(graph, values, finish)
    size = torch.stack([value.abs().flatten(1).amax(1) for value in values]).amax(0).cpu()
    compared = torch.isfinite(found[rest] + noise).all(1) & (theirs[rest] | (size <= LARGEST))
    good = theirs[rest] & (error[rest] <= TIMES * noise + allowed[rest]).all(1)
    return torch.cat([close[close], good[compared]])


def _noise(graph: Graph, values: list[Tensor], finish: Callable[[Tensor], Tensor]) -> Tensor:
    """How far the outputs move, in two trials, if every value moves at random by what rounding may do to it."""
    steps = [_step(graph, k, values) for k in range(1, len(graph.nodes))]
    generator = torch.Generator(device=graph.device).manual_seed(0)
    moved = [finish(_moved(graph, values[0], steps, generator)) - finish(values[-1]) for _ in range(2)]
    return torch.stack(moved).abs().amax(0).double().cpu().flatten(1)


def _step(graph: Graph, index: int, values: list[Tensor]) -> Tensor | None:
    """`STEP` of all that is added up in a node, or of what an activation computes with; `LIBRARY` for curved ones."""
    inputs = [values[i] for i in graph.nodes[index].inputs]
    if index not in graph.linear:
        op = graph.activation(index)
        return STEP * op.peak(inputs[0], inputs[0]) + (0.0 if op.piecewise_linear else LIBRARY)
    linear = graph.linear[index]
    if linear.forward_terms == 0 and linear.bias is None:
        return None
    return STEP * linear.magnitude(*(value.abs() for value in inputs))


def _moved(graph: Graph, x: Tensor, steps: list[Tensor | None], generator: torch.Generator) -> Tensor:
    found = [x]
    for node, step in zip(graph.nodes[1:], steps, strict=True):
        assert node.op is not None
        value = node.op.forward(*(found[i] for i in node.inputs))
        if step is not None:
            share = torch.rand(value.shape, generator=generator, device=value.device, dtype=value.dtype)
            value = value + (2 * share - 1) * step
        found.append(value)
    return found[-1]
