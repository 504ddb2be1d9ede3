"""A traced program: its calls, and what its output needs of them."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, fx, nn

from polycert.errors import PolycertError, reason
from polycert.forms import Shape
from polycert.graph.in_place import without_writes

# Ops that only look at a tensor in another way, and so round nothing.
VIEWS = tuple(
    f"aten.{name}."
    for name in (
        *("t", "numpy_T", "T", "mT", "view", "reshape", "permute", "transpose", "flatten", "unflatten", "squeeze"),
        *("unsqueeze", "expand", "detach", "alias", "contiguous", "_unsafe_view", "slice", "select", "narrow"),
    )
)
# Ops on constants that round nothing.
EXACT = (
    *VIEWS,
    *(
        f"aten.{name}."
        for name in ("clone", "lift_fresh", "lift_fresh_copy", "detach_", "neg", "ones", "zeros", "full", "abs")
    ),
    *(f"aten.{name}." for name in ("to", "_to_copy", "ones_like", "zeros_like", "cat", "stack", "flip")),
)
SOFTMAX = ("aten.softmax.int", "aten.log_softmax.int", "aten._softmax.default", "aten._log_softmax.default")


def exported(model: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """The model's program without writes in place, or a clear error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(model, (example,), strict=False)
        return without_writes(program)
    except PolycertError:
        raise
    except Exception as error:
        raise PolycertError(
            f"the model cannot be traced with samples of shape {tuple(example.shape[1:])}: {reason(error)}"
        ) from error


def rounds_nothing(call: fx.Node, args: Any, result: Any) -> bool:
    """Whether a constant is stored numbers in another order or form."""
    if not str(call.target).startswith(EXACT):
        return False
    changes_type = args and isinstance(args[0], Tensor) and isinstance(result, Tensor) and result.dtype != args[0].dtype
    return not changes_type or bool((result.double() == args[0].double()).all())


def gives_one(node: fx.Node) -> bool:
    """Whether a call gives one tensor."""
    return isinstance(node.meta["val"], Tensor)


def shape_of(node: fx.Node) -> Shape:
    """The shape of a call's result, without the batch."""
    return tuple(int(n) for n in node.meta["val"].shape[1:])


def _fx_node(value: Any) -> fx.Node:
    if not isinstance(value, fx.Node):
        raise PolycertError("the model's output does not depend on its input")
    return value


def logits(program: torch.export.ExportedProgram) -> tuple[fx.Node, str]:
    """The program's output without a final softmax over all of it, and the name of that."""
    (name,) = program.graph_signature.user_outputs
    values = program.graph.output_node().args[0]
    found = [node for node in values if isinstance(node, fx.Node) and node.name == name]
    result = _fx_node(found[0] if found else None)
    if str(result.target) not in SOFTMAX:
        return result, ""
    shape = result.meta["val"].shape[1:]
    if not shape or result.args[1] not in (-1, len(shape)) or math.prod(shape[:-1]) != 1:
        return result, ""
    return _fx_node(result.args[0]), "log_softmax" if "log_softmax" in str(result.target) else "softmax"


def needed_by_output(program: torch.export.ExportedProgram) -> set[fx.Node]:
    """The nodes that the program's output depends on."""
    return needed_calls(logits(program)[0])


def needed_calls(result: fx.Node) -> set[fx.Node]:
    """A node and all that it depends on."""
    found: set[fx.Node] = set()
    waiting = [result]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def variable_names(nodes: list[fx.Node], source: str) -> set[str]:
    """Names of the nodes that depend on the input."""
    found = {source}
    for node in nodes:
        if any(n.name in found for n in node.all_input_nodes):
            found.add(node.name)
    return found
