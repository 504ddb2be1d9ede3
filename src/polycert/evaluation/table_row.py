"""From what was measured on each sample to the figures of a table's row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from polycert.evaluation.confidence import normal, wilson
from polycert.verification.verdicts import FALSIFIED, ROBUST

Columns = Mapping[str, np.ndarray]
ORDER = (
    *("CTE", "PGD", "PGD_strong", "CRE_Lin", "CRE_CROWN", "CRE_IBP", "CRE_exact"),
    *("ACB_Lin", "ACB_CROWN", "ACB_IBP", "ACB_PEC", "radius_mean"),
    *("T_bisection", "T_envelope", "T_root", "unstable"),
)
PROOFS = {"Lin": "certified", "CROWN": "certified_crown", "IBP": "certified_ibp"}
COUNTS = ("unstable", "active", "inactive")
SEARCHES = ("bisection", "envelope", "root")


class Figure(NamedTuple):
    """A figure, its 95 % interval, and on how many samples it rests."""

    value: float | list[float]
    interval: tuple[float, float]
    samples: int


def figures(columns: Columns, eps: float) -> dict[str, Figure]:
    """All figures that the columns allow: errors in per cent, radii in input units."""
    found = {"CTE": _error(columns["prediction"] != columns["label"])}
    found["PGD"], found["PGD_strong"] = _error(columns["pgd"]), _error(columns["attacked"])
    for name, column in PROOFS.items():
        found[f"CRE_{name}"] = _error(~columns[column])
        found[f"ACB_{name}"] = _mean(eps * columns[column])
    found["ACB_PEC"] = _mean(columns["radius"])
    searched = ~np.isnan(columns["largest"])
    if searched.any():
        found["radius_mean"] = _mean(columns["largest"][searched])
        # A misclassified sample needs no search: the paper's counts leave it out.
        right = searched & (columns["prediction"] == columns["label"])
        if right.any():
            found |= {f"T_{name}": _mean(columns[f"evaluations_{name}"][right]) for name in SEARCHES}
    if "unstable" in columns:
        found["unstable"] = _mean(columns["unstable"])
    if "status" in columns and (columns["status"] != "").any():
        found["CRE_exact"] = _exact(columns["status"])
    return {name: found[name] for name in ORDER if name in found}


def _error(failed: np.ndarray) -> Figure:
    count, total = int(failed.sum()), len(failed)
    return Figure(100 * count / total, wilson(count, total), total)


def _mean(values: np.ndarray) -> Figure:
    numbers = values.astype(float)
    return Figure(float(numbers.mean()), normal(numbers), len(numbers))


def _exact(status: np.ndarray) -> Figure:
    """The robust error is at least what is falsified and at most what is not proved; the interval covers both."""
    decided = status[status != ""]
    total = len(decided)
    low, high = int((decided == FALSIFIED).sum()), int((decided != ROBUST).sum())
    return Figure([100 * low / total, 100 * high / total], (wilson(low, total)[0], wilson(high, total)[1]), total)


def summary(columns: Columns, eps: float) -> dict[str, Any]:
    """The figures as a record has them: values, `intervals`, `counts` of hidden units, `limits` where n is smaller."""
    found, total = figures(columns, eps), len(columns["label"])
    record: dict[str, Any] = {"n": total, **{name: figure.value for name, figure in found.items()}}
    record["intervals"] = {name: list(figure.interval) for name, figure in found.items()}
    if "unstable" in columns:
        record["counts"] = {name: float(columns[name].mean()) for name in COUNTS}
    searched = int((~np.isnan(columns["largest"])).sum())
    limits = {"search": searched}
    if "CRE_exact" in found:
        limits["exact"] = found["CRE_exact"].samples
    few = {name: count for name, count in limits.items() if count < total}
    return record | ({"limits": few} if few else {})
