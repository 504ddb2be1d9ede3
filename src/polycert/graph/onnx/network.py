"""A network read from an ONNX file: constants in the file's own type, graphs kept once they are built."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from polycert.errors import PolycertError, reason
from polycert.forms import Shape
from polycert.graph.core import Graph, prune
from polycert.graph.network import Network
from polycert.graph.onnx.building import build, inner
from polycert.graph.onnx.reading import Program, read_program
from polycert.graph.onnx.replay import Replay, check_against


@dataclass(frozen=True, eq=False)
class Imported(Network):
    """A file's program; its weights never change, so every graph is built once."""

    program: Program
    own: torch.dtype
    device: torch.device
    graphs: dict[torch.dtype, Graph] = field(default_factory=dict)

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
        """Nothing was dropped."""
        return False

    def bind(self, dtype: torch.dtype | None = None) -> Graph:
        """The graph in its own type or another one; what a caller derives from its weights stays with the caller."""
        wanted = dtype or self.own
        if wanted not in self.graphs:
            with torch.inference_mode(False):  # it may meet gradients later
                self.graphs[wanted] = _graph(self.program, wanted, self.device)
        return self.graphs[wanted].fresh()

    @cached_property
    def replay(self) -> Replay:
        """The file as onnxruntime computes it."""
        return Replay(self.program)


def _graph(program: Program, dtype: torch.dtype, device: torch.device) -> Graph:
    like = torch.empty(0, dtype=dtype, device=device)
    try:
        nodes, output, computed = build(program, like)
    except PolycertError as error:
        raise PolycertError(f"cannot read {program.source}: {error}") from None
    except (ValueError, TypeError, IndexError, KeyError, RuntimeError, OverflowError, AttributeError) as error:
        # A malformed file can break an op's own rules in more ways than can be listed.
        raise PolycertError(f"cannot read {program.source}: {reason(error)}") from None
    return Graph(prune(nodes, output), dtype, device, computed)


def read_onnx(path: Path, device: torch.device | str = "cpu") -> Imported:
    """Read a file, build its graph and compare it with onnxruntime on random inputs.

    Raises:
        PolycertError: if the file is malformed, has an op without a rule, or is not reproduced.
    """
    program = read_program(path)
    held = [value for call in program.calls for value in call.attributes.values() if isinstance(value, np.ndarray)]
    kinds = {array.dtype for array in (*program.tensors.values(), *held)}
    own = torch.float64 if np.dtype(np.float64) in kinds else torch.float32
    network = Imported(program, own, torch.device(device))
    network.bind()
    check_against(network, network.replay)
    return network
