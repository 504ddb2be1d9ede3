"""Run a file in onnxruntime, which decides what the file computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polycert.errors import PolycertError, reason
from polycert.graph.onnx.program import OnnxProgram, Shape

Run = Callable[[list[str], dict[str, np.ndarray]], Any]
RunAlone = Callable[[Sequence[str], dict[str, np.ndarray]], list[np.ndarray]]
GIVEN = "given:"  # prefix of the names of values that are given instead of computed


class OnnxRuntime:
    """Runs a checked program in onnxruntime, one sample at a time.

    Ops without a kernel there, such as convolutions in float64, are run by ONNX's own reference instead.
    """

    def __init__(self, program: OnnxProgram) -> None:
        self.program = program

    @cached_property
    def _run(self) -> Run:
        return self._session(self.program.content)

    @cached_property
    def _every(self) -> Run:
        """Runs the file with the results of all calls among its outputs."""
        from onnx import GraphProto, ModelProto, ValueInfoProto

        names = {name for call in self.program.calls for name in call.outputs if name} - {self.program.output_name}
        outputs = [ValueInfoProto(name=name) for name in sorted(names)]
        # Two messages one after the other are one message with the lists of both.
        return self._session(self.program.content + ModelProto(graph=GraphProto(output=outputs)).SerializeToString())

    def _session(self, content: bytes) -> Run:
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
            session = onnxruntime.InferenceSession(content, options, **only)
        except NoKernel:
            return self._reference(content)
        except Exception as error:
            raise PolycertError(f"onnxruntime refuses {self.program.source}: {reason(error)}") from None
        return session.run  # type: ignore[no-any-return]

    def _reference(self, content: bytes) -> Run:
        import onnx
        from onnx.reference import ReferenceEvaluator

        try:
            return ReferenceEvaluator(onnx.ModelProto.FromString(content)).run
        except Exception as error:
            raise PolycertError(f"no reference can run {self.program.source}: {reason(error)}") from None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs `[batch, entries]` for samples `[batch, *input_shape]`, in float64."""
        results = [self._results(self._run, [self.program.output_name], given)[0] for given in self._given(x)]
        return torch.from_numpy(np.stack(results).reshape(len(x), -1).astype(np.float64))

    def values(self, x: Tensor, names: Sequence[str]) -> list[list[np.ndarray]]:
        """Return for every sample the values of these names, constants included, each in the file's shape."""
        return [self._results(self._every, names, given) for given in self._given(x)]

    def calls_alone(self, kinds: Mapping[str, tuple[np.dtype[Any], Shape]]) -> RunAlone:
        """Return a function that runs every call by itself: the values that calls read are given, not computed.

        Args:
            kinds: type and shape of each value that depends on the input and is read by a call.
        """
        from onnx import ModelProto, ValueInfoProto, helper

        model = ModelProto.FromString(self.program.content)
        graph = model.graph
        results = {name for call in self.program.calls for name in call.outputs if name}
        nodes = [node for node in graph.node if results.intersection(node.output)]
        for node in nodes:
            node.input[:] = [GIVEN + name if name in kinds else name for name in node.input]
        inputs = [value for value in graph.input if value.name != self.program.input_name]
        for name, (kind, shape) in kinds.items():
            inputs.append(helper.make_tensor_value_info(GIVEN + name, helper.np_dtype_to_tensor_dtype(kind), shape))
        for field, content in (("node", nodes), ("input", inputs), ("value_info", [])):
            graph.ClearField(field)
            getattr(graph, field).extend(content)
        graph.ClearField("output")
        graph.output.extend(ValueInfoProto(name=name) for name in sorted(results))
        run = self._session(model.SerializeToString())
        return lambda names, given: self._results(run, names, {GIVEN + name: value for name, value in given.items()})

    def _given(self, x: Tensor) -> Iterator[dict[str, np.ndarray]]:
        for sample in x.detach().cpu().numpy().astype(self.program.input_type):
            yield {self.program.input_name: sample.reshape(self.program.input_shape)}

    def _results(self, run: Run, names: Sequence[str], given: dict[str, np.ndarray]) -> list[np.ndarray]:
        try:
            return [np.asarray(found) for found in run(list(names), given)]
        except Exception as error:
            raise PolycertError(f"onnxruntime cannot run {self.program.source}: {reason(error)}") from None
