"""Read VNN-LIB files: version 1 by a reader of polycert's own, version 2 with the package `vnnlib`."""

from __future__ import annotations

import gc
import math
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polycert.errors import PolycertError
from polycert.runtime import limits
from polycert.verification.vnnlib.constraints import (
    Condition,
    Constraint,
    Expression,
    check_cases,
    conjunction,
    parse,
    place,
    shown,
)
from polycert.verification.vnnlib.property import Clause, Ends, Property, Sides, boxes_of, clause_of


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
    with _no_collections():
        return _parsed(text)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keep the collector of cyclic garbage from looking at millions of lists again and again: there is none in them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _parsed(text: str) -> Property:
    """Return the same as `parse_property`, at whatever pace the collector allows."""
    expressions = parse(text)
    if any(isinstance(e, list) and e[:1] and e[0] in ("declare-network", "vnnlib-version") for e in expressions):
        return parse_second(text)
    return property_of(*_first(expressions))


def _first(expressions: list[Expression]) -> tuple[int, int, Condition]:
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
    return _count(names, "X_"), _count(names, "Y_"), conjunction(asserted)


def _count(names: set[str], prefix: str) -> int:
    """Return how many variables with a prefix are declared; they must be numbered from 0 without gaps."""
    unknown = [name for name in names if not name.startswith(("X_", "Y_")) or place(name) is None]
    if unknown:
        raise PolycertError(f"the variable {shown(min(unknown))} is neither X_… nor Y_…")
    numbers = {place(name) or 0 for name in names if name.startswith(prefix)}
    if not numbers or max(numbers) != len(numbers) - 1:
        raise PolycertError(f"the variables {prefix}… must be declared, and numbered from 0 without gaps")
    return len(numbers)


def property_of(inputs: int, outputs: int, found: Condition) -> Property:
    """Return the property of a condition, whose cases about one box are put together."""
    if not 1 <= inputs <= limits.VARIABLES or not 1 <= outputs <= limits.VARIABLES:
        raise PolycertError(f"a property has 1 to {limits.VARIABLES} inputs and outputs")
    rows = {id(row): row for case in found.cases for row in case.rows}
    for row in rows.values():
        _check_row(row, inputs, outputs)
    by_box = _by_box(found, inputs)
    count = sum(max(len(part), 1) for parts in by_box.values() for part in parts)
    limits.checked_shape((count, outputs), "the conditions on outputs")
    limits.checked_shape((len(by_box), inputs), "the bounds of inputs")
    made: dict[tuple[int, ...], Clause] = {}  # by the places in memory of the rows, which many cases share
    asked: dict[Ends, tuple[Clause, ...]] = {}
    for ends, parts in by_box.items():
        keys = [tuple(map(id, part)) for part in parts]
        made.update((key, clause_of(part, outputs)) for key, part in zip(keys, parts, strict=True) if key not in made)
        asked[ends] = tuple(made[key] for key in keys)
    return Property(boxes_of(asked), inputs, outputs)


def _by_box(found: Condition, inputs: int) -> dict[Ends, list[list[Constraint]]]:
    """Return the other constraints of the cases by their boxes. Cases without bounds of their own share a box."""
    by_box: dict[Ends, list[list[Constraint]]] = defaultdict(list)
    common = Sides(inputs).add(found.bounds if found.cases else ())
    shared: Ends | None = None
    held = 0
    for case in found.cases:
        if not case.bounds:
            shared = common.ends() if shared is None else shared
            by_box[shared].append(case.rows)
            continue
        held += len(common) + len(case.bounds)
        check_cases(len(found.cases), held)
        by_box[Sides(inputs, common).add(case.bounds).ends()].append(case.rows)
    return by_box


def _check_row(row: Constraint, inputs: int, outputs: int) -> None:
    """Refuse constraints that are not on outputs alone; bounds of single inputs are none of them."""
    names = row.term.factors
    for name in names:
        limit, number = {"X_": inputs, "Y_": outputs}.get(name[:2], 0), place(name)
        if number is None or number >= limit:
            raise PolycertError(f"the variable {shown(name)} is not declared")
    if not names:
        raise PolycertError("a condition has no variable")
    if not all(name.startswith("Y_") for name in names):
        raise PolycertError("inputs must be bounded one by one: conditions on several inputs are not supported")


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
    conditions = (_expression(assertion.expr) for assertion in query.assertions)
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
