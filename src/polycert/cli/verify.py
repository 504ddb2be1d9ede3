"""`polycert verify`."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from rich.progress import Progress

from polycert.cli import option_values
from polycert.cli.exit_status import BadUsage, tell, usage
from polycert.cli.options import VerifyOptions
from polycert.cli.output import Finished, about_set, clean_error, counterexamples_of, finish
from polycert.cli.progress import progress_bar
from polycert.cli.samples import CheckedSamples, plan, prepare
from polycert.cli.verify_property import verify_property
from polycert.records.files import check_output, whole_file
from polycert.runtime.execution import Processes, processes
from polycert.sets.ball import Ball
from polycert.verification.programs import get_solver
from polycert.verification.question import Question, VerificationSettings
from polycert.verification.verdicts import FALSIFIED, ROBUST, SOLVER, UNKNOWN, Verdict, Verdicts
from polycert.verification.verify import ask, collect, decisions


def verify_command(options: VerifyOptions) -> None:
    """Decide a property, or decide samples, save the records, and print a summary."""
    if options.asked is not None:
        verify_property(options)
        return
    with usage():
        if not options.eps:
            raise BadUsage("give --eps NUMBER, or a VNN-LIB property after an .onnx network")
        if options.out is not None:
            check_output(options.out)
        asked = plan(options)
        ball = Ball(asked.norm, option_values.number(options.eps, "--eps"), asked.low, asked.high)
        timeout, total = (
            option_values.number(options.timeout, "--timeout"),
            option_values.number(options.total, "--total"),
        )
        if not timeout > 0 or not total > 0:
            raise BadUsage(f"--timeout and --total must be above 0, got {options.timeout} and {options.total}")
        get_solver(options.solver)
    settings = VerificationSettings(timeout=timeout, solver=options.solver, seed=options.seed)
    if asked.memory is not None:
        settings = replace(settings, memory=asked.memory)
    clock = time.perf_counter()
    with processes(asked.device) as team, progress_bar(quiet=options.quiet or not team.first) as bar:
        samples = prepare(options, ball, asked)
        question = ask(samples.network, samples.x, samples.y, ball, settings, samples.index)
        mine = torch.tensor(list(team.share(len(question))), dtype=torch.long)
        own = _decide(options, samples, question.part(mine), total, team, bar)
        found = dict(team.gather([(int(mine[place]), verdict) for place, verdict in own.items()]))
    if not team.first:
        return
    verdicts = collect(question, found)
    if options.out is not None:
        _save_counterexamples(verdicts, options.out)
    resumed = sum(verdict.resumed for verdict in found.values())
    if resumed and not options.quiet:
        tell(f"{resumed} of {len(found)} verdicts were taken over from the journal of an earlier run")
    done = Finished(len(found), time.perf_counter() - clock)
    frame = verdicts.to_frame()
    finish(
        options, samples, done, verdicts, _summary(samples, verdicts, frame) | {"eps": options.eps} | about_set(asked)
    )


def _decide(
    options: VerifyOptions, samples: CheckedSamples, question: Question, total: float, team: Processes, bar: Progress
) -> dict[int, Verdict]:
    """Return the verdicts of a process by position; after Ctrl-C, those that it has."""
    found: dict[int, Verdict] = {}
    counts: Counter[str] = Counter()
    workers = options.workers or max(1, (os.cpu_count() or 1) // team.count)
    journal = None if options.out is None else journal_of(options.out, team.rank)
    try:
        with closing(
            decisions(question, batch=samples.batch, workers=workers, total=total, journal=journal)
        ) as verdicts:
            for position, verdict in verdicts:
                verdict = verdict.trusting() if options.trust_solver else verdict
                found[position] = verdict
                counts[verdict.status] += 1
                text = ", ".join(f"{counts[name]} {name}" for name in (ROBUST, FALSIFIED, UNKNOWN))
                bar.update(bar.task_ids[0], description=text, total=len(question), completed=len(found))
    except KeyboardInterrupt:
        if not found:
            raise
    return found


def journal_of(out: Path, rank: int = 0) -> Path:
    """Return the path of the journal that keeps a process's verdicts, beside the records."""
    return out.with_name(f"{out.name}{rank or ''}.journal")


def _save_counterexamples(verdicts: Verdicts, out: Path) -> None:
    """Write the counterexamples and the positions of their samples beside the records."""
    with whole_file(counterexamples_of(out)) as name, name.open("wb") as file:
        index, inputs = verdicts.arrays()
        np.savez_compressed(file, index=index, x=inputs)


def _summary(samples: CheckedSamples, verdicts: Verdicts, frame: pd.DataFrame) -> dict[str, str]:
    """Return the rows of the summary."""
    lower, upper = verdicts.interval()
    counts = frame["status"].value_counts()
    wrong = 100 * float((frame["prediction"] != frame["label"]).mean())
    believed = frame[frame["proof"] == SOLVER]
    solver, trusted = len(believed), bool((believed["status"] == ROBUST).any())
    return {
        "clean error (CTE)": clean_error(samples, wrong),
        "robust error (CRE exact)": f"[{lower:.2f}, {upper:.2f}] %",
        **{status: str(counts.get(status, 0)) for status in (ROBUST, FALSIFIED, UNKNOWN)},
        "by stage": ", ".join(f"{stage} {count}" for stage, count in frame["stage"].value_counts().items()),
        "believed by a solver alone": f"{solver} ({'counted as robust' if trusted else 'unknown'})",
    }
