"""How a model was trained, as its run's folder tells: the command, the recipe, the time it took, the course."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from polycert.training.metrics import read_metrics
from polycert.training.recipe import Recipe, make_recipe
from polycert.training.recipe_files import library, read_recipe
from polycert.training.run_folder import RunFolder

# Not part of what makes a recipe another one.
FREE = ("about", "seed")


def training_record(folder: Path) -> dict[str, Any]:
    """The entry `training` of a record; CPU time is that of the first process."""
    run = RunFolder(folder)
    recipe, metrics = read_recipe(str(run.recipe)), read_metrics(run.metrics)
    whole = f"{command(recipe)} --run-dir {shlex.quote(str(folder))}"
    found: dict[str, Any] = {"command": whole, "recipe": recipe.plain(), "epochs": len(metrics)}
    for key, name in (("seconds", "minutes_wall"), ("seconds_cpu", "minutes_cpu")):
        if metrics and key in metrics[-1]:
            found[name] = round(metrics[-1][key] / 60, 1)
    return found | {"metrics": metrics}


def command(recipe: Recipe) -> str:
    """What trains this recipe: by its name in the library if it has one."""
    seed = f" --set seed={recipe.seed}" if recipe.seed else ""
    own = _compared(recipe)
    for name, values in library().items():
        if values["method"] == recipe.method and _compared(make_recipe(values)) == own:
            return f"polycert train {name}{seed}"
    return "polycert train recipe.toml"


def _compared(recipe: Recipe) -> dict[str, Any]:
    return {key: value for key, value in recipe.plain().items() if key not in FREE}
