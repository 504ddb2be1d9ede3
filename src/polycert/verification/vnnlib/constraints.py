"""S-expressions, and the linear constraints over named variables that they write, in exact fractions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from polycert.errors import PolycertError
from polycert.runtime import limits
from polycert.runtime.limits import DEEPEST

Expression = str | list["Expression"]
Exact = Decimal | Fraction  # both compare without rounding, with each other and with floats

_REMARK = re.compile(r";[^\r\n]*")
_TOKEN = re.compile(r"\([^()]*\)|[()]|[^\s()]+")  # a list of words is a single token
PIECE = 2**20  # characters that are split into tokens at a time


def parse(text: str) -> list[Expression]:
    """Return all expressions of a text, in order; each is a word or a list of expressions."""
    top: list[Expression] = []
    stack = [top]
    for token in _tokens(text):
        if token == "(":
            inner: list[Expression] = []
            stack[-1].append(inner)
            stack.append(inner)
            _check_depth(len(stack))
        elif token == ")":
            stack.pop()
            if not stack:
                raise PolycertError("a parenthesis is closed that was never opened")
        elif token[0] == "(":
            _check_depth(len(stack) + 1)
            stack[-1].append([*token[1:-1].split()])
        else:
            stack[-1].append(token)
    if len(stack) > 1:
        raise PolycertError("a parenthesis is never closed: the file is cut off")
    return top


def _check_depth(depth: int) -> None:
    """Refuse lists within too many others."""
    if depth > DEEPEST:
        raise PolycertError(f"parentheses are nested deeper than {DEEPEST}")


def _tokens(text: str) -> Iterator[str]:
    """Yield the words, the parentheses and the lists of words in a text, without its remarks."""
    text = _REMARK.sub("", text) if ";" in text else text
    start = 0
    while start < len(text):
        end = _end_of_piece(text, start)
        yield from _TOKEN.findall(text, start, end)
        start = end


def _end_of_piece(text: str, start: int) -> int:
    """Return where some lines end behind which an assertion or a declaration starts, or the end of the text."""
    found = text.find("\n(", start + PIECE)
    return len(text) if found < 0 else found


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


class InputBound(NamedTuple):
    """The constraint `name <= value` or `name >= value` on a single input, without equality if it is strict."""

    name: str
    upper: bool
    value: Exact
    strict: bool


class Case(NamedTuple):
    """A conjunction: bounds of inputs, and other constraints."""

    bounds: list[InputBound]
    rows: list[Constraint]


class Condition(NamedTuple):
    """A disjunction of cases with bounds that are common to all of them, and are held once."""

    bounds: list[InputBound]
    cases: list[Case]

    @property
    def size(self) -> int:
        """Return how many constraints the cases hold together."""
        return sum(len(case.bounds) + len(case.rows) for case in self.cases)


def number(word: str) -> Fraction | None:
    """Return the exact value of a decimal number, or None if the word is no number."""
    return Fraction(word) if _is_number(word) else None


def _is_number(word: str) -> bool:
    """Whether a word is a decimal number; those that are too long are refused."""
    found = _NUMBER.fullmatch(word)
    if found is None:
        return False
    if len(word) > LONGEST or len(found["exponent"] or "") > LARGEST_EXPONENT:
        raise PolycertError(
            f"the number {shown(word)} has more than {LONGEST} characters or {LARGEST_EXPONENT} digits of exponent"
        )
    return True


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


def clauses(expression: Expression) -> Condition:
    """Return a condition as a disjunction of conjunctions of constraints."""
    if isinstance(expression, str) or not expression or not isinstance(expression[0], str):
        raise PolycertError(f"{shown(expression)} is not a condition")
    head, parts = expression[0], expression[1:]
    if head == "or":
        return disjunction(parts)
    if head == "and":
        return conjunction(parts)
    if head not in COMPARISONS or len(parts) != 2:
        raise PolycertError(f"{shown(expression)} is not a condition: <=, >=, <, >, =, and, or are known")
    left, right = parts
    if isinstance(left, str) and isinstance(right, str):
        return _condition(_compared_words(head, left, right))
    return _condition(_compared(head, left, right))


def _compared(head: str, first: Expression, second: Expression) -> tuple[Constraint, ...]:
    """Return the constraints that the comparison of two terms writes: two if they must be equal, else one."""
    left, right = term(first), term(second)
    below = Constraint(left.plus(right.times(Fraction(-1))), head == "<")
    above = Constraint(right.plus(left.times(Fraction(-1))), head == ">")
    if head == "=":
        return below, above
    return (below if head.startswith("<") else above,)


# The cases of a large file repeat few comparisons such as (<= Y_0 Y_1). Their constraints are shared.
_compared_words = lru_cache(maxsize=2**12)(_compared)


def _condition(constraints: Iterable[Constraint]) -> Condition:
    """Return the condition that several constraints hold; those on one input are bounds."""
    found = Condition([], [Case([], [])])
    for constraint in constraints:
        (names, constant), strict = constraint
        if len(names) == 1 and next(iter(names)).startswith("X_"):
            ((name, factor),) = names.items()
            found.bounds.append(InputBound(name, factor > 0, -constant / factor, strict))
        else:
            found.cases[0].rows.append(constraint)
    return found


def plain_bound(expression: Expression) -> InputBound | None:
    """Return what `(<= X_k number)` or `(>= X_k number)` says, and None for any other expression.

    Nearly all of a large file is written this way, and a decimal is made of its word faster than a fraction.
    """
    match expression:
        case ["<=" | ">=" as head, str(name), str(word)] if name.startswith("X_") and _is_number(word):
            return InputBound(name, head == "<=", Decimal(word), strict=False)
    return None


def disjunction(parts: Iterable[Expression]) -> Condition:
    """Return the condition that any of several conditions holds."""
    cases: list[Case] = []
    held = 0
    found = Condition([], cases)
    for count, part in enumerate(parts):
        found = clauses(part)
        held += found.size + len(found.bounds) * len(found.cases)
        check_cases(len(cases) + len(found.cases), held)
        cases += [Case(found.bounds + case.bounds, case.rows) for case in found.cases]
        if count:
            found = Condition([], cases)
    return found


def conjunction(parts: Iterable[Expression]) -> Condition:
    """Return the condition that all of several conditions hold."""
    bounds: list[InputBound] = []
    cases = [Case([], [])]
    held = 0
    for part in parts:
        bound = plain_bound(part)
        if bound is not None:
            bounds.append(bound)
            continue
        found = clauses(part)
        bounds += found.bounds
        held = held * len(found.cases) + found.size * len(cases)
        check_cases(len(cases) * len(found.cases), held)
        if len(found.cases) == 1:  # the common case is extended in place
            bounds += found.cases[0].bounds
            for case in cases:
                case.rows.extend(found.cases[0].rows)
        else:
            cases = [Case(a.bounds + b.bounds, a.rows + b.rows) for a in cases for b in found.cases]
    return Condition(bounds, cases)


def check_cases(cases: int, constraints: int) -> None:
    """Refuse conditions that would take too much memory."""
    if cases > limits.CASES or constraints > limits.CONSTRAINTS:
        raise PolycertError(f"the condition has more than {limits.CASES} cases or {limits.CONSTRAINTS} constraints")


def shown(expression: Expression) -> str:
    """Return the beginning of an expression, to be shown in an error."""
    text = str(expression).replace("'", "").replace(",", "").replace("[", "(").replace("]", ")")
    return text if len(text) < 60 else text[:57] + "..."
