"""Trace a module into a program of functions without writes in place, and tell what its output needs."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind, OutputKind

from polycert.errors import PolycertError, reason
from polycert.forms import Shape
from polycert.graph.arguments import named

# Ops that give another view of a tensor, and so round nothing.
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
# Ops that return their input itself or a copy of it. Strides or the mode decide which, when the op runs.
UNDECIDED = {"reshape", "flatten", "unflatten", "ravel", "contiguous", "to", "view_as", "reshape_as", "dropout"}
UNDECIDED |= {"feature_dropout", "alpha_dropout", "feature_alpha_dropout"}
MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


def exported(model: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """Return the model's program without writes in place.

    Raises:
        PolycertError: if the model cannot be traced.
    """
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
    """Whether a computed constant is stored numbers in another order or form."""
    if not str(call.target).startswith(EXACT):
        return False
    changes_type = args and isinstance(args[0], Tensor) and isinstance(result, Tensor) and result.dtype != args[0].dtype
    return not changes_type or bool((result.double() == args[0].double()).all())


def gives_one(node: fx.Node) -> bool:
    """Whether a call gives one tensor."""
    return isinstance(node.meta["val"], Tensor)


def shape_of(node: fx.Node) -> Shape:
    """Return the shape of a call's result, without the batch."""
    return tuple(int(n) for n in node.meta["val"].shape[1:])


def _fx_node(value: Any) -> fx.Node:
    if not isinstance(value, fx.Node):
        raise PolycertError("the model's output does not depend on its input")
    return value


def logits(program: torch.export.ExportedProgram) -> tuple[fx.Node, str]:
    """Return the program's output without a final softmax over all of it, and the name of that softmax or ""."""
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
    """Return the nodes that the program's output depends on."""
    return needed_calls(logits(program)[0])


def needed_calls(result: fx.Node) -> set[fx.Node]:
    """Return a node and all nodes that it depends on."""
    found: set[fx.Node] = set()
    waiting = [result]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def variable_names(nodes: list[fx.Node], source: str) -> set[str]:
    """Return the names of the nodes that depend on the input."""
    found = {source}
    for node in nodes:
        if any(n.name in found for n in node.all_input_nodes):
            found.add(node.name)
    return found


# --- writes in place -------------------------------------------------------------------------------------------------


def without_writes(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return the same program such that every call may be read as a function of its arguments.

    A program stays as it is if it writes nothing, or if each write is seen in the write's own result only.

    Raises:
        PolycertError: if a write cannot be expressed, or if one changes a tensor of the module that the output needs.
    """
    seen = _seen_elsewhere(program)
    if not seen:
        return program
    for name in sorted({str(node.target) for node in seen if _undecided(node)}):
        raise PolycertError(
            f"the model writes into a tensor that is used elsewhere, through {name}, which may copy it or not: "
            "use the versions of its ops without underscore"
        )
    inner = [part for part in program.graph_module.modules() if part is not program.graph_module]
    if any(_may_write(node) for part in inner for node in getattr(part, "graph", fx.Graph()).nodes if _is_call(node)):
        raise PolycertError("the model writes in place under torch.no_grad: use the ops without underscore there")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pure: torch.export.ExportedProgram = program.run_decompositions({})
    except Exception as error:
        raise PolycertError(
            f"the model writes into a tensor that is used elsewhere ({reason(error)}): "
            "use the versions of its ops without underscore"
        ) from error
    left = [str(node.target) for node in pure.graph.nodes if _is_call(node) and _may_write(node)]
    if left:
        raise PolycertError(f"{', '.join(left)} writes into its arguments: use the version without underscore")
    return pure


def refuse_changed_state(program: torch.export.ExportedProgram, needed: set[fx.Node]) -> None:
    """Refuse a module that changes its own tensors: it computes something else the next time."""
    changed = {spec.target for spec in program.graph_signature.output_specs if spec.kind in MUTATIONS}
    names = {node.name for node in needed}
    for spec in program.graph_signature.input_specs:
        if spec.target in changed and getattr(spec.arg, "name", None) in names:
            raise PolycertError(f"the model's forward changes its own tensor '{spec.target}', which its output needs")


def _seen_elsewhere(program: torch.export.ExportedProgram) -> set[fx.Node]:
    """Return all names of the tensors that a call may write into although another name of it is used later."""
    place = {node: position for position, node in enumerate(program.graph.nodes)}
    own = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind is not InputKind.USER_INPUT and hasattr(spec.arg, "name")
    }
    group: dict[fx.Node, set[fx.Node]] = {}  # the nodes that may share a node's storage
    for node in place:
        together = {node}.union(*(group[source] for source in _shared(node)))
        for member in together:
            group[member] = together

    found: set[fx.Node] = set()
    for node in place:
        if not _is_call(node) or not _may_write(node):
            continue
        known = isinstance(node.target, torch._ops.OpOverload)
        for target in _written(node) if known else node.all_input_nodes or [node]:
            for other in group[target] - {node} if known else group[target]:
                late = place[other] < place[node] and any(place[user] > place[node] for user in other.users)
                if late or other.name in own or not known:
                    found |= group[target]
    return found


def _is_call(node: fx.Node) -> bool:
    return node.op == "call_function"


def _may_write(node: fx.Node) -> bool:
    """Whether a call may do more than compute a function of its arguments. A call that is no op may do anything."""
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    return node.target is not operator.getitem


def _undecided(node: fx.Node) -> bool:
    """Whether an op may return its input itself, depending on the input or without saying it in its schema."""
    target: Any = node.target
    return isinstance(target, torch._ops.OpOverload) and (
        target._schema.name.split("::")[1] in UNDECIDED or _hidden(target)
    )


def _hidden(target: torch._ops.OpOverload) -> bool:
    """Whether an op may return its input although its schema does not say so, as dropout does in evaluation.

    Batch norm has the tag for its running statistics; in evaluation it returns a new tensor.
    """
    named_aten = target._schema.name.startswith("aten::")
    tagged = torch.Tag.maybe_aliasing_or_mutating in target.tags and "batch_norm" not in target._schema.name
    return tagged or not named_aten


def _written(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the arguments that an op writes into, also inside lists."""
    for _, argument, value in named(node.target, node.args, node.kwargs):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _nodes(value)


def _shared(node: fx.Node) -> list[fx.Node]:
    """Return the arguments whose storage a node's value may share: those that the schema names, all if it hides any."""
    if node.op != "call_function":
        return []
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return list(node.all_input_nodes)
    schema = target._schema
    if any(result.alias_info is not None for result in schema.returns):
        given = named(target, node.args, node.kwargs)
        return [n for _, argument, value in given if argument.alias_info is not None for n in _nodes(value)]
    return list(node.all_input_nodes) if _hidden(target) else []


def _nodes(value: Any) -> Iterator[fx.Node]:
    """Yield the nodes in an argument, also inside lists."""
    if isinstance(value, fx.Node):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _nodes(one)
