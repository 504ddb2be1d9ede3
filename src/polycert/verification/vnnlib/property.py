"""Properties: is there an input in a box whose output lies in one of several polyhedra?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from polycert.errors import PolycertError
from polycert.verification.vnnlib.constraints import Constraint, Exact, InputBound, Term, place, shown

if TYPE_CHECKING:
    from typing import Self

EXACT = 2**53  # float64 holds every whole number up to this size
TOGETHER = 2**16  # ends of sides that are rounded together


@dataclass(frozen=True, eq=False)
class Clause:
    """A polyhedron of outputs: `rows . y + constants <= 0` in every row (`< 0` where strict)."""

    rows: np.ndarray  # [k, outputs] float64, exact
    constants: np.ndarray  # [k] float64, never above the exact constants
    strict: np.ndarray  # [k] bool
    exact: tuple[Fraction, ...] | None = None  # the exact constants; None if `constants` are exact

    def holds(self, y: np.ndarray) -> bool:
        """Whether an output fulfils every row, without any rounding."""
        if not np.isfinite(y).all():
            return False
        exact = self.exact or tuple(map(Fraction, self.constants.tolist()))
        return all(
            value < 0 or (value == 0 and not strict)
            for value, strict in zip(map(_value, self.rows, [y] * len(exact), exact), self.strict, strict=True)
        )


def _value(row: np.ndarray, y: np.ndarray, constant: Fraction) -> Fraction:
    """Return `row . y + constant` without rounding."""
    used = row.nonzero()[0]
    return sum((Fraction(a) * Fraction(b) for a, b in zip(row[used].tolist(), y[used].tolist(), strict=True)), constant)


@dataclass(frozen=True, eq=False)
class Box:
    """A box of inputs, and the outputs that the property asks for there: those in any of the clauses.

    The exact box lies between `lower` and `upper`. `inner` lies in the exact box wherever float64 allows it.
    """

    lower: np.ndarray  # [inputs] float64
    upper: np.ndarray
    inner: tuple[np.ndarray, np.ndarray]
    clauses: tuple[Clause, ...]
    narrow: np.ndarray  # [inputs] bool: whether float64 has no number between the exact ends of a side

    @property
    def free(self) -> int:
        """Return how many inputs can take more than one value.

        A side whose ends are one decimal is a point, even if no float64 number equals it.
        """
        return int((self.inner[1] > self.inner[0]).sum())

    def holds(self, x: np.ndarray, y: np.ndarray) -> bool:
        """Whether an input and its output are a counterexample: they lie in the box and in a clause."""
        inside = bool(((x >= self.inner[0]) & (x <= self.inner[1])).all())
        return inside and any(clause.holds(y) for clause in self.clauses)


@dataclass(frozen=True, eq=False)
class Property:
    """Several boxes of inputs; the verdict `sat` means that one of them has a counterexample."""

    boxes: tuple[Box, ...]
    inputs: int
    outputs: int


class Ends(NamedTuple):
    """The exact ends of the sides of a box."""

    lower: tuple[Exact, ...]
    upper: tuple[Exact, ...]


class Sides:
    """The bounds of inputs, by the names of the inputs; the tightest ones count.

    Args:
        inputs: how many inputs there are.
        start: bounds that hold as well.
    """

    def __init__(self, inputs: int, start: Sides | None = None) -> None:
        self.inputs = inputs
        self.lower: dict[str, Exact] = {} if start is None else dict(start.lower)
        self.upper: dict[str, Exact] = {} if start is None else dict(start.upper)

    def __len__(self) -> int:
        return len(self.lower) + len(self.upper)

    def add(self, bounds: Iterable[InputBound]) -> Self:
        """Add bounds, and return the sides."""
        for name, is_upper, value, strict in bounds:
            if strict:
                raise PolycertError(f"the bound of {shown(name)} is strict: only <= and >= are supported for inputs")
            held = self.upper if is_upper else self.lower
            before = held.setdefault(name, value)
            if (value < before) if is_upper else (value > before):
                held[name] = value
        return self

    def ends(self) -> Ends:
        """Return the ends of all sides; each input must have both, and other variables have none."""
        if len(self.lower) == len(self.upper) == self.inputs:
            try:
                return Ends(*(tuple([held[name] for name in _names(self.inputs)]) for held in (self.lower, self.upper)))
            except KeyError:
                pass  # some input has no bound, and a variable that is none has one
        numbers = {name: place(name) for held in (self.lower, self.upper) for name in held}
        for name, number in numbers.items():
            if number is None or number >= self.inputs:
                raise PolycertError(f"the variable {shown(name)} is not declared")
        both = {numbers[name] for name in self.lower.keys() & self.upper.keys()}
        missing = next(k for k in range(self.inputs) if k not in both)
        raise PolycertError(f"the input X_{missing} has no lower or no upper bound")


@lru_cache(maxsize=1)
def _names(inputs: int) -> tuple[str, ...]:
    """Return the names of the inputs."""
    return tuple([f"X_{k}" for k in range(inputs)])


def boxes_of(asked: Mapping[Ends, tuple[Clause, ...]]) -> tuple[Box, ...]:
    """Return the boxes with these ends and clauses, without those that are empty."""
    kept = [ends for ends in asked if all(a <= b for a, b in zip(*ends, strict=True))]
    step = max(1, TOGETHER // len(kept[0].lower)) if kept else 1
    parts = (kept[k : k + step] for k in range(0, len(kept), step))
    return tuple(box for part in parts for box in _rounded(part, [asked[ends] for ends in part]))


def _rounded(some: Sequence[Ends], clauses: Sequence[tuple[Clause, ...]]) -> Iterator[Box]:
    """Yield boxes whose sides are rounded together, which takes far less time than one by one."""
    (low_down, low, low_up), (high_down, high, high_up) = (
        [part.reshape(len(some), -1) for part in _enclosed([value for ends in some for value in ends[k]])]
        for k in (0, 1)
    )
    narrow = low_up > high_down
    first, last = np.where(narrow, low, low_up), np.where(narrow, high, high_down)
    for k, own in enumerate(clauses):
        yield Box(low_down[k], high_up[k], (first[k], last[k]), own, narrow[k])


def clause_of(constraints: Sequence[Constraint], outputs: int) -> Clause:
    """Return constraints over outputs as a clause; without constraints it has one row that always holds."""
    constraints = constraints or [Constraint(Term({}, Fraction(-1)), strict=False)]
    rows = np.zeros((len(constraints), outputs))
    exact = []
    for k, (term, _) in enumerate(constraints):
        scale = Fraction(1)
        if any(Fraction(_near(factor)) != factor for factor in term.factors.values()):
            scale = Fraction(math.lcm(*(factor.denominator for factor in term.factors.values())))
        for name, factor in term.factors.items():
            if abs(factor * scale) > EXACT:
                raise PolycertError(f"the factor of {name} has too many digits")
            rows[k, int(name[2:])] += float(factor * scale)
        exact.append(term.constant * scale)
    constants = np.array([_down(constant) for constant in exact], dtype=np.float64)
    return Clause(rows, constants, np.array([c.strict for c in constraints], dtype=bool), tuple(exact))


def _near(value: Exact) -> float:
    """Return the nearest float64 number; it is 0.0 and not -0.0 for 0."""
    try:
        near = float(value)
    except OverflowError:
        near = math.inf
    if math.isinf(near):
        raise PolycertError("a number is too large for double precision")
    return near + 0.0


def _down(value: Fraction) -> float:
    """Return the largest float64 number that is not above a fraction."""
    near = _near(value)
    return near if Fraction(near) <= value else math.nextafter(near, -math.inf)


def _enclosed(values: Sequence[Exact]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the next float64 numbers that are not above, nearest to, and not below exact values, `[values]` each."""
    near = np.array([_near(value) for value in values], dtype=np.float64)
    nearest = near.tolist()
    above = np.array([a > b for a, b in zip(nearest, values, strict=True)], dtype=bool)
    below = np.array([a < b for a, b in zip(nearest, values, strict=True)], dtype=bool)
    down, up = (np.nextafter(near, end) for end in (-np.inf, np.inf))
    return np.where(above, down, near), near, np.where(below, up, near)
