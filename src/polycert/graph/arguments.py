"""Which arguments a call may give: each is read by its rule, is at its default, or is known not to matter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from polycert.rules import RULES, Call, Value

# These arguments say where or how numbers are stored, or they matter in training only. They change no values.
IRRELEVANT = {"memory_format", "pin_memory", "non_blocking", "inplace", "momentum", "cudnn_enabled", "half_to_float"}


def named(target: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[tuple[int, torch.Argument, Any]]:
    """Yield the position, the description and the value of every argument that a call of an ATen op gives."""
    for position, argument in enumerate(target._schema.arguments):
        if position < len(args):
            yield position, argument, args[position]
        elif argument.name in kwargs:
            yield position, argument, kwargs[argument.name]


def by_shape(target: Any) -> frozenset[str]:
    """Return the names of an op's arguments that the shape of its result accounts for."""
    found = RULES.get(str(target))
    return frozenset() if found is None else found.by_shape


def check_read(target: Any, call: Call) -> None:
    """Check that the rule that built `call` has read every argument, except those that change nothing.

    Raises:
        ValueError: if a rule did not look at an argument that is not at its default.
    """
    accounted = IRRELEVANT | by_shape(target)
    for position, argument, value in named(target, tuple(call.args), call.kwargs):
        if position in call.read or argument.name in call.read or argument.name in accounted:
            continue
        if position == 0 and _only_nodes(value):  # the rule knows it by its shape
            continue
        if argument.name == "dtype" and value in (torch.float32, torch.float64):  # it only changes the rounding
            continue
        if not (argument.has_default_value() and _same(value, argument.default_value)):
            shown = "a tensor" if isinstance(value, (Tensor, Value)) else repr(value)
            raise ValueError(f"the argument {argument.name}={shown} is not supported")


def check_repeatable(node: fx.Node) -> None:
    """Check that a constant is the same whenever it is computed.

    Raises:
        ValueError: if it is drawn at random, or whatever lies in memory.
    """
    target: Any = node.target
    if str(target).startswith(("aten.empty", "aten.new_empty")):
        raise ValueError("memory that nothing was written to is not supported")
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return
    given = {argument.name: value for _, argument, value in named(target, node.args, node.kwargs)}
    if given.get("train", given.get("training", True)) is not False:
        raise ValueError("numbers drawn at random are not supported")


def _only_nodes(value: Any) -> bool:
    """Whether a value is a node of the graph, or a list of such."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_only_nodes, value))
    return isinstance(value, Value)


def _same(value: Any, default: Any) -> bool:
    """Whether a value equals the default."""
    if isinstance(value, (Tensor, Value)):
        return False
    if isinstance(value, (list, tuple)):
        return isinstance(default, (list, tuple)) and list(value) == list(default)
    return bool(value == default)
