"""S-expressions, and the linear constraints over named variables that they write, in exact fractions."""

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
    """Return all expressions of a text, in order; each is a word or a list of expressions."""
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
    """Yield the words and parentheses of a text, without its comments."""
    for match in _TOKEN.finditer(text):
        if not match[0].startswith(";"):
            yield match[0]


_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?(?P<exponent>\d+))?", re.ASCII)
_VARIABLE = re.compile(r"[XY]_(0|[1-9]\d*)", re.ASCII)
LONGEST = 400  # characters of a number, at most
LARGEST_EXPONENT = 3  # digits of a number's exponent, at most
PLACES = len(str(limits.VARIABLES))  # digits of a variable's number, at most
COMPARISONS = ("<=", ">=", "<", ">", "=")


class Term(NamedTuple):
    """The linear term `sum of factors * variables + constant`; factors are kept by the variable's name."""

    factors: dict[str, Fraction]
    constant: Fraction

    def times(self, factor: Fraction) -> Term:
        """Return the term times a factor."""
        return Term({k: _within(value * factor) for k, value in self.factors.items()}, _within(self.constant * factor))

    def plus(self, *others: Term) -> Term:
        """Return the sum of terms, without variables that cancel."""
        total = dict(self.factors)
        for other in others:
            for name, value in other.factors.items():
                total[name] = total.get(name, Fraction(0)) + value
        constant = sum((other.constant for other in others), self.constant)
        return Term({name: value for name, value in total.items() if value}, constant)


def _within(value: Fraction) -> Fraction:
    """Return a value that is not too long; others are refused."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > limits.BITS:
        raise PolycertError(f"a product of numbers has more than {limits.BITS} bits")
    return value


class Constraint(NamedTuple):
    """The constraint `term <= 0`, or `term < 0` if it is strict."""

    term: Term
    strict: bool


Clauses = list[list[Constraint]]  # a disjunction of conjunctions


def number(word: str) -> Fraction | None:
    """Return the exact value of a decimal number, or None if the word is no number."""
    found = _NUMBER.fullmatch(word)
    if found is None:
        return None
    if len(word) > LONGEST or len(found["exponent"] or "") > LARGEST_EXPONENT:
        raise PolycertError(
            f"the number {shown(word)} has more than {LONGEST} characters or {LARGEST_EXPONENT} digits of exponent"
        )
    return Fraction(word)


def place(name: str) -> int | None:
    """Return the number k of a variable spelled `X_k` or `Y_k`, or None if no property can have such a variable."""
    found = _VARIABLE.fullmatch(name)
    return int(found[1]) if found and len(found[1]) <= PLACES else None


def term(expression: Expression) -> Term:
    """Return the linear term that an expression writes: a number, a variable, or a sum, difference or product."""
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
    """Return the product of terms, of which at most one may have variables."""
    total = parts[0]
    for part in parts[1:]:
        if total.factors and part.factors:
            raise PolycertError(f"{shown(expression)} is not linear")
        total = total.times(part.constant) if total.factors else part.times(total.constant)
    return total


def clauses(expression: Expression) -> Clauses:
    """Return a condition as a disjunction of conjunctions of constraints."""
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
    """Return the condition that any of several conditions holds."""
    result: Clauses = []
    held = 0
    for part in parts:
        held += sum(map(len, part))
        _check_cases(len(result) + len(part), held)
        result += part
    return result


def conjunction(parts: Iterable[Clauses]) -> Clauses:
    """Return the condition that all of several conditions hold."""
    result: Clauses = [[]]
    held = 0
    for part in parts:
        held = held * len(part) + sum(map(len, part)) * len(result)
        _check_cases(len(result) * len(part), held)
        if len(part) == 1:  # the common case is extended in place
            for clause in result:
                clause.extend(part[0])
        else:
            result = [first + second for first in result for second in part]
    return result


def _check_cases(cases: int, constraints: int) -> None:
    """Refuse conditions that would take too much memory."""
    if cases > limits.CASES or constraints > limits.CONSTRAINTS:
        raise PolycertError(f"the condition has more than {limits.CASES} cases or {limits.CONSTRAINTS} constraints")


def shown(expression: Expression) -> str:
    """Return the beginning of an expression, to be shown in an error."""
    text = str(expression).replace("'", "").replace(",", "").replace("[", "(").replace("]", ")")
    return text if len(text) < 60 else text[:57] + "..."
