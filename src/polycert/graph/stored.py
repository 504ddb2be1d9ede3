"""Where the tensors of a traced program are: in its module, which may change at any time, or in the program itself."""

from __future__ import annotations

from operator import attrgetter

import torch
from torch import Tensor, nn


class Stored:
    """Looks tensors up by their names; the names are taken from the program once."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        signature = program.graph_signature
        named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        self._places = {placeholder: attrgetter(name) for placeholder, name in named.items()}
        lifted = signature.inputs_to_lifted_tensor_constants
        self._constants = {placeholder: program.constants[name] for placeholder, name in lifted.items()}
        self._first = next(map(attrgetter, signature.parameters), None)

    def tensors(self, module: nn.Module) -> dict[str, Tensor]:
        """By placeholder: parameters, buffers and constants, as they are stored."""
        return {placeholder: find(module) for placeholder, find in self._places.items()} | self._constants

    def kind(self, module: nn.Module) -> tuple[torch.dtype, torch.device] | None:
        """Type and device of the first parameter, if there is any."""
        if self._first is None:
            return None
        first: Tensor = self._first(module)
        return first.dtype, first.device
