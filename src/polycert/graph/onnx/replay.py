"""onnxruntime as the judge of what a file computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from polycert.errors import PolycertError, reason
from polycert.graph.onnx.reading import Program

if TYPE_CHECKING:
    from polycert.graph.core import Graph
    from polycert.graph.network import Network

STEP = 2.0**-20  # of the sizes on the way: sixteen roundings of float32, in which most files compute
LIBRARY = 2.0**-24  # what functions such as `log(exp(z) + 1)` lose near 0
TIMES, RELATIVE = 8.0, 1e-5
SMALLEST = 1e-37  # underflow in float32
LARGEST = 1e30  # beyond it, onnxruntime may overflow in float32
LARGE = 10**8  # products from which on each evaluation takes its time
INSIDE = 8  # points in a box
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


class Replay:
    """Runs a checked program in onnxruntime, one sample at a time.

    What onnxruntime has no kernel for, such as convolutions in float64, is run by ONNX's own reference instead.
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    @cached_property
    def _run(self) -> Callable[[list[str], dict[str, np.ndarray]], Any]:
        import onnxruntime
        from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        # Fused ops round differently: the file as it is written is the reference.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        # The fallback would try the same once more and print that it does.
        only: Any = {"providers": ["CPUExecutionProvider"], "enable_fallback": False}
        try:
            session = onnxruntime.InferenceSession(self.program.content, options, **only)
        except NoKernel:
            return self._reference()
        except Exception as error:
            raise PolycertError(f"onnxruntime refuses {self.program.source}: {reason(error)}") from None
        return session.run  # type: ignore[no-any-return]

    def _reference(self) -> Callable[[list[str], dict[str, np.ndarray]], Any]:
        import onnx
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(onnx.ModelProto.FromString(self.program.content)).run

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs `[batch, entries]` for samples `[batch, *input_shape]`, in float64."""
        samples = x.detach().cpu().numpy().astype(self.program.input_type)
        results = [self._one(sample) for sample in samples]
        return torch.from_numpy(np.stack(results).astype(np.float64))

    def _one(self, sample: np.ndarray) -> np.ndarray:
        given = {self.program.input_name: sample.reshape(self.program.input_shape)}
        try:
            (found,) = self._run([self.program.output_name], given)
        except PolycertError:
            raise
        except Exception as error:
            raise PolycertError(f"onnxruntime cannot run {self.program.source}: {reason(error)}") from None
        return np.asarray(found).reshape(-1)


def check_against(network: Network, replay: Replay) -> None:
    """The graph must compute what onnxruntime computes, on inputs of many sizes and both signs.

    Raises:
        PolycertError: if it does not, or if all of them overflow.
    """
    graph = network.bind()
    verdicts = agreements(graph, replay, _spread_out(graph))
    _demand(bool(verdicts.any() and verdicts.all()), replay, "on inputs of many sizes")


def check_inside(network: Network, replay: Replay, lower: Tensor, upper: Tensor) -> None:
    """The same in a box `[*input_shape]`: at both its ends, its centre, other corners and random points of it."""
    graph = network.bind(torch.float64)
    generator = torch.Generator().manual_seed(0)
    place = torch.rand(INSIDE, *graph.input_shape, generator=generator, dtype=torch.float64)
    place[: INSIDE // 2] = place[: INSIDE // 2].round()
    place[:3] = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64).reshape(3, *(1,) * len(graph.input_shape))
    low, high = (end.double().cpu().reshape(graph.input_shape) for end in (lower, upper))
    points = torch.lerp(low, high, place)
    _demand(bool(agreements(graph, replay, points).all()), replay, "in the property's own box")


def _demand(agreed: bool, replay: Replay, where: str) -> None:
    if not agreed:
        raise PolycertError(
            f"the graph read from {replay.program.source} does not reproduce onnxruntime {where}: "
            "please report the file"
        )


def _spread_out(graph: Graph) -> Tensor:
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


def agreements(graph: Graph, replay: Replay, points: Tensor) -> Tensor:
    """Whether the graph's outputs are onnxruntime's, for those of `[n, *input_shape]` that can be compared.

    Both round at every step. How far that moves the outputs is measured, see `_noise`: they may differ by `TIMES` as
    much, and by `RELATIVE` of the largest one. Not compared are points where either overflows, onnxruntime because a
    value on the way is larger than `LARGEST`.
    """
    x = points.to(graph.dtype) if replay.program.input_type is np.float64 else points.float().to(graph.dtype)
    with torch.no_grad():
        values = graph.values(x.to(graph.device))
        noise = _noise(graph, values)
    found, expected = values[-1].double().cpu().flatten(1), replay(x)
    if found.shape != expected.shape:
        return torch.zeros(1, dtype=torch.bool)
    allowed = TIMES * noise + RELATIVE * expected.abs().amax(1, keepdim=True) + SMALLEST
    size = torch.stack([value.abs().flatten(1).amax(1) for value in values]).amax(0).cpu()
    theirs = torch.isfinite(expected).all(1)
    compared = torch.isfinite(found + noise).all(1) & (theirs | (size <= LARGEST))
    return (theirs & ((found - expected).abs() <= allowed).all(1))[compared]


def _noise(graph: Graph, values: list[Tensor]) -> Tensor:
    """How far the outputs move, in two trials, if every value moves at random by what rounding may do to it."""
    steps = [_step(graph, k, values) for k in range(1, len(graph.nodes))]
    generator = torch.Generator(device=graph.device).manual_seed(0)
    moved = [_moved(graph, values[0], steps, generator) - values[-1] for _ in range(2)]
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
