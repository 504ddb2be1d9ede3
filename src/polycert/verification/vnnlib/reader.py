"""Read VNN-LIB files: version 1 by a reader of polycert's own, version 2 with the package `vnnlib`."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

from polycert.errors import PolycertError
from polycert.runtime import limits
from polycert.verification.vnnlib.constraints import (
    Clauses,
    Constraint,
    Expression,
    clauses,
    conjunction,
    parse,
    place,
    shown,
)
from polycert.verification.vnnlib.property import Box, Property, box_of, clause_of


def read_property(path: str | os.PathLike[str]) -> Property:
    """Return the property in a VNN-LIB file, `.vnnlib` or `.vnnlib.gz`.

    Raises:
        PolycertError: if the file is malformed, or asks for more than boxes of inputs and linear outputs.
    """
    where = Path(path)
    if not where.is_file():
        raise PolycertError(f"there is no file {str(path)!r}")
    text = limits.read_text(where)
    try:
        return parse_property(text)
    except PolycertError as error:
        raise PolycertError(f"cannot read {where.name}: {error}") from None


def parse_property(text: str) -> Property:
    """Return the property in the text of a VNN-LIB file of either version."""
    expressions = parse(text)
    if any(isinstance(e, list) and e[:1] and e[0] in ("declare-network", "vnnlib-version") for e in expressions):
        return parse_second(text)
    return property_of(*_first(expressions))


def _first(expressions: list[Expression]) -> tuple[int, int, Clauses]:
    """Return the numbers of inputs and outputs and the condition of a version 1 file."""
    names: set[str] = set()
    asserted: list[Expression] = []
    for expression in expressions:
        match expression:
            case ["declare-const", str(name), "Real"] | ["declare-fun", str(name), [], "Real"]:
                names.add(name)
            case ["assert", condition]:
                asserted.append(condition)
            case _:
                raise PolycertError(f"{shown(expression)} is neither a declaration of a real number nor an assertion")
    return _count(names, "X_"), _count(names, "Y_"), conjunction(map(clauses, asserted))


def _count(names: set[str], prefix: str) -> int:
    """Return how many variables with a prefix are declared; they must be numbered from 0 without gaps."""
    unknown = [name for name in names if not name.startswith(("X_", "Y_")) or place(name) is None]
    if unknown:
        raise PolycertError(f"the variable {shown(min(unknown))} is neither X_… nor Y_…")
    numbers = {place(name) or 0 for name in names if name.startswith(prefix)}
    if not numbers or max(numbers) != len(numbers) - 1:
        raise PolycertError(f"the variables {prefix}… must be declared, and numbered from 0 without gaps")
    return len(numbers)


def property_of(inputs: int, outputs: int, found: Clauses) -> Property:
    """Return the property of a condition, whose cases about one box are put together."""
    if not 1 <= inputs <= limits.VARIABLES or not 1 <= outputs <= limits.VARIABLES:
        raise PolycertError(f"a property has 1 to {limits.VARIABLES} inputs and outputs")
    by_box: dict[object, list[list[Constraint]]] = defaultdict(list)
    boxes: dict[object, list[Constraint]] = {}
    for case in found:
        about_inputs, about_outputs = _apart(case, inputs, outputs)
        key: object = frozenset((tuple(c.term.factors.items()), c.term.constant, c.strict) for c in about_inputs)
        boxes[key] = about_inputs
        by_box[key].append(about_outputs)
    rows = sum(len(part) for parts in by_box.values() for part in parts)
    limits.checked_shape((rows, outputs), "the conditions on outputs")
    limits.checked_shape((len(boxes), inputs), "the bounds of inputs")
    made: list[Box] = []
    for key, about_inputs in boxes.items():
        asked = tuple(clause_of(part, outputs) for part in by_box[key])
        box = box_of(about_inputs, inputs, asked)
        made += [] if box is None else [box]
    return Property(tuple(made), inputs, outputs)


def _apart(case: list[Constraint], inputs: int, outputs: int) -> tuple[list[Constraint], list[Constraint]]:
    """Return the constraints of a case on inputs and those on outputs."""
    about_inputs: list[Constraint] = []
    about_outputs: list[Constraint] = []
    for constraint in case:
        names = constraint.term.factors
        for name in names:
            limit, number = {"X_": inputs, "Y_": outputs}.get(name[:2], 0), place(name)
            if number is None or number >= limit:
                raise PolycertError(f"the variable {shown(name)} is not declared")
        if not names:
            raise PolycertError("a condition has no variable")
        if all(name.startswith("Y_") for name in names):
            about_outputs.append(constraint)
        elif len(names) == 1:
            about_inputs.append(constraint)
        else:
            raise PolycertError("inputs must be bounded one by one: conditions on several inputs are not supported")
    return about_inputs, about_outputs


def parse_second(text: str) -> Property:
    """Return the property in the text of a VNN-LIB 2.0 file."""
    try:
        import vnnlib
    except ImportError:
        raise PolycertError("VNN-LIB 2.0 needs the package vnnlib: pip install 'polycert[vnnlib]'") from None
    try:
        query = vnnlib.parse_query_string(text)
    except (vnnlib.VNNLibException, ValueError, RuntimeError, IndexError, OverflowError) as error:
        raise PolycertError(str(error)[:200]) from None
    if len(query.networks) != 1 or len(query.networks[0].inputs) != 1 or len(query.networks[0].outputs) != 1:
        raise PolycertError("only one network with one input and one output is supported")
    network = query.networks[0]
    parts = (network.inputs[0], network.outputs[0])
    if other := {part.dtype.name for part in parts} - _REALS:
        raise PolycertError(f"variables of type {min(other)} are not supported: declare them float32, float64 or Real")
    sizes = [math.prod(part.shape) for part in parts]
    conditions = (clauses(_expression(assertion.expr)) for assertion in query.assertions)
    return property_of(sizes[0], sizes[1], conjunction(conditions))


def _expression(node: Any) -> Expression:
    """Return a node of the parser's tree as the expression that version 1 would write."""
    kind = type(node).__name__
    if kind in _LISTS:
        return [_LISTS[kind], *(_expression(part) for part in node.args)]
    if kind in _PAIRS:
        return [_PAIRS[kind], _expression(node.lhs), _expression(node.rhs)]
    if kind == "Negate":
        return ["-", _expression(node.expr)]
    if kind == "Minus":
        return ["-", _expression(node.head), *(_expression(part) for part in node.rest)]
    if kind == "Var":
        return _variable(node)
    if hasattr(node, "lexeme"):
        return str(node.lexeme)
    if hasattr(node, "value"):
        return repr(node.value)
    raise PolycertError(f"{kind} is not supported")


def _variable(node: Any) -> str:
    """Return the name of a variable's entry, numbered as version 1 would."""
    place = 0
    for index, size in zip(node.indices, node.shape, strict=True):
        place = place * int(size) + int(index)
    prefix = {"Input": "X_", "Output": "Y_"}.get(node.kind.name)
    if prefix is None:
        raise PolycertError(f"the variable {node.name!r} is neither an input nor an output")
    return f"{prefix}{place}"


_REALS = {"Real", "F32", "F64"}  # types whose numbers a box holds, as far as the network's own type does
_LISTS = {"And": "and", "Or": "or", "Plus": "+", "Multiply": "*"}
_PAIRS = {"LessEqual": "<=", "GreaterEqual": ">=", "LessThan": "<", "GreaterThan": ">", "Equal": "="}
