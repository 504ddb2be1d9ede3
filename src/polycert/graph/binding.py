"""Find the tensors of a traced program in its module, and tell when a graph bound to them may be used again."""

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
    """Finds the tensors of a program in a module by their names, which are read from the program once."""

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
        """Return the parameters, buffers and constants as they are stored, by the names of their placeholders.

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
        """Return the type and the device of the first parameter, or None if there is none."""
        if self._first is None:
            return None
        first = self._first(module)
        return first.dtype, first.device


def _getter(name: str) -> Callable[[nn.Module], Tensor]:
    """Return a function that finds a module's tensor of this name."""
    find = attrgetter(name)

    def found(module: nn.Module) -> Tensor:
        try:
            tensor: Tensor = find(module)
        except AttributeError:
            raise PolycertError(f"the model has no tensor {name} any more: capture the model again") from None
        return tensor

    return found


def _tied(module: nn.Module) -> list[list[str]]:
    """Return the groups of names that stand for one parameter or buffer."""
    names: dict[int, list[str]] = {}
    for found in (module.named_parameters, module.named_buffers):
        for name, tensor in found(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(name)
    return [same for same in names.values() if len(same) > 1]


def _plain(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the value of all tensors in a module that are neither parameters nor buffers."""
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                yield f"{prefix}.{name}".removeprefix("."), value


def _version(tensor: Tensor) -> int:
    """Return a number that every change in place raises, or 0 for tensors of inference mode, which count no changes."""
    return 0 if tensor.is_inference() else tensor._version


Kind = tuple[torch.Size, torch.dtype, torch.device]


class CachedGraph(NamedTuple):
    """A graph with the stored tensors that are in it."""

    graph: Graph
    tensors: dict[str, Tensor]
    kinds: list[Kind]

    @staticmethod
    def of(graph: Graph, tensors: dict[str, Tensor]) -> CachedGraph:
        """Cache a graph that is `keepable` with its tensors."""
        return CachedGraph(graph, tensors, _kinds(tensors))

    def serves(self, tensors: dict[str, Tensor], dtype: torch.dtype, device: torch.device) -> bool:
        """Whether exactly these tensors, unchanged in shape, type and device, are in the graph."""
        if (dtype, device) != (self.graph.dtype, self.graph.device):
            return False
        same = all(new is old for new, old in zip(tensors.values(), self.tensors.values(), strict=True))
        return same and _kinds(tensors) == self.kinds  # which `.data = ...` may have changed


def _kinds(tensors: dict[str, Tensor]) -> list[Kind]:
    return [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors.values()]


def keepable(graph: Graph, tensors: dict[str, Tensor]) -> bool:
    """Whether the tensors of the ops are exactly these ones. Then none was converted or computed."""
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
