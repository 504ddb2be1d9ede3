"""`polycert train`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress

from polycert.cli import option_values
from polycert.cli.exit_status import INTERRUPTED, BadUsage, tell, usage
from polycert.cli.options import RecipeOptions, TrainOptions
from polycert.cli.progress import progress_bar
from polycert.cli.samples import device
from polycert.errors import PolycertError
from polycert.records.figures import VALIDATION
from polycert.records.run_folder import RunFolder
from polycert.runtime.execution import Processes, processes
from polycert.training import Recipe, Run, TrainingProgress, library, prepare, read_recipe, train
from polycert.training.recipe_files import to_toml

Report = Callable[[TrainingProgress], None]


def train_command(options: TrainOptions) -> None:
    """List the recipes, show one, or train by it."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if options.list_recipes:
        found = library()
        width = max(map(len, found)) + 2
        console.print("\n".join(f"{name:<{width}}{values['about']}" for name, values in found.items()))
        return
    recipe, folder = checked_recipe(_continued(options), writes=not options.show)
    if options.show:
        console.print(to_toml(recipe.plain()), end="")
        return
    chosen, memory = device_and_memory(options)
    with processes(chosen) as team, _reporting(options, recipe, team) as report:
        run = prepare(recipe, folder, data_dir=options.data_dir, device=chosen, memory=memory, processes=team)
        try:
            row = train(run, resume=options.resume, report=report, warn=_warn if team.first else _silent)
        except KeyboardInterrupt:
            _interrupted(run)
    if team.first:
        console.print(_summary(run, row))


def checked_recipe(options: RecipeOptions, *, writes: bool = True) -> tuple[Recipe, Path]:
    """Return the recipe and the run's folder; raises `BadUsage` if an option is wrong, before any work is done."""
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


def device_and_memory(options: RecipeOptions) -> tuple[torch.device, int | None]:
    """Return the device and the memory that may be used, and set the threads."""
    with usage():
        found = device(options.device), option_values.size(options.memory)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    return found


def _continued(options: TrainOptions) -> TrainOptions:
    """Return the options with the recipe of the run that is resumed, unless one is given."""
    if options.recipe is not None or options.run_dir is None or not options.resume:
        return options
    return replace(options, recipe=str(RunFolder(options.run_dir).recipe))


def _warn(remark: str) -> None:
    """Print a warning."""
    tell(f"warning: {remark}", style="yellow")


def _silent(remark: str) -> None:
    """Print nothing, as processes after the first do."""


def _interrupted(run: Run) -> None:
    """Say what is kept after Ctrl-C, and end the command."""
    if run.processes.first:
        done = "nothing was finished" if not run.folder.started else "--resume continues after the last epoch"
        tell(f"interrupted: {done}", style="yellow")
    raise typer.Exit(INTERRUPTED)


def _summary(run: Run, row: dict[str, Any]) -> str:
    """Return a line about the run's result."""
    found = _errors(row)
    text = f"{run.recipe.epochs} epochs in {run.seconds:.0f} s"
    return f"{text}{', validation: ' if found else ''}{found}; model: {run.folder.model}"


def _errors(row: dict[str, Any]) -> str:
    """Return the validation errors of a row of metrics as text."""
    return ", ".join(f"{name} {row[key]:.2f} %" for key, name in VALIDATION.items() if key in row)


@contextmanager
def _reporting(options: TrainOptions, recipe: Recipe, team: Processes) -> Iterator[Report]:
    """Yield a report for training: a bar on a terminal, a line for each epoch elsewhere, TensorBoard if asked for.

    Only the first process reports.
    """
    reports: list[Report] = []
    quiet = options.quiet or not team.first
    if team.first and options.tensorboard and options.run_dir is not None:
        reports.append(_tensorboard(options.run_dir))
    with progress_bar(quiet=quiet) as bar:
        if not quiet:
            reports.append(_advance(bar, recipe) if Console(stderr=True).is_terminal else _line(recipe))
        yield _all(reports)


def _advance(bar: Progress, recipe: Recipe) -> Report:
    """Return a report that moves the bar."""
    errors = ""

    def report(moment: TrainingProgress) -> None:
        nonlocal errors
        if moment.metrics is not None:
            errors = f", {_errors(moment.metrics)}"
        bar.update(
            bar.task_ids[0],
            description=f"epoch {moment.epoch + 1} of {recipe.epochs}",
            completed=moment.step,
            total=moment.steps,
            note=f"loss {moment.loss:.3f}{errors}",
        )

    return report


def _all(reports: list[Report]) -> Report:
    """Return a report that calls all of these."""

    def report(moment: TrainingProgress) -> None:
        for one in reports:
            one(moment)

    return report


def _line(recipe: Recipe) -> Report:
    """Return a report that prints a line for each epoch."""

    def report(moment: TrainingProgress) -> None:
        if moment.metrics is not None:
            row = moment.metrics
            parts = [f"loss {row['loss']:.4f}", f"eps {row['eps']:.4g}", _errors(row), f"{row['seconds']:.0f} s"]
            tell(f"epoch {row['epoch']} of {recipe.epochs}: {', '.join(filter(None, parts))}")

    return report


def _tensorboard(folder: Path) -> Report:
    """Return a report that writes each epoch's metrics into `folder` for TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise PolycertError("--tensorboard needs the package tensorboard: pip install tensorboard") from None

    @cache
    def writer() -> Any:  # makes its folder when the first epoch is done
        return SummaryWriter(str(folder / "tensorboard"))

    def report(moment: TrainingProgress) -> None:
        if moment.metrics is None:
            return
        for key, value in moment.metrics.items():
            if key != "epoch":
                writer().add_scalar(key, value, moment.epoch + 1)
        writer().flush()

    return report
