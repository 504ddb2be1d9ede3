"""Properties: is there an input in a box whose output lies in one of several polyhedra?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from polycert.errors import PolycertError
from polycert.verification.vnnlib.constraints import Constraint, Term

EXACT = 2**53  # float64 holds every whole number up to this size


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


def box_of(constraints: Sequence[Constraint], inputs: int, clauses: tuple[Clause, ...]) -> Box | None:
    """Return the box that constraints of one input each describe, or None if it is empty."""
    low: list[Fraction | None] = [None] * inputs
    high: list[Fraction | None] = [None] * inputs
    for term, strict in constraints:
        ((name, factor),) = term.factors.items()
        if strict:
            raise PolycertError(f"the bound of {name} is strict: only <= and >= are supported for inputs")
        k, value = int(name[2:]), -term.constant / factor
        if factor > 0:
            high[k] = value if high[k] is None else min(value, high[k])  # type: ignore[type-var]
        else:
            low[k] = value if low[k] is None else max(value, low[k])  # type: ignore[type-var]
    missing = [k for k in range(inputs) if low[k] is None or high[k] is None]
    if missing:
        raise PolycertError(f"the input X_{missing[0]} has no lower or no upper bound")
    pairs = [(a, b) for a, b in zip(low, high, strict=True) if a is not None and b is not None]
    if any(a > b for a, b in pairs):
        return None
    ends = [(_down(a), _up(b), *_inside(a, b)) for a, b in pairs]
    lower, upper, first, last = (np.array(column, dtype=np.float64) for column in zip(*ends, strict=True))
    narrow = np.array([_up(a) > _down(b) for a, b in pairs])
    return Box(lower, upper, (first, last), clauses, narrow)


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


def _near(value: Fraction) -> float:
    """Return the nearest float64 number."""
    try:
        return float(value)
    except OverflowError:
        raise PolycertError("a number is too large for double precision") from None


def _down(value: Fraction) -> float:
    """Return the largest float64 number that is not above a fraction."""
    near = _near(value)
    return near if Fraction(near) <= value else math.nextafter(near, -math.inf)


def _up(value: Fraction) -> float:
    """Return the least float64 number that is not below a fraction."""
    return -_down(-value)


def _inside(low: Fraction, high: Fraction) -> tuple[float, float]:
    """Return the ends of the float64 numbers between two fractions; twice the nearest number if there is none."""
    first, last = _up(low), _down(high)
    return (first, last) if first <= last else (_near(low), _near(low))
