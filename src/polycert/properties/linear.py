"""Linear terms and constraints over named variables, in exact fractions."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from polycert.errors import PolycertError
from polycert.properties.expressions import Expression

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?")
MOST_CLAUSES = 100_000
COMPARISONS = ("<=", ">=", "<", ">", "=")


class Term(NamedTuple):
    """`sum of factors * variables + constant`."""

    factors: dict[str, Fraction]
    constant: Fraction

    def times(self, factor: Fraction) -> Term:
        """Scaled."""
        return Term({name: value * factor for name, value in self.factors.items()}, self.constant * factor)

    def plus(self, other: Term) -> Term:
        """The sum, without variables that cancel."""
        total = dict(self.factors)
        for name, value in other.factors.items():
            total[name] = total.get(name, Fraction(0)) + value
        return Term({name: value for name, value in total.items() if value}, self.constant + other.constant)


class Constraint(NamedTuple):
    """`term <= 0`, or `< 0` if strict."""

    term: Term
    strict: bool


Clauses = list[list[Constraint]]


def number(word: str) -> Fraction | None:
    """A decimal number exactly, or None."""
    return Fraction(word) if len(word) <= 400 and _NUMBER.fullmatch(word) else None


def term(expression: Expression) -> Term:
    """A linear term: a number, a variable, or a sum, difference or product of terms."""
    if isinstance(expression, str):
        value = number(expression)
        return Term({expression: Fraction(1)}, Fraction(0)) if value is None else Term({}, value)
    if not expression or not isinstance(expression[0], str) or expression[0] not in "+-*" or len(expression) < 2:
        raise PolycertError(f"{_shown(expression)} is not a linear term")
    parts = [term(part) for part in expression[1:]]
    if expression[0] == "*":
        return _product(parts, expression)
    sign = Fraction(-1 if expression[0] == "-" else 1)
    if len(parts) == 1:
        return parts[0].times(sign)
    total = parts[0]
    for part in parts[1:]:
        total = total.plus(part.times(sign))
    return total


def _product(parts: list[Term], expression: Expression) -> Term:
    total = parts[0]
    for part in parts[1:]:
        if total.factors and part.factors:
            raise PolycertError(f"{_shown(expression)} is not linear")
        total = total.times(part.constant) if total.factors else part.times(total.constant)
    return total


def clauses(expression: Expression) -> Clauses:
    """A condition as a disjunction of conjunctions of constraints."""
    if isinstance(expression, str) or not expression or not isinstance(expression[0], str):
        raise PolycertError(f"{_shown(expression)} is not a condition")
    head, parts = expression[0], expression[1:]
    if head == "or":
        return [clause for part in parts for clause in clauses(part)]
    if head == "and":
        return conjunction([clauses(part) for part in parts])
    if head not in COMPARISONS or len(parts) != 2:
        raise PolycertError(f"{_shown(expression)} is not a condition: <=, >=, <, >, =, and, or are known")
    left, right = term(parts[0]), term(parts[1])
    below = Constraint(left.plus(right.times(Fraction(-1))), head == "<")
    above = Constraint(right.plus(left.times(Fraction(-1))), head == ">")
    if head == "=":
        return [[below, above]]
    return [[below if head.startswith("<") else above]]


def conjunction(parts: list[Clauses]) -> Clauses:
    """All of several conditions."""
    result: Clauses = [[]]
    for part in parts:
        if len(result) * len(part) > MOST_CLAUSES:
            raise PolycertError(f"the condition has more than {MOST_CLAUSES} cases")
        if len(part) == 1:  # the common case: extend in place
            for clause in result:
                clause.extend(part[0])
        else:
            result = [first + second for first in result for second in part]
    return result


def _shown(expression: Expression) -> str:
    text = str(expression).replace("'", "").replace(",", "").replace("[", "(").replace("]", ")")
    return text if len(text) < 60 else text[:57] + "..."
