"""Comparisons of runs: in the same setting, with other sub-samples, and whether a difference is more than chance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from polycert.report.runs import ReportedModel

SURE = 1.96  # standard errors on either side of a 95 % interval


def difference(one: ReportedModel, other: ReportedModel, key: str) -> float:
    """Return the error of `one` minus that of `other` in per cent; 0 if chance explains the difference (95 %)."""
    gap = value(one, key) - value(other, key)
    spread = SURE * math.hypot(_deviation(one, key), _deviation(other, key))
    return gap if abs(gap) > spread else 0.0


def _deviation(run: ReportedModel, key: str) -> float:
    """Return the standard error of an error in per cent."""
    counted = run.record.get("n") or run.recipe.get("certified") or 1000
    share = min(max(value(run, key) / 100, 0.0), 1.0)
    return 100 * math.sqrt(share * (1 - share) / counted)


def value(run: ReportedModel, key: str) -> float:
    """Return a figure of the record, or else of the last epoch; NaN if neither has it."""
    found = run.record.get(key, run.metrics[-1].get(key) if run.metrics else None)
    return float(found) if isinstance(found, int | float) else math.nan


def has(run: ReportedModel, key: str) -> bool:
    """Return whether a run has a figure."""
    return math.isfinite(value(run, key))


def method_of(run: ReportedModel) -> str:
    """Return the training method of a run, in small letters."""
    return str(run.fact("method")).lower()


def settings(runs: Sequence[ReportedModel]) -> Iterator[tuple[str, list[ReportedModel]]]:
    """Yield groups of runs with the same data set, architecture, activation, norm and eps, and their setting as text.

    Released models are in groups of their own.
    """

    def setting(run: ReportedModel) -> tuple[str, ...]:
        keys = [str(run.fact(key)) for key in ("dataset", "architecture", "activation", "norm", "eps")]
        return (*keys, "released" if "released" in run.path.parts else "")

    for keys, group in groupby(sorted(runs, key=setting), setting):
        dataset, architecture, activation, norm, eps, released = keys
        text = f"{dataset} {architecture} {activation} l_{norm} {eps}"
        yield f"{text} ({released})" if released else text, list(group)


def pairs(runs: Sequence[ReportedModel], one: str, other: str) -> Iterator[tuple[ReportedModel, ReportedModel]]:
    """Yield every run of one method with every run of the other."""
    for first in runs:
        for second in runs:
            if (method_of(first), method_of(second)) == (one, other):
                yield first, second


def subsampled(runs: Sequence[ReportedModel]) -> Iterator[tuple[ReportedModel, ReportedModel, str]]:
    """Yield pairs of trainings whose sub-samples differ by a factor of 4 or more, and the error to compare.

    Nothing else but the seed differs within a pair.
    """
    trained = [run for run in runs if run.recipe and _subsample(run) is not None]
    for small in trained:
        for large in trained:
            if 4 * (_subsample(small) or 0) > (_subsample(large) or 0) or _rest(small) != _rest(large):
                continue
            key = next((key for key in ("CRE_Lin", "validation_CRE") if has(small, key) and has(large, key)), None)
            if key is not None:
                yield small, large, key


def _subsample(run: ReportedModel) -> float | None:
    """Return how many samples of a batch are bounded; None if that changes over time."""
    found = run.recipe.get("subsample", run.recipe.get("batch"))
    return float(found) if isinstance(found, int | float) else None


def _rest(run: ReportedModel) -> dict[str, Any]:
    """Return the values of a recipe that both trainings of a pair must share."""
    return {key: item for key, item in run.recipe.items() if key not in ("subsample", "seed", "about")}


def subsample_line(small: ReportedModel, large: ReportedModel, key: str) -> str:
    """Return a line with both errors."""
    return (
        f"{small.name}: {key} {value(small, key):.2f} % with B′ = {_subsample(small):g}, "
        f"{value(large, key):.2f} % with {_subsample(large):g}"
    )
