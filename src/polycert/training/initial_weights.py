"""Weights to begin a run with: a published model's, or a file's."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from torch import nn

from polycert import zoo
from polycert.errors import PolycertError
from polycert.models.model_files import load_module
from polycert.training.recipe import Recipe
from polycert.training.recipe_files import read_recipe


class InitialWeights(NamedTuple):
    """A model's file, and where its recipe is if there is one."""

    model: Path
    recipe: Path


def begin_with(module: nn.Module, recipe: Recipe, start: str) -> None:
    """Copy the weights of a model of the same architecture into the module.

    Args:
        module: what is going to be trained.
        recipe: how; none of the samples that it holds out may the start have learnt.
        start: a name in the zoo, or a file.
    """
    found = _find(start)
    try:
        given = load_module(found.model).module
    except PolycertError as error:
        raise _refused(
            f"{start!r} cannot be read ({error}): give a model of the zoo, or a .safetensors or .npz file of polycert's"
        ) from None
    if repr(given) != repr(module):
        raise _refused(f"{start!r} has another architecture than the recipe: start from a model of the same")
    if found.recipe.is_file():
        _check_held_out(read_recipe(str(found.recipe)), recipe)
    module.load_state_dict(given.state_dict())


def _check_held_out(before: Recipe, recipe: Recipe) -> None:
    if before.dataset == recipe.dataset and before.validation < recipe.validation:
        raise _refused(
            f"{recipe.start!r} held out {before.validation} samples and has learnt some of this recipe's "
            f"validation = {recipe.validation}: set that to {before.validation} at most"
        )


def _refused(why: str) -> PolycertError:
    return PolycertError(f"recipe: key 'start': {why}")


def _find(start: str) -> InitialWeights:
    path = Path(start)
    if path.is_file():
        return InitialWeights(path, path.with_name("recipe.toml"))
    if start not in zoo.names():
        raise _refused(f"{start!r} is neither a file nor a model of the zoo: polycert zoo lists those")
    found = zoo.entry(start)
    found.verify()
    return InitialWeights(found.path(), found.path(zoo.RECIPE))
