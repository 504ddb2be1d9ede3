"""What `train` and `tune` do with their common options."""

from __future__ import annotations

from pathlib import Path

import torch

from polycert.cli import option_values
from polycert.cli.exit_status import BadUsage, usage
from polycert.cli.options import RecipeOptions
from polycert.cli.samples import device
from polycert.training import Recipe, read_recipe


def checked(options: RecipeOptions, *, writes: bool = True) -> tuple[Recipe, Path]:
    """The recipe and the folder, with everything refused that can be before any work."""
    if options.recipe is None:
        raise BadUsage("give a recipe: a .toml file, or a name that train --list shows")
    with usage():
        overrides = [*(options.overrides or ()), *(() if options.seed is None else (f"seed={options.seed}",))]
        recipe = read_recipe(options.recipe, overrides)
    if options.run_dir is None and writes:
        raise BadUsage("--run-dir is missing: give a folder for checkpoints, metrics and the model")
    if options.data_dir is not None and not options.data_dir.is_dir():
        raise BadUsage(f"--data-dir: there is no folder {str(options.data_dir)!r}")
    return recipe, options.run_dir or Path()


def machine(options: RecipeOptions) -> tuple[torch.device, int | None]:
    """The device and the memory that may be used; sets the threads."""
    with usage():
        found = device(options.device), option_values.size(options.memory)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    return found
