"""What a model's file, or the run that made it, says about it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from polycert.errors import PolycertError
from polycert.models.architectures import ARCHITECTURES
from polycert.models.model_files import ModelFile, load_module
from polycert.records.run_folder import RunFolder
from polycert.training.recipe import Recipe, make_recipe
from polycert.training.recipe_files import library, read_recipe

NORMS = {"linf": "inf", "l2": "2", "l1": "1"}
# Recipes that differ only in these keys are the same recipe.
FREE = ("about", "seed")


def about_model(model: str) -> dict[str, Any]:
    """Return facts about a model for its record: always `model`, and the others where they are known.

    An `.npz` has an entry in an index, which may mark a leak of test samples (`test_leak`). A run has a recipe and a
    record of its training (`training`). Other files of polycert carry their architecture.
    """
    path = Path(model)
    if path.suffix == ".npz":
        return {"model": path.stem, **_of_entry(load_module(path).about)}
    if path.suffix == ".safetensors":
        run = RunFolder(path.parent)
        if path == run.model and run.recipe.is_file():
            return {"model": path.resolve().parent.name, **_of_recipe(run.recipe), "training": training_record(run)}
        return {"model": path.stem, **_of_architecture(load_module(path))}
    return {"model": path.stem if path.exists() else model}


def _of_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the facts in an entry of the index of released models; none if the entry is incomplete."""
    try:
        return {
            "dataset": entry["dataset"],
            "architecture": str(entry["arch_name"]).lower(),
            "activation": entry["activation"],
            "norm": NORMS.get(entry["norm"], entry["norm"]),
            "eps": entry["eps"],
            "method": str(entry["method"]).lower(),
            "test_leak": entry.get("test_leak"),
        }
    except KeyError:
        return {}


def _of_recipe(path: Path) -> dict[str, Any]:
    """Return the facts in a run's recipe."""
    recipe = read_recipe(str(path))
    names = ("dataset", "architecture", "activation", "norm", "method", "seed")
    return {**{name: getattr(recipe, name) for name in names}, "eps": float(recipe.target)}


def _of_architecture(file: ModelFile) -> dict[str, Any]:
    """Return the name and activation of a file's architecture if it is one of the paper's; none otherwise."""
    layers = json.loads(file.about["architecture"])
    classes = layers[-1].get("out_features")
    for activation in {layer["type"] for layer in layers}:
        for name, make in ARCHITECTURES.items():
            try:
                same = make(file.input_shape, classes, activation) == layers
            except (PolycertError, IndexError, TypeError):
                continue
            if same:
                return {"architecture": name, "activation": activation}
    return {}


def training_record(run: RunFolder) -> dict[str, Any]:
    """Return the entry `training` of a record; its CPU time is that of the first process."""
    recipe, metrics = read_recipe(str(run.recipe)), run.read_metrics()
    whole = f"{command(recipe, run.recipe.name)} --run-dir {shlex.quote(str(run.path))}"
    found: dict[str, Any] = {"command": whole, "recipe": recipe.plain(), "epochs": len(metrics)}
    for key, name in (("seconds", "minutes_wall"), ("seconds_cpu", "minutes_cpu")):
        if metrics and key in metrics[-1]:
            found[name] = round(metrics[-1][key] / 60, 1)
    return found | {"metrics": metrics}


def command(recipe: Recipe, file: str) -> str:
    """Return the command that trains a recipe, which names it by its name in the library, or else by its file."""
    seed = f" --set seed={recipe.seed}" if recipe.seed else ""
    own = _compared(recipe)
    for name, values in library().items():
        if values["method"] == recipe.method and _compared(make_recipe(values)) == own:
            return f"polycert train {name}{seed}"
    return f"polycert train {file}"


def _compared(recipe: Recipe) -> dict[str, Any]:
    """Return the values of a recipe that make it another one."""
    return {key: value for key, value in recipe.plain().items() if key not in FREE}
