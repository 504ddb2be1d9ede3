"""`polycert attack`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from polycert.attacks.pgd import attack_region
from polycert.certification.envelope import classes_of
from polycert.cli import option_values
from polycert.cli.exit_status import usage
from polycert.cli.options import AttackOptions
from polycert.cli.output import Finished, about_set, clean_error, counterexamples_of, finish
from polycert.cli.progress import Advance, in_slices, progress_bar
from polycert.cli.samples import plan, prepare
from polycert.graph.inputs import as_labels
from polycert.records.files import check_output, whole_file
from polycert.runtime.execution import processes
from polycert.sets.ball import Ball, norm_text


class AttackedSlice(NamedTuple):
    """Attacked samples: a slice of the records."""

    frame: pd.DataFrame
    inputs: Tensor

    def __len__(self) -> int:
        return len(self.frame)


def attack_command(options: AttackOptions) -> None:
    """Attack, save, summarise."""
    with usage():
        if options.out is not None:
            check_output(options.out)
        asked = plan(options)
        ball = Ball(asked.norm, option_values.number(options.eps, "--eps"), asked.low, asked.high)

    def ask_slice(x: Tensor, y: Tensor | None, index: Tensor, progress: Advance) -> AttackedSlice:
        graph = job.network.bind()
        inputs = x.to(graph.dtype)
        with torch.no_grad():
            prediction = graph.forward(inputs).argmax(1)
        label = as_labels(y, prediction, classes_of(graph))
        hits = attack_region(
            graph,
            ball.at(inputs),
            label,
            index,
            steps=options.steps,
            restarts=options.restarts,
            seed=options.seed,
        )
        columns = {
            "index": index,
            "label": label,
            "prediction": prediction,
            "success": hits.success,
            "margin": hits.margin.double(),
        }
        frame = pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})
        return AttackedSlice(frame, hits.inputs.cpu())

    with processes(asked.device) as team, progress_bar(quiet=options.quiet or not team.first) as bar:
        job = prepare(options, ball, asked)
        done = in_slices(job, bar, "attacking", ask_slice, team)
    if not team.first:
        return
    frame = pd.concat([part.frame for part in done.parts], ignore_index=True).assign(
        eps=float(ball.eps),
        norm=norm_text(asked.norm),
        steps=options.steps,
        restarts=options.restarts,
        seed=options.seed,
    )
    if options.out is not None:
        _save_points(frame, torch.cat([part.inputs for part in done.parts]), options.out)
    rows = {
        "clean error (CTE)": clean_error(job, 100 * float((frame["prediction"] != frame["label"]).mean())),
        "error under attack": f"{100 * float(frame['success'].mean()):.2f} %",
        "mean of the least margins": f"{frame['margin'].mean():.5g}",
        "steps, restarts": f"{options.steps}, {options.restarts}",
        "eps": options.eps,
    }
    finish(options, job, Finished(done.count, done.seconds), frame, rows | about_set(asked))


def _save_points(frame: pd.DataFrame, inputs: Tensor, out: Path) -> None:
    """The points that broke their samples."""
    broken = frame["success"].to_numpy()
    with whole_file(counterexamples_of(out)) as name, name.open("wb") as file:
        np.savez_compressed(file, index=frame["index"].to_numpy()[broken], x=inputs.numpy()[broken])
