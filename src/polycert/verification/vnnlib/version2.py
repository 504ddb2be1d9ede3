"""VNN-LIB 2.0 through the package `vnnlib`: its syntax tree becomes the same linear constraints."""

from __future__ import annotations

import math
from typing import Any

from polycert.errors import PolycertError
from polycert.verification.vnnlib.constraints import clauses, conjunction
from polycert.verification.vnnlib.expressions import Expression
from polycert.verification.vnnlib.property import Property


def parse_second(text: str) -> Property:
    """A property from the text of a VNN-LIB 2.0 file."""
    from polycert.verification.vnnlib.reader import property_of

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
    sizes = [math.prod(part.shape) for part in (network.inputs[0], network.outputs[0])]
    conditions = (clauses(_expression(assertion.expr)) for assertion in query.assertions)
    return property_of(sizes[0], sizes[1], conjunction(conditions))


def _expression(node: Any) -> Expression:
    """A node of the tree as the expression that version 1 would write."""
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
    place = 0
    for index, size in zip(node.indices, node.shape, strict=True):
        place = place * int(size) + int(index)
    prefix = {"Input": "X_", "Output": "Y_"}.get(node.kind.name)
    if prefix is None:
        raise PolycertError(f"the variable {node.name!r} is neither an input nor an output")
    return f"{prefix}{place}"


_LISTS = {"And": "and", "Or": "or", "Plus": "+", "Multiply": "*"}
_PAIRS = {"LessEqual": "<=", "GreaterEqual": ">=", "LessThan": "<", "GreaterThan": ">", "Equal": "="}
