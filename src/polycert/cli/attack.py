"""`polycert attack`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from polycert.attacks.pgd import Attack, attack_samples
from polycert.cli import option_values
from polycert.cli.exit_status import usage
from polycert.cli.options import AttackOptions
from polycert.cli.output import Finished, about_set, clean_error, counterexamples_of, finish
from polycert.cli.progress import Advance, in_slices, progress_bar
from polycert.cli.samples import plan, prepare
from polycert.records.files import check_output, whole_file
from polycert.runtime.execution import processes
from polycert.sets.ball import Ball


def attack_command(options: AttackOptions) -> None:
    """Attack the samples, save the records, and print a summary."""
    with usage():
        if options.out is not None:
            check_output(options.out)
        asked = plan(options)
        ball = Ball(asked.norm, option_values.number(options.eps, "--eps"), asked.low, asked.high)

    def ask(x: Tensor, y: Tensor | None, index: Tensor, progress: Advance) -> Attack:
        return attack_samples(samples.network, x, y, ball, index, options.steps, options.restarts, options.seed)

    with processes(asked.device) as team, progress_bar(quiet=options.quiet or not team.first) as bar:
        samples = prepare(options, ball, asked)
        done = in_slices(samples, bar, "attacking", ask, team)
    if not team.first:
        return
    found = Attack.join(done.parts)
    if options.out is not None:
        _save_counterexamples(found, options.out)
    frame = found.rows()
    rows = {
        "clean error (CTE)": clean_error(samples, 100 * float((frame["prediction"] != frame["label"]).mean())),
        "error under attack": f"{100 * float(frame['success'].mean()):.2f} %",
        "mean of the least margins": f"{frame['margin'].mean():.5g}",
        "steps, restarts": f"{options.steps}, {options.restarts}",
        "eps": options.eps,
    }
    finish(options, samples, Finished(done.count, done.seconds), found, rows | about_set(asked))


def _save_counterexamples(found: Attack, out: Path) -> None:
    """Write the counterexamples and the positions of their samples beside the records."""
    broken = found.success.cpu()
    index, points = found.index.cpu()[broken], found.inputs.cpu()[broken]
    with whole_file(counterexamples_of(out)) as name, name.open("wb") as file:
        np.savez_compressed(file, index=index.numpy(), x=points.numpy())
