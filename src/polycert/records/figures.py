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
Values = Callable[[Columns, float], np.ndarray]  # from the columns and eps to the values that a figure sums up
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
    """Return the 95 % interval of an error in per cent, with `count` failures among `total` samples (Wilson 1927).

    Unlike the normal approximation, it has a positive width at 0 and 100 % too.
    """
    share, square = count / total, Z * Z / total
    middle = (share + square / 2) / (1 + square)
    half = Z * math.sqrt((share * (1 - share) + square / 4) / total) / (1 + square)
    # At 0 and 100 % the formula gives the end itself, but for rounding.
    low = 0.0 if count == 0 else middle - half
    high = 1.0 if count == total else middle + half
    return 100 * low, 100 * high


def normal(values: np.ndarray) -> Pair:
    """Return the 95 % interval of the mean of values that are not negative, by the normal distribution."""
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
    """Return `[lower, upper]`: the error is at least what is falsified and at most what is not proved.

    The interval covers both ends.
    """
    total = len(status)
    low, high = int((status == FALSIFIED).sum()), int((status != ROBUST).sum())
    return Estimate([100 * low / total, 100 * high / total], (wilson(low, total)[0], wilson(high, total)[1]), total)


class Kind(NamedTuple):
    """How a figure is estimated and printed: the sign of its unit, decimals in tables, and the estimate from values."""

    sign: str
    digits: int
    estimate: Callable[[np.ndarray], Estimate]
    pair: bool = False  # whether the value is `[lower, upper]`


ERROR, EXACT_ERROR = Kind("%", 2, _error), Kind("%", 2, _exact, pair=True)
RADIUS, EVALUATIONS, UNITS = Kind("", 4, _mean), Kind("", 2, _mean), Kind("", 1, _mean)  # radii in input units


class Group(NamedTuple):
    """Figures of the same quantity, measured in different ways.

    Attributes:
        words: the quantity in words.
        kind: how its figures are estimated and printed.
        part: the part of an evaluation that measures it, if that may cover fewer samples (a record's `limits`).
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
        group: the quantity that it measures.
        values: returns the values that it sums up, from the samples' columns and eps; none where it was not measured.
        short: whether tables with little room show it.
        name: its heading, if that is not the key.
    """

    key: str
    about: str
    group: Group
    values: Values
    short: bool = False
    name: str = ""

    @property
    def title(self) -> str:
        """The figure's heading in tables."""
        return self.name or self.key.replace("_", " ")

    @property
    def meaning(self) -> str:
        """The figure's meaning with its unit."""
        kind = self.group.kind
        return self.about + (f", {kind.sign}" if kind.sign else "") + (" [lower, upper]" if kind.pair else "")

    @property
    def form(self) -> str:
        """The format in which tables print the figure, for `str.format`."""
        return f"{{:.{self.group.kind.digits}f}}"

    def estimate(self, columns: Columns, eps: float) -> Estimate | None:
        """Return the estimate from the samples' columns, or None where the figure was not measured."""
        values = self.values(columns, eps)
        return self.group.kind.estimate(values) if len(values) else None


def _column(name: str) -> Values:
    return lambda columns, _: columns.get(name, np.empty(0))


def _unproved(name: str) -> Values:
    return lambda columns, _: ~columns[PROOFS[name]]


def _all_or_nothing(name: str) -> Values:
    return lambda columns, eps: eps * columns[PROOFS[name]]


def _evaluations(name: str) -> Values:
    """Return the evaluations of the searched samples; the paper leaves out misclassified ones, which need none."""
    return lambda columns, eps: columns[f"evaluations_{name}"][searched(columns) & ~_wrong(columns, eps)]


def _wrong(columns: Columns, _: float) -> np.ndarray:
    return np.asarray(columns["prediction"] != columns["label"])


def _decided(columns: Columns, _: float) -> np.ndarray:
    status = columns.get("status", np.empty(0, dtype=object))
    return np.asarray(status[status != ""])


def _largest(columns: Columns, _: float) -> np.ndarray:
    return np.asarray(columns["largest"][searched(columns)])


def searched(columns: Columns) -> np.ndarray:
    """Return whether the largest radius of each sample was searched, `[n]`."""
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
    """Return the figures of some groups, group by group."""
    return [figure for group in groups for figure in FIGURES.values() if figure.group == group]
