"""Where the tensors of a traced program are, and when a graph that was bound to them serves again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polycert.errors import PolycertError
from polycert.graph.graph import Graph


class TensorLookup:
    """Looks tensors up by their names; the names are taken from the program once."""

    def __init__(self, program: torch.export.ExportedProgram, module: nn.Module) -> None:
        signature = program.graph_signature
        named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        self._places = {placeholder: _getter(name) for placeholder, name in named.items()}
        lifted = signature.inputs_to_lifted_tensor_constants
        self._constants = {placeholder: program.constants[name] for placeholder, name in lifted.items()}
        self._first = next(map(_getter, signature.parameters), None)
        self._tied = _tied(module)
        self._plain = {name: (tensor, _version(tensor)) for name, tensor in _plain(module)}

    def tensors(self, module: nn.Module) -> dict[str, Tensor]:
        """By placeholder: parameters, buffers and constants, as they are stored.

        Raises:
            PolycertError: if the program does not fit any more: it knows tied tensors by one of their names, and those
                that are no parameters and no buffers as they were when it was traced.
        """
        for names in self._tied:
            first, *others = (_getter(name)(module) for name in names)
            if any(other is not first for other in others):
                raise PolycertError(f"{names[0]} and {names[1]} were one tensor when captured: capture the model again")
        for name, (tensor, version) in self._plain.items():
            if _getter(name)(module) is not tensor or _version(tensor) != version:
                raise PolycertError(
                    f"the tensor {name} has changed and is neither a parameter nor a buffer: "
                    "capture the model again, or register it as a buffer"
                )
        return {placeholder: find(module) for placeholder, find in self._places.items()} | self._constants

    def kind(self, module: nn.Module) -> tuple[torch.dtype, torch.device] | None:
        """Type and device of the first parameter, if there is any."""
        if self._first is None:
            return None
        first = self._first(module)
        return first.dtype, first.device


def _getter(name: str) -> Callable[[nn.Module], Tensor]:
    """What gives a module's tensor by its name."""
    find = attrgetter(name)

    def found(module: nn.Module) -> Tensor:
        try:
            tensor: Tensor = find(module)
        except AttributeError:
            raise PolycertError(f"the model has no tensor {name} any more: capture the model again") from None
        return tensor

    return found


def _tied(module: nn.Module) -> list[list[str]]:
    """Names that stand for one parameter or buffer."""
    names: dict[int, list[str]] = {}
    for found in (module.named_parameters, module.named_buffers):
        for name, tensor in found(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(name)
    return [same for same in names.values() if len(same) > 1]


def _plain(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors that are mere attributes of a module or of a part of it."""
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                yield f"{prefix}.{name}".removeprefix("."), value


def _version(tensor: Tensor) -> int:
    """Raised by every change in place; tensors made in inference mode do not count theirs."""
    return 0 if tensor.is_inference() else tensor._version


Kind = tuple[torch.Size, torch.dtype, torch.device]


class CachedGraph(NamedTuple):
    """A graph and the stored tensors that are in it."""

    graph: Graph
    tensors: dict[str, Tensor]
    kinds: list[Kind]

    @staticmethod
    def of(graph: Graph, tensors: dict[str, Tensor]) -> CachedGraph:
        """For a graph that is `keepable`."""
        return CachedGraph(graph, tensors, _kinds(tensors))

    def serves(self, tensors: dict[str, Tensor], dtype: torch.dtype, device: torch.device) -> bool:
        """Whether these very tensors are in it."""
        if (dtype, device) != (self.graph.dtype, self.graph.device):
            return False
        same = all(new is old for new, old in zip(tensors.values(), self.tensors.values(), strict=True))
        return same and _kinds(tensors) == self.kinds  # which `.data = ...` may have changed


def _kinds(tensors: dict[str, Tensor]) -> list[Kind]:
    return [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors.values()]


def keepable(graph: Graph, tensors: dict[str, Tensor]) -> bool:
    """Whether each of these tensors is in an op as it is, and no other is: then none was converted or computed."""
    own, held = {id(tensor) for tensor in tensors.values()}, set()

    def known(value: Any) -> bool:
        if isinstance(value, tuple):
            return all(map(known, value))
        if isinstance(value, Tensor):
            held.add(id(value))
        return id(value) in own or isinstance(value, (int, float, str, type(None)))

    ops: list[Any] = [node.op for node in graph.nodes[1:]]
    plain = all(is_dataclass(op) and all(known(getattr(op, one.name)) for one in fields(op)) for op in ops)
    return plain and held == own
