"""The figures of an evaluation, one entry for each: name, meaning, unit, form, and the samples' values that give it.

Evaluation, report, tables, zoo and command line read them here; a further figure is one more entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Columns = Mapping[str, np.ndarray]  # what was measured on each sample, `[n]` each
Pair = tuple[float, float]
Values = Callable[[Columns, float], np.ndarray]  # of eps and the columns: what a figure sums up
STATUSES = ROBUST, FALSIFIED, UNKNOWN = "robust", "falsified", "unknown"  # of exact verdicts
PROOFS = {"Lin": "certified", "CROWN": "certified_crown", "IBP": "certified_ibp"}  # columns of what bounds prove
SEARCHES = ("bisection", "envelope", "root")  # strategies, with a column `evaluations_…` each
COUNTS = ("unstable", "active", "inactive")  # columns of hidden units
Z = 1.959963984540054  # the normal distribution's 97.5 % quantile


class Estimate(NamedTuple):
    """The value of a figure, its 95 % interval, and on how many samples it rests."""

    value: float | list[float]
    interval: Pair
    samples: int


def wilson(count: int, total: int) -> Pair:
    """Of an error in per cent, `count` failures among `total` samples (Wilson 1927); sensible at 0 and 100 % too."""
    share, square = count / total, Z * Z / total
    middle = (share + square / 2) / (1 + square)
    half = Z * math.sqrt((share * (1 - share) + square / 4) / total) / (1 + square)
    # At the ends the formula is exact but for rounding.
    low = 0.0 if count == 0 else middle - half
    high = 1.0 if count == total else middle + half
    return 100 * low, 100 * high


def normal(values: np.ndarray) -> Pair:
    """Of the mean of values that are not negative, by the normal distribution; no wider than they allow."""
    mean = float(values.mean())
    half = Z * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return max(mean - half, 0.0), mean + half


def _error(failed: np.ndarray) -> Estimate:
    count, total = int(failed.sum()), len(failed)
    return Estimate(100 * count / total, wilson(count, total), total)


def _mean(values: np.ndarray) -> Estimate:
    numbers = values.astype(float)
    return Estimate(float(numbers.mean()), normal(numbers), len(numbers))


def _exact(status: np.ndarray) -> Estimate:
    """The robust error is at least what is falsified and at most what is not proved; the interval covers both."""
    total = len(status)
    low, high = int((status == FALSIFIED).sum()), int((status != ROBUST).sum())
    return Estimate([100 * low / total, 100 * high / total], (wilson(low, total)[0], wilson(high, total)[1]), total)


class Kind(NamedTuple):
    """How figures are counted: the sign of their unit, decimals in tables, and the estimate from samples' values."""

    sign: str
    digits: int
    estimate: Callable[[np.ndarray], Estimate]
    pair: bool = False  # whether the value is `[lower, upper]`


ERROR, EXACT_ERROR = Kind("%", 2, _error), Kind("%", 2, _exact, pair=True)
RADIUS, EVALUATIONS, UNITS = Kind("", 4, _mean), Kind("", 2, _mean), Kind("", 1, _mean)  # radii in input units


class Group(NamedTuple):
    """Figures that tell the same, found in different ways.

    Attributes:
        words: what they tell, for people.
        kind: how they are counted.
        part: the part of an evaluation that may cover fewer samples, as in a record's `limits`.
    """

    words: str
    kind: Kind
    part: str = ""


