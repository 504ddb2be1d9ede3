"""Trials of a recipe with other values, compared on the validation split."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from polycert.errors import PolycertError
from polycert.runtime.execution import Processes
from polycert.training.loop import Diverged, Run, prepare, train
from polycert.training.recipe import Recipe, make_recipe
from polycert.training.recipe_files import with_overrides

MOST_TRIALS = 1000
Variant = tuple[dict[str, float], Recipe]


class Grid(NamedTuple):
    """The values of one key that are tried."""

    key: str
    values: tuple[float, ...]


class Trial(NamedTuple):
    """The values of a trial, and the metrics of its last epoch."""

    values: dict[str, float]
    metrics: dict[str, Any]

    @property
    def score(self) -> tuple[float, float]:
        """The certified error, then the clean error; lower is better, and a training that diverged has infinity."""
        return self.metrics.get("validation_CRE", math.inf), self.metrics.get("validation_CTE", math.inf)


def grid(text: str, *, log: bool) -> Grid:
    """Return the grid of `KEY=A:B:N`: N values from A to B, evenly spaced on a logarithmic or linear scale."""
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


def variants(recipe: Recipe, grids: Sequence[Grid]) -> list[Variant]:
    """Return the recipe with every combination of the values; raises `PolycertError` if they do not fit."""
    keys, count = [one.key for one in grids], math.prod(len(one.values) for one in grids)
    if len(set(keys)) < len(keys):
        raise PolycertError(f"each key may have one range of values, got {', '.join(keys)}")
    if count > MOST_TRIALS:
        raise PolycertError(f"at most {MOST_TRIALS} trials can be asked for, got {count}: give fewer values")
    if not recipe.validation or not recipe.certified:
        raise PolycertError("tuning compares certified errors in validation: validation and certified must be above 0")
    found = []
    for values in product(*(one.values for one in grids)):
        chosen = {key: float(f"{value:.6g}") for key, value in zip(keys, values, strict=True)}
        changes = [f"{key}={value!r}" for key, value in chosen.items()]
        found.append((chosen, make_recipe(with_overrides(recipe.plain(), changes))))
    return found


def tune(
    recipe: Recipe,
    grids: Sequence[Grid],
    folder: Path,
    *,
    data_dir: Path | None = None,
    device: torch.device | None = None,
    memory: int | None = None,
    team: Processes | None = None,
    report: Callable[[Trial], None] = lambda _: None,
) -> list[Trial]:
    """Train every variant; returns the trials, best first. Finished variants are read, started ones are resumed.

    The test set is not opened: trials are compared by their errors on the samples that `recipe.validation` holds out.
    Several processes share the variants, and the first process gets all trials.
    """
    team, trials = team or Processes(), []
    for chosen, variant in variants(recipe, grids)[team.rank :: team.count]:
        name = "-".join(f"{key}={value:g}" for key, value in chosen.items())
        run = prepare(variant, folder / name, data_dir=data_dir, device=device, memory=memory)
        trials.append(Trial(chosen, _trained(run)))
        report(trials[-1])
    return sorted(team.gather(trials), key=lambda trial: trial.score)


def _trained(run: Run) -> dict[str, Any]:
    """Return the last epoch's metrics, or none if the training diverges."""
    try:
        return train(run, resume=run.folder.started) or run.folder.read_metrics()[-1]
    except Diverged:
        return {}
