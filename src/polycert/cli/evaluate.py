"""`polycert evaluate`."""

from __future__ import annotations

import os
import shlex
from dataclasses import fields, replace
from typing import Any, NoReturn, cast

import typer

from polycert.cli import option_values
from polycert.cli.exit_status import INTERRUPTED, BadUsage, tell, usage
from polycert.cli.options import EvaluateOptions
from polycert.cli.output import show_record
from polycert.cli.progress import progress_bar
from polycert.cli.samples import CheckedSamples, plan, prepare
from polycert.errors import PolycertError
from polycert.evaluation.evaluate import run
from polycert.evaluation.exact import ExactSettings
from polycert.evaluation.model_info import about_model
from polycert.evaluation.settings import EvaluationSettings, make_question, usual_upper
from polycert.records.evaluation import Evaluation, check_record
from polycert.runtime.execution import processes
from polycert.sets.ball import Ball, Minimum

SILENT = ("out", "quiet", "debug", "device", "threads", "batch_size", "memory", "workers", "data_dir")


def evaluate_command(options: EvaluateOptions) -> None:
    """Measure the row of a model, write its record, and print a summary."""
    command = command_of(options)
    with usage():
        if options.out is not None:
            check_record(options.out)
        elif options.samples:
            raise BadUsage("--samples writes files beside the record: give --out FILE.json")
    about = about_model(options.model) | {"command": command}
    if options.name is not None:
        about["model"] = options.name
    with usage():
        options = _completed(options, about)
        asked = plan(options)
        ball = Ball(
            asked.norm,
            option_values.number(options.eps, "--eps"),
            asked.low,
            asked.high,
            minimum=cast(Minimum, options.minimum),
        )
        about["dataset"] = options.dataset
        settings, exact = _settings(options, asked.norm), _exact(options)
    with processes(asked.device) as team, progress_bar(quiet=options.quiet or not team.first) as bar:
        samples = prepare(options, ball, asked)
        if samples.y is None:
            raise PolycertError(f"an evaluation counts errors, so it needs labels: {samples.source} has none")
        question = make_question(
            samples.network,
            samples.x,
            samples.y,
            ball,
            settings,
            index=samples.index,
            batch_size=samples.batch,
            threads=samples.threads,
        )

        def report(done: int, total: int, text: str) -> None:
            bar.update(bar.task_ids[0], description="evaluating", completed=done, total=total, note=text)

        try:
            found = run(question, about, exact, options.out, team, report)
        except KeyboardInterrupt:
            _interrupted(options)
    if found is not None:
        _finish(options, samples, found)


def command_of(options: EvaluateOptions) -> str:
    """Return the command line, without options that do not change the figures."""
    words = ["polycert", "evaluate", options.model]
    for item in fields(options):
        value = getattr(options, item.name)
        if item.name in ("model", *SILENT) or value == item.default:
            continue
        words += [f"--{item.name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)


def _completed(options: EvaluateOptions, about: dict[str, Any]) -> EvaluateOptions:
    """Return the options with data set, norm and eps that the model was trained for where none are given."""
    dataset = options.dataset if options.inputs is not None else options.dataset or about.get("dataset")
    eps = options.eps or str(about.get("eps") or "")
    if not eps:
        raise BadUsage("--eps is missing: give the radius of the ball, such as 0.1 or 2/255")
    return replace(options, eps=eps, norm=options.norm or str(about.get("norm") or "inf"), dataset=dataset)


def _settings(options: EvaluateOptions, norm: float) -> EvaluationSettings:
    """Return the settings of the evaluation; raises `PolycertError` if an option is wrong."""
    eps = option_values.number(options.eps, "--eps")
    if not eps > 0:
        raise BadUsage(f"--eps must be above 0, got {options.eps}")
    usual = usual_upper(options.dataset, norm, eps)
    return EvaluationSettings(
        upper=usual if options.upper is None else option_values.number(options.upper, "--upper"),
        tolerance=option_values.number(options.tolerance, "--tolerance"),
        steps=options.steps,
        restarts=options.restarts,
        seed=options.seed,
        samples=options.samples,
        search_limit=options.search_limit,
        rigorous=not options.fast,
    )


def _exact(options: EvaluateOptions) -> ExactSettings | None:
    """Return the settings of exact verdicts, or None if none are asked for."""
    if options.exact is None:
        return None
    return ExactSettings(
        seconds=option_values.number(options.exact, "--exact"),
        timeout=option_values.number(options.exact_timeout, "--exact-timeout"),
        limit=options.exact_limit,
        workers=options.workers or os.cpu_count() or 1,
    )


def _interrupted(options: EvaluateOptions) -> NoReturn:
    """Say what is kept after Ctrl-C, and end the command."""
    kept = "nothing is kept without --out"
    if options.out is not None:
        kept = "finished slices are kept, and the same command goes on from there"
    tell(f"interrupted: no record is written; {kept}", style="yellow")
    raise typer.Exit(INTERRUPTED)


def _finish(options: EvaluateOptions, samples: CheckedSamples, found: Evaluation) -> None:
    """Print the summary of an evaluation."""
    record = found.record
    if found.resumed and not options.quiet:
        counts = " and ".join(f"{count} {what}" for what, count in found.resumed.items())
        tell(f"{counts} were taken over from an earlier run")
    show_record(f"{record['model']} on {samples.source}, {record['n']} of {samples.total} samples", record)
    if options.out is not None and not options.quiet:
        tell(f"written to {options.out}")
