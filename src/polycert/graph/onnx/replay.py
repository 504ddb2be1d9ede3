"""onnxruntime as the judge of what a file computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from polycert.errors import PolycertError, reason
from polycert.graph.onnx.reading import Program
from polycert.graph.spread import agrees, spread_out

if TYPE_CHECKING:
    from polycert.graph.core import Graph
    from polycert.graph.network import Network

INSIDE = 8  # points in a box


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
    verdicts = agreements(graph, replay, spread_out(graph))
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


def agreements(graph: Graph, replay: Replay, points: Tensor) -> Tensor:
    """Whether the graph's outputs are onnxruntime's, for those of `[n, *input_shape]` that can be compared."""
    x = points.to(graph.dtype) if replay.program.input_type is np.float64 else points.float().to(graph.dtype)
    return agrees(graph, x.to(graph.device), replay(x))
