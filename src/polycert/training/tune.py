"""Trials of a recipe with other values, compared on the validation split."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from polycert.errors import PolycertError
from polycert.training.files import with_overrides
from polycert.training.loop import prepare, train
from polycert.training.metrics import read_metrics
from polycert.training.recipe import Recipe, make_recipe

MOST_TRIALS = 1000


class Grid(NamedTuple):
    """Values to try of one key."""

    key: str
    values: tuple[float, ...]


class Trial(NamedTuple):
    """What was set, and the last epoch's metrics."""

    values: dict[str, float]
    metrics: dict[str, Any]

    @property
    def score(self) -> tuple[float, float]:
        """Lower is better: certified error first, then clean error."""
        return self.metrics["validation_CRE"], self.metrics["validation_CTE"]


def grid(text: str, *, log: bool) -> Grid:
    """`KEY=A:B:N` as N values from A to B, both included, evenly spaced on a logarithmic or linear scale."""
    key, _, span = text.partition("=")
    try:
        first, last, count = span.split(":")
        low, high, number = float(first), float(last), int(count)
    except ValueError:
        raise PolycertError(f"a range of values is KEY=A:B:N such as gamma=0.1:10:5, got {text!r}") from None
    if not key or not 1 <= number <= MOST_TRIALS or not (math.isfinite(low) and math.isfinite(high)):
        raise PolycertError(f"a range of values needs a key and N from 1 to {MOST_TRIALS}, got {text!r}")
    if log and not (low > 0 and high > 0):
        raise PolycertError(f"a logarithmic range needs ends above 0, got {text!r}")
    shares = [k / max(number - 1, 1) for k in range(number)]
    if log:
        return Grid(key, tuple(low * (high / low) ** share for share in shares))
    return Grid(key, tuple(low + (high - low) * share for share in shares))


def variants(recipe: Recipe, grids: Sequence[Grid]) -> Iterator[tuple[dict[str, float], Recipe]]:
    """The recipe with every combination of the values."""
    for values in product(*(one.values for one in grids)):
        chosen = {one.key: float(f"{value:.6g}") for one, value in zip(grids, values, strict=True)}
        changes = [f"{key}={value!r}" for key, value in chosen.items()]
        yield chosen, make_recipe(with_overrides(recipe.plain(), changes))


def tune(
    recipe: Recipe,
    grids: Sequence[Grid],
    folder: Path,
    *,
    data_dir: Path | None = None,
    device: torch.device | None = None,
    memory: int | None = None,
    report: Callable[[Trial], None] = lambda _: None,
) -> list[Trial]:
    """Train every variant, best first in the result; finished ones are read, started ones resumed.

    The test set is not opened: what is compared are errors on the samples that `recipe.validation` holds out.
    """
    if not recipe.validation or not recipe.certified:
        raise PolycertError("tuning compares certified errors in validation: validation and certified must be above 0")
    trials = []
    for chosen, variant in list(variants(recipe, grids)):
        name = "-".join(f"{key}={value:g}" for key, value in chosen.items())
        run = prepare(variant, folder / name, data_dir=data_dir, device=device, memory=memory)
        row = train(run, resume=run.folder.started) or read_metrics(run.folder.metrics)[-1]
        trials.append(Trial(chosen, row))
        report(trials[-1])
    return sorted(trials, key=lambda trial: trial.score)
