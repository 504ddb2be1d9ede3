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

if TYPE_CHECKING:
    from polycert.graph.network import Network

RELATIVE, ABSOLUTE = 1e-4, 1e-5
TRIALS = 4


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
    """The graph must compute what onnxruntime computes, on random samples of several sizes."""
    generator = torch.Generator().manual_seed(0)
    shape = (TRIALS, *network.input_shape)
    noise = torch.rand(shape, generator=generator, dtype=torch.float64)
    scales = torch.tensor([1.0, 1.0, 0.1, 10.0], dtype=torch.float64).reshape(-1, *(1,) * (len(shape) - 1))
    inputs = (noise * scales - torch.tensor([0.0, 0.5, 0.0, 5.0]).reshape(scales.shape)).to(network.dtype)
    with torch.no_grad():
        found = network(inputs.to(network.bind().device)).double().cpu().flatten(1)
    expected = replay(inputs)
    if found.shape != expected.shape or not agree(found, expected):
        raise PolycertError(
            f"the graph read from {replay.program.source} does not reproduce onnxruntime on random inputs: "
            "please report the file"
        )


def agree(found: Tensor, expected: Tensor) -> bool:
    """To `RELATIVE` of a sample's largest output, or `ABSOLUTE`."""
    if not bool(torch.isfinite(expected).all()):
        return False
    scale = expected.abs().amax(1, keepdim=True)
    return bool(((found - expected).abs() <= torch.clamp(RELATIVE * scale, min=ABSOLUTE)).all())
