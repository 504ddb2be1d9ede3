"""What a model's file, or the run that made it, says about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from polycert.errors import PolycertError
from polycert.evaluation.training_history import training_record
from polycert.models.architectures import ARCHITECTURES
from polycert.models.model_files import ModelFile, load_module
from polycert.training import read_recipe

NORMS = {"linf": "inf", "l2": "2", "l1": "1"}
RUN_FILES = ("model.safetensors", "recipe.toml")  # as `polycert train` leaves them


def about_model(model: str) -> dict[str, Any]:
    """Facts for the record: always `model`, and what is known of the rest.

    An `.npz` has an entry in an index, with `test_leak` where it is marked; a run has a recipe and its course, in
    `training`; polycert's own files carry their architecture.
    """
    path = Path(model)
    if path.suffix == ".npz":
        return {"model": path.stem, **_of_entry(load_module(path).about)}
    if path.suffix == ".safetensors":
        recipe = path.parent / RUN_FILES[1]
        if path.name == RUN_FILES[0] and recipe.is_file():
            return {"model": path.resolve().parent.name, **_of_recipe(recipe), "training": training_record(path.parent)}
        return {"model": path.stem, **_of_architecture(load_module(path))}
    return {"model": path.stem if path.exists() else model}


def _of_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """Of an index of released models."""
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
    recipe = read_recipe(str(path))
    names = ("dataset", "architecture", "activation", "norm", "method", "seed")
    return {**{name: getattr(recipe, name) for name in names}, "eps": float(recipe.target)}


def _of_architecture(file: ModelFile) -> dict[str, Any]:
    """The paper's architectures by name."""
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