CLEAN, ATTACKED = Group("clean error", ERROR), Group("error under attack", ERROR)
CERTIFIED, EXACT = Group("certified error", ERROR), Group("exact robust error", EXACT_ERROR, "exact")
WHOLE, PARTIAL = Group("mean radius, all or nothing", RADIUS), Group("mean radius within eps", RADIUS)
LARGEST, SEARCH = Group("mean largest radius", RADIUS, "search"), Group("cost of the search", EVALUATIONS, "search")
HIDDEN = Group("hidden units", UNITS)
# A training's errors on held-out samples.
VALIDATION = {"validation_CTE": CLEAN.words, "validation_CRE": CERTIFIED.words}


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        key: its name in records.
        about: its meaning.
        group: what it tells.
        values: from the samples' columns and eps, the values that it sums up; empty where it was not measured.
        short: whether it stands in tables with little room.
        name: its heading where that is not the key.
    """

    key: str
    about: str
    group: Group
    values: Values
    short: bool = False
    name: str = ""

    @property
    def title(self) -> str:
        """Its heading in tables."""
        return self.name or self.key.replace("_", " ")

    @property
    def meaning(self) -> str:
        """With its unit."""
        kind = self.group.kind
        return self.about + (f", {kind.sign}" if kind.sign else "") + (" [lower, upper]" if kind.pair else "")

    @property
    def form(self) -> str:
        """How tables print it, for `str.format`."""
        return f"{{:.{self.group.kind.digits}f}}"

    def estimate(self, columns: Columns, eps: float) -> Estimate | None:
        """What the samples give; None where it was not measured."""
        values = self.values(columns, eps)
        return self.group.kind.estimate(values) if len(values) else None


def _column(name: str) -> Values:
    return lambda columns, _: columns.get(name, np.empty(0))


def _unproved(name: str) -> Values:
    return lambda columns, _: ~columns[PROOFS[name]]


def _all_or_nothing(name: str) -> Values:
    return lambda columns, eps: eps * columns[PROOFS[name]]


def _evaluations(name: str) -> Values:
    """A misclassified sample needs no search: the paper's counts leave it out."""
    return lambda columns, eps: columns[f"evaluations_{name}"][searched(columns) & ~_wrong(columns, eps)]


def _wrong(columns: Columns, _: float) -> np.ndarray:
    return np.asarray(columns["prediction"] != columns["label"])


def _decided(columns: Columns, _: float) -> np.ndarray:
    status = columns.get("status", np.empty(0, dtype=object))
    return np.asarray(status[status != ""])


def _largest(columns: Columns, _: float) -> np.ndarray:
    return np.asarray(columns["largest"][searched(columns)])


def searched(columns: Columns) -> np.ndarray:
    """Whose largest radius was searched, `[n]`."""
    return np.asarray(~np.isnan(columns["largest"]))


FIGURES = {
    figure.key: figure
    for figure in (
        Figure("CTE", "Clean test error", CLEAN, _wrong, short=True),
        Figure("PGD", "Error under plain PGD", ATTACKED, _column("pgd")),
        Figure("PGD_strong", "Error under the strong attack", ATTACKED, _column("attacked"), short=True),
        Figure("CRE_Lin", "Certified robust error, one slope", CERTIFIED, _unproved("Lin"), short=True),
        Figure("CRE_CROWN", "Certified robust error, CROWN's slopes", CERTIFIED, _unproved("CROWN"), short=True),
        Figure("CRE_IBP", "Certified robust error by intervals", CERTIFIED, _unproved("IBP"), short=True),
        Figure("CRE_exact", "Robust error of the exact certifier", EXACT, _decided),
        Figure("ACB_Lin", "Average certified bound, all or nothing", WHOLE, _all_or_nothing("Lin")),
        Figure("ACB_CROWN", "Average certified bound, CROWN's slopes", WHOLE, _all_or_nothing("CROWN")),
        Figure("ACB_IBP", "Average certified bound by intervals", WHOLE, _all_or_nothing("IBP")),
        Figure("ACB_PEC", "Average certified bound by the envelope", PARTIAL, _column("radius"), short=True),
        Figure("radius_mean", "Mean of the largest certified radii", LARGEST, _largest, name="largest radius"),
        Figure("T_bisection", "Evaluations per sample of the search by bisection", SEARCH, _evaluations("bisection")),
        Figure("T_envelope", "Evaluations per sample of the paper's search", SEARCH, _evaluations("envelope")),
        Figure("T_root", "Evaluations per sample of polycert's search", SEARCH, _evaluations("root")),
        Figure("unstable", "Units whose sign is not fixed, mean per sample", HIDDEN, _column("unstable")),
    )
}


def of(*groups: Group) -> list[Figure]:
    """The figures of some groups, group by group."""
    return [figure for group in groups for figure in FIGURES.values() if figure.group == group]
