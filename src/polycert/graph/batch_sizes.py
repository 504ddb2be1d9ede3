"""Refuse programs that hold the size of the traced batch: numbers that another batch would change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from polycert.errors import PolycertError
from polycert.graph.arguments import by_shape, named

# A model may ask these of a tensor without learning how many samples there are.
BLIND = (Tensor.dim, Tensor.ndimension, Tensor.is_floating_point, Tensor.is_complex)
BLIND_KINDS = (Tensor, torch.dtype, torch.device, torch.layout, type(None))
RECURRENT = ("lstm", "gru", "rnn_")


class Watch(TorchFunctionMode):
    """A mode that notes whether a model asks a tensor for numbers, such as its sizes, or takes it apart."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what the function returns, and note whether it tells numbers."""
        result = func(*args, **(kwargs or {}))
        self.asked = self.asked or not (func in BLIND or isinstance(result, BLIND_KINDS))
        return result


def scripted(model: nn.Module) -> bool:
    """Whether a part of a model may be compiled by `torch.jit`, so that `Watch` cannot see what it asks for."""
    unit: Any = torch.jit._state._python_cu  # holds all functions of this process
    return bool(unit.get_functions()) or any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())


def check_same(
    first: torch.export.ExportedProgram,
    second: torch.export.ExportedProgram,
    needed: Callable[[torch.export.ExportedProgram], Iterable[fx.Node]],
    depends: set[str],
) -> None:
    """Check that two programs traced with batches of different sizes differ in the first size of values only.

    Raises:
        PolycertError: if they differ elsewhere.
    """
    ours = {node.name: node for node in needed(first)}
    theirs = {node.name: node for node in needed(second)}
    for name in ours.keys() | theirs.keys():
        one, other = ours.get(name), theirs.get(name)
        if one is None or other is None or not _same_node(one, other, depends):
            node = one if one is not None else other
            assert node is not None
            raise PolycertError(f"{node.target} (node '{name}') depends on the size of the batch: it must not")
    _same_constants(first, second, set(ours))


def _same_constants(
    first: torch.export.ExportedProgram, second: torch.export.ExportedProgram, needed: set[str]
) -> None:
    """Check that the constants of both programs are equal."""
    lifted = first.graph_signature.inputs_to_lifted_tensor_constants
    others = second.graph_signature.inputs_to_lifted_tensor_constants
    for placeholder in needed & lifted.keys():
        ours, theirs = first.constants[lifted[placeholder]], second.constants[others[placeholder]]
        if not torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs)):
            raise PolycertError(f"the constant '{placeholder}' depends on the size of the batch: it must not")


def names_batch(calls: Iterable[fx.Node], batch: int) -> bool:
    """Whether a call gives the traced batch's size as the first one of a shape.

    The number may stand in the model's code.
    """
    for call in calls:
        if isinstance(call.target, torch._ops.OpOverload):
            for _, argument, value in named(call.target, call.args, call.kwargs):
                if argument.name in by_shape(call.target) and isinstance(value, (list, tuple)) and value[:1] == [batch]:
                    return True
    return False


def _same_node(one: fx.Node, other: fx.Node, depends: set[str]) -> bool:
    """Whether two calls are the same, and give each sample a value of the same shape."""
    if one.target != other.target or not _same_call(one, other, depends):
        return False
    ours, theirs = one.meta.get("val"), other.meta.get("val")
    if one.name not in depends or not isinstance(ours, Tensor) or not isinstance(theirs, Tensor):
        return True
    return ours.shape[1:] == theirs.shape[1:]


def _same_call(one: fx.Node, other: fx.Node, depends: set[str]) -> bool:
    """Whether two calls have the same op and the same arguments, except those that may name the size of the batch."""
    if one.op != "call_function" or not isinstance(one.target, torch._ops.OpOverload):
        return bool(_plain((one.args, one.kwargs)) == _plain((other.args, other.kwargs)))
    allowed = by_shape(one.target) if one.name in depends else _state_sizes(one)
    pairs = zip(named(one.target, one.args, one.kwargs), named(other.target, other.args, other.kwargs), strict=True)
    return all(
        ours[1].name in allowed or (ours[0] == theirs[0] and _plain(ours[2]) == _plain(theirs[2]))
        for ours, theirs in pairs
    )


def _state_sizes(node: fx.Node) -> set[str]:
    """Return the arguments that may differ because a recurrent layer's state of zeros has one row for each sample."""
    zeros = str(node.target).startswith("aten.zeros.")
    return {"size"} if zeros and all(_recurrent(user) for user in node.users) else set()


def _recurrent(node: fx.Node) -> bool:
    return str(node.target).removeprefix("aten.").startswith(RECURRENT)


def _plain(value: Any) -> Any:
    """Replace the nodes in arguments by their names."""
    return fx.node.map_arg(value, lambda node: node.name)
