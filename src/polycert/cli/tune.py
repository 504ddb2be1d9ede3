"""`polycert tune`."""

from __future__ import annotations

import math

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from polycert.cli.exit_status import INTERRUPTED, BadUsage, tell, usage
from polycert.cli.options import TuneOptions
from polycert.cli.train import checked_recipe, device_and_memory
from polycert.runtime.execution import processes
from polycert.training.tune import Trial, grid, tune, variants


def tune_command(options: TuneOptions) -> None:
    """Train every combination of values, and print them in order of their errors."""
    recipe, folder = checked_recipe(options)
    with usage():
        grids = [grid(text, log=True) for text in options.log or ()]
        grids += [grid(text, log=False) for text in options.linear or ()]
        if not grids:
            raise BadUsage("nothing to tune: give --log or --linear KEY=A:B:N")
        if options.epochs is not None:
            recipe = recipe.shortened(options.epochs)
        count = len(variants(recipe, grids))
    device, memory = device_and_memory(options)

    def report(trial: Trial) -> None:
        if not options.quiet:
            tell(f"{_set(trial)}: certified error {_per_cent(trial.score[0])}, clean error {_per_cent(trial.score[1])}")

    with processes(device) as team:
        if team.first and not options.quiet:
            tell(f"{count} trials of {recipe.epochs} epochs")
        try:
            found = tune(
                recipe,
                grids,
                folder,
                data_dir=options.data_dir,
                device=device,
                memory=memory,
                team=team,
                report=report,
            )
        except KeyboardInterrupt:
            tell("interrupted: the same command continues", style="yellow")
            raise typer.Exit(INTERRUPTED) from None
    if team.first:
        _print(found)


def _print(found: list[Trial]) -> None:
    """Print a table of trials."""
    table = Table("setting", "certified error", "clean error", box=box.SIMPLE)
    for trial in found:
        table.add_row(_set(trial), *map(_per_cent, trial.score))
    Console(highlight=False).print(table)


def _per_cent(error: float) -> str:
    """Return an error as text."""
    return "diverged" if math.isinf(error) else f"{error:.2f} %"


def _set(trial: Trial) -> str:
    """Return the options that set the values of a trial."""
    return " ".join(f"--set {key}={value:g}" for key, value in trial.values.items())
