"""S-expressions, and the linear constraints over named variables that they spell, in exact fractions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import NamedTuple

from polycert.errors import PolycertError
from polycert.runtime import limits
from polycert.runtime.limits import DEEPEST

Expression = str | list["Expression"]

_TOKEN = re.compile(r";[^\r\n]*|[()]|[^\s();]+")


def parse(text: str) -> list[Expression]:
    """All expressions of a text, one after the other: a word, or a list of expressions."""
    top: list[Expression] = []
    stack = [top]
    for word in _words(text):
        if word == "(":
            inner: list[Expression] = []
            stack[-1].append(inner)
            stack.append(inner)
            if len(stack) > DEEPEST:
                raise PolycertError(f"parentheses are nested deeper than {DEEPEST}")
        elif word == ")":
            stack.pop()
            if not stack:
                raise PolycertError("a parenthesis is closed that was never opened")
        else:
            stack[-1].append(word)
    if len(stack) > 1:
        raise PolycertError("a parenthesis is never closed: the file is cut off")
    return top


def _words(text: str) -> Iterator[str]:
    for match in _TOKEN.finditer(text):
        if not match[0].startswith(";"):
            yield match[0]


_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?(?P<exponent>\d+))?", re.ASCII)
_VARIABLE = re.compile(r"[XY]_(0|[1-9]\d*)", re.ASCII)
LONGEST = 400  # characters of a number
LARGEST_EXPONENT = 3  # its digits
PLACES = len(str(limits.VARIABLES))  # digits of a variable's number
COMPARISONS = ("<=", ">=", "<", ">", "=")


class Term(NamedTuple):
    """`sum of factors * variables + constant`."""

    factors: dict[str, Fraction]
    constant: Fraction

    def times(self, factor: Fraction) -> Term:
        """Scaled."""
        return Term({k: _within(value * factor) for k, value in self.factors.items()}, _within(self.constant * factor))

    def plus(self, *others: Term) -> Term:
        """The sum, without variables that cancel."""
        total = dict(self.factors)
        for other in others:
            for name, value in other.factors.items():
                total[name] = total.get(name, Fraction(0)) + value
        constant = sum((other.constant for other in others), self.constant)
        return Term({name: value for name, value in total.items() if value}, constant)


def _within(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > limits.BITS:
        raise PolycertError(f"a product of numbers has more than {limits.BITS} bits")
    return value


class Constraint(NamedTuple):
    """`term <= 0`, or `< 0` if strict."""

    term: Term
    strict: bool


Clauses = list[list[Constraint]]


def number(word: str) -> Fraction | None:
    """A decimal number exactly, or None."""
    found = _NUMBER.fullmatch(word)
    if found is None:
        return None
    if len(word) > LONGEST or len(found["exponent"] or "") > LARGEST_EXPONENT:
        raise PolycertError(
            f"the number {shown(word)} has more than {LONGEST} characters or {LARGEST_EXPONENT} digits of exponent"
        )
    return Fraction(word)


def place(name: str) -> int | None:
    """The number k of a variable spelled `X_k` or `Y_k`, or None if no property can have it."""
    found = _VARIABLE.fullmatch(name)
    return int(found[1]) if found and len(found[1]) <= PLACES else None


def term(expression: Expression) -> Term:
    """A linear term: a number, a variable, or a sum, difference or product of terms."""
    if isinstance(expression, str):
        value = number(expression)
        return Term({expression: Fraction(1)}, Fraction(0)) if value is None else Term({}, value)
    if len(expression) < 2 or expression[0] not in ("+", "-", "*"):
        raise PolycertError(f"{shown(expression)} is not a linear term")
    parts = [term(part) for part in expression[1:]]
    if expression[0] == "*":
        return _product(parts, expression)
    sign = Fraction(-1 if expression[0] == "-" else 1)
    if len(parts) == 1:
        return parts[0].times(sign)
    return parts[0].plus(*(part.times(sign) for part in parts[1:]))


def _product(parts: list[Term], expression: Expression) -> Term:
    total = parts[0]
    for part in parts[1:]:
        if total.factors and part.factors:
            raise PolycertError(f"{shown(expression)} is not linear")
        total = total.times(part.constant) if total.factors else part.times(total.constant)
    return total


def clauses(expression: Expression) -> Clauses:
    """A condition as a disjunction of conjunctions of constraints."""
    if isinstance(expression, str) or not expression or not isinstance(expression[0], str):
        raise PolycertError(f"{shown(expression)} is not a condition")
    head, parts = expression[0], expression[1:]
    if head == "or":
        return disjunction(map(clauses, parts))
    if head == "and":
        return conjunction(map(clauses, parts))
    if head not in COMPARISONS or len(parts) != 2:
        raise PolycertError(f"{shown(expression)} is not a condition: <=, >=, <, >, =, and, or are known")
    left, right = term(parts[0]), term(parts[1])
    below = Constraint(left.plus(right.times(Fraction(-1))), head == "<")
    above = Constraint(right.plus(left.times(Fraction(-1))), head == ">")
    if head == "=":
        return [[below, above]]
    return [[below if head.startswith("<") else above]]


def disjunction(parts: Iterable[Clauses]) -> Clauses:
    """Any of several conditions."""
    result: Clauses = []
    held = 0
    for part in parts:
        held += sum(map(len, part))
        _check_cases(len(result) + len(part), held)
        result += part
    return result


def conjunction(parts: Iterable[Clauses]) -> Clauses:
    """All of several conditions."""
    result: Clauses = [[]]
    held = 0
    for part in parts:
        held = held * len(part) + sum(map(len, part)) * len(result)
        _check_cases(len(result) * len(part), held)
        if len(part) == 1:  # the common case: extend in place
            for clause in result:
                clause.extend(part[0])
        else:
            result = [first + second for first in result for second in part]
    return result


def _check_cases(cases: int, constraints: int) -> None:
    if cases > limits.CASES or constraints > limits.CONSTRAINTS:
        raise PolycertError(f"the condition has more than {limits.CASES} cases or {limits.CONSTRAINTS} constraints")


def shown(expression: Expression) -> str:
    """The beginning of an expression, for a sentence."""
    text = str(expression).replace("'", "").replace(",", "").replace("[", "(").replace("]", ")")
    return text if len(text) < 60 else text[:57] + "..."
