"""The network of an ONNX file. Its constants are in the file's own type, and each graph is built once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from polycert.errors import PolycertError, reason
from polycert.forms import Shape
from polycert.graph.graph import Graph, Network
from polycert.graph.onnx.builder import Built, Trace, build, constants_of, inner
from polycert.graph.onnx.comparison import check_against, check_inside
from polycert.graph.onnx.onnxruntime_check import OnnxRuntime
from polycert.graph.onnx.program import OnnxProgram, read_program

if TYPE_CHECKING:
    from polycert.sets.ball import Region


@dataclass(frozen=True, eq=False)
class OnnxNetwork(Network):
    """A network read from an ONNX file. Its weights never change, so every graph is built once."""

    program: OnnxProgram
    own: torch.dtype
    device: torch.device
    traces: dict[torch.dtype, Trace] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the session of onnxruntime, which another process starts anew."""
        return {name: value for name, value in vars(self).items() if name != "replay"}

    @property
    def input_shape(self) -> Shape:  # type: ignore[override]
        """Shape of one sample."""
        return inner(self.program.input_shape)

    @property
    def output_shape(self) -> Shape:  # type: ignore[override]
        """Shape of one sample's output."""
        return self.bind().output_shape

    @property
    def softmax(self) -> bool:
        """False: nothing was dropped."""
        return False

    def bind(self, dtype: torch.dtype | None = None) -> Graph:
        """Return the graph in its own type or another one, without what other callers derived from its weights."""
        return self.trace(dtype or self.own).graph.fresh()

    def trace(self, dtype: torch.dtype) -> Trace:
        """Return the graph in some type, with the places of the file's values."""
        if dtype not in self.traces:
            self.traces[dtype] = Trace.of(_built(self.program, dtype, self.device), dtype, self.device)
        return self.traces[dtype]

    def check_inside(self, region: Region) -> None:
        """Compare every value with onnxruntime's at some points of the samples' own boxes."""
        check_inside(self.trace(torch.float64), self.replay, region)

    @cached_property
    def replay(self) -> OnnxRuntime:
        """The file in onnxruntime."""
        return OnnxRuntime(self.program)


def _built(program: OnnxProgram, dtype: torch.dtype, device: torch.device) -> Built:
    """Build the nodes of a program; all errors of a malformed file become a `PolycertError`."""
    try:
        with torch.inference_mode(False):  # its constants may meet gradients later
            return build(program, torch.empty(0, dtype=dtype, device=device))
    except PolycertError as error:
        raise PolycertError(f"cannot read {program.source}: {error}") from None
    except (ValueError, TypeError, IndexError, KeyError, RuntimeError, OverflowError, AttributeError) as error:
        # A malformed file can break an op's own rules in more ways than can be listed.
        raise PolycertError(f"cannot read {program.source}: {reason(error)}") from None


def read_onnx(path: Path, device: torch.device | str = "cpu") -> OnnxNetwork:
    """Read a file, build its graph and compare it with onnxruntime: constants, shapes, and all values at random inputs.

    Raises:
        PolycertError: if the file is malformed, has an op without a rule, or is not reproduced.
    """
    program = read_program(path)
    held = [value for call in program.calls for value in call.attributes.values() if isinstance(value, np.ndarray)]
    kinds = {array.dtype for array in (*program.tensors.values(), *held)}
    own = torch.float64 if np.dtype(np.float64) in kinds else torch.float32
    network = OnnxNetwork(program, own, torch.device(device))
    built = _built(program, own, network.device)
    network.traces[own] = Trace.of(built, own, network.device)
    check_against(network.traces[own], constants_of(built), network.replay)
    return network
