"""From what was measured on each sample to the figures of a table's row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from polycert.graph import Network
from polycert.verification.verdicts import FALSIFIED, ROBUST

Columns = Mapping[str, np.ndarray]
Pair = tuple[float, float]
ORDER = (
    *("CTE", "PGD", "PGD_strong", "CRE_Lin", "CRE_CROWN", "CRE_IBP", "CRE_exact"),
    *("ACB_Lin", "ACB_CROWN", "ACB_IBP", "ACB_PEC", "radius_mean"),
    *("T_bisection", "T_envelope", "T_root", "unstable"),
)
PROOFS = {"Lin": "certified", "CROWN": "certified_crown", "IBP": "certified_ibp"}
COUNTS = ("unstable", "active", "inactive")
SEARCHES = ("bisection", "envelope", "root")
Z = 1.959963984540054  # the normal distribution's 97.5 % quantile
# Bins of the histogram of parameters; what lies outside counts in the first and the last.
EDGES = np.linspace(-1, 1, 201)


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


def parameter_record(network: Network) -> dict[str, Any]:
    """`parameter_norm`, the Euclidean norm of all weights and biases, and `parameters`; nothing if there are none.

    `parameters` holds their number, l_1 and maximum norm, the norms of each tensor in order, and a histogram of the
    values with bins of width 0.01.
    """
    tensors = [parameter.detach().cpu().double().numpy() for parameter in network.parameters()]
    if not tensors:
        return {}
    values = np.concatenate([tensor.ravel() for tensor in tensors])
    counts, _ = np.histogram(values.clip(EDGES[0], EDGES[-1]), EDGES)
    about = {
        "count": len(values),
        **{name: size for name, size in _norms(values).items() if name != "l2"},
        "layers": [{"shape": list(tensor.shape), **_norms(tensor.ravel())} for tensor in tensors],
        "histogram": {"low": -1.0, "high": 1.0, "counts": counts.tolist()},
    }
    return {"parameter_norm": float(np.linalg.norm(values)), "parameters": about}


def _norms(values: np.ndarray) -> dict[str, float]:
    sizes = np.abs(values)
    return {"l1": float(sizes.sum()), "l2": float(np.linalg.norm(values)), "linf": float(sizes.max())}
