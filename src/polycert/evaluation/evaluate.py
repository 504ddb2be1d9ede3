"""`evaluate`: a network on labelled samples, all figures of a table's row at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from polycert.evaluation.exact import ExactSettings, exact_verdicts
from polycert.evaluation.measurements import Measurements, joined
from polycert.evaluation.record import make_record
from polycert.evaluation.settings import (
    EvaluationQuestion,
    EvaluationSettings,
    Stage,
    make_question,
    one_eps,
    usual_upper,
)
from polycert.evaluation.store import MeasurementStore, slices
from polycert.graph import Network
from polycert.records.evaluation import Evaluation, beside, check_record
from polycert.runtime.execution import Processes
from polycert.sets.ball import Array, Ball

Report = Callable[[int, int, str], None]  # samples finished, samples in all, what is being done
ALONE = Processes()


def evaluate(
    net: Network | nn.Module,
    x: Array,
    y: Array,
    ball: Ball,
    *,
    about: Mapping[str, Any] | None = None,
    upper: float | None = None,
    tolerance: float = 1e-4,
    steps: int = 50,
    restarts: int = 4,
    samples: bool = False,
    search_limit: int | None = None,
    exact: float | None = None,
    exact_timeout: float = 60.0,
    exact_limit: int | None = None,
    workers: int = 1,
    rigorous: bool = True,
    out: str | Path | None = None,
    batch_size: int | None = None,
    memory: int | None = None,
    threads: int = 1,
    seed: int = 0,
    progress: Report | None = None,
) -> Evaluation:
    """Measure everything that a row of the paper's tables shows, and more.

    Args:
        net: from `capture` or `load`, or a module.
        x: inputs `[n, *input_shape]`; y: labels `[n]`.
        ball: the set around each sample, with one eps for all.
        about: further facts for the record: `model`, `dataset`, `architecture`, `activation`, `method`, `seed`, …;
            `test_leak` (`batch`, `start`, `stop`) marks positions that training has seen.
        upper: largest radius of interest in searches (four times eps if not given); tolerance: accuracy of the radii.
        steps, restarts, seed: settings of the stronger attack.
        samples: whether to find the nearest counterexample of each sample as well.
        search_limit: search only the first so many samples.
        exact: seconds for exact verdicts on what bounds leave open, or None for no such verdicts; exact_timeout:
            seconds for each sample; exact_limit: decide only the first so many samples; workers: number of processes.
        rigorous: whether what is called proved covers every rounding error.
        out: a `.json` file to write the record to, with the other files of `Evaluation.save` beside it. Until then,
            finished slices and a journal of exact verdicts are kept there, so that the same call continues after an
            interruption.
        batch_size, memory, threads: as in `certify`.
        progress: called with (samples finished, samples in all, what is being done).

    No parameter's `.grad` and no global random state is touched.

    Examples:
        >>> found = evaluate(torch.nn.Linear(2, 2), torch.rand(5, 2), torch.zeros(5, dtype=int), Ball(eps=0.1))
        >>> found.record["n"]
        5
    """
    settings = EvaluationSettings(
        upper=usual_upper((about or {}).get("dataset"), ball.norm, one_eps(ball)) if upper is None else upper,
        tolerance=tolerance,
        steps=steps,
        restarts=restarts,
        seed=seed,
        samples=samples,
        search_limit=search_limit,
        rigorous=rigorous,
    )
    target = None if out is None else check_record(out)
    effort = None
    if exact is not None:
        effort = ExactSettings(seconds=exact, timeout=exact_timeout, limit=exact_limit, workers=workers)
    question = make_question(net, x, y, ball, settings, batch_size=batch_size, memory=memory, threads=threads)
    found = run(question, about or {}, effort, target, ALONE, progress)
    assert found is not None  # the only process is the first one
    return found


def run(
    question: EvaluationQuestion,
    about: Mapping[str, Any],
    exact: ExactSettings | None,
    out: Path | None,
    team: Processes,
    report: Report | None = None,
) -> Evaluation | None:
    """Measure a process's share of the samples.

    The first process writes and returns the evaluation of all samples; the others return None.
    """
    store = MeasurementStore(None if out is None else beside(out, "parts"))
    with store.locked(team.rank):
        everything = team.gather(_measured(question, exact, out, team, store, report))
        if not team.first:
            return None
        whole = joined(everything)
        points = whole.points if question.settings.samples else None
        record = make_record(question, about, whole, exact)
        found = Evaluation(record, whole.columns, question.x.cpu().numpy(), points, whole.resumed)
        if out is not None:
            found.save(out)
            store.clear()
        return found


def _measured(
    question: EvaluationQuestion,
    exact: ExactSettings | None,
    out: Path | None,
    team: Processes,
    store: MeasurementStore,
    report: Report | None,
) -> list[Measurements]:
    """Return the measurements of a process's slices; with exact verdicts, all slices as one."""
    parts = slices(len(question))
    mine = [parts[k] for k in team.share(len(parts))]
    progress = _Progress(report, sum(here.stop - here.start for here in mine))
    measured = []
    for here in mine:
        measured.append(store.measured(question.part(here), progress.stage))
        progress.finished(len(measured[-1]))
    if exact is None or not mine:
        return measured
    journal = None if out is None else beside(out, f"exact{team.rank or ''}.journal")
    own = slice(mine[0].start, mine[-1].stop)
    return [_with_exact(question.part(own), joined(measured), exact, own.start, journal, progress.stage)]


class _Progress:
    """Passes the progress of stages on to the caller, with the number of finished samples."""

    def __init__(self, report: Report | None, total: int) -> None:
        self.report, self.total, self.done = report, total, 0

    def stage(self, text: str, done: int, total: int) -> None:
        """Report how far a stage has come within a slice."""
        if self.report is not None:
            self.report(self.done, self.total, f"{text} {done}/{total}")

    def finished(self, count: int) -> None:
        """Count the samples of a finished slice."""
        self.done += count
        self.stage("slice", count, count)


def _with_exact(
    question: EvaluationQuestion,
    part: Measurements,
    exact: ExactSettings,
    begin: int,
    journal: Path | None,
    stage: Stage,
) -> Measurements:
    """Return the measurements with a column `status`, which is empty beyond the limit."""
    clock = time.perf_counter()
    count = min(len(question), max((exact.limit or math.inf) - begin, 0))
    few = slice(0, int(count))
    status = np.full(len(question), "", dtype=object)
    resumed = part.resumed
    if count:
        columns = {name: values[few] for name, values in part.columns.items()}
        status[few], taken = exact_verdicts(
            question.part(few), columns, part.counterexamples[few], exact, journal, stage
        )
        resumed = resumed | {"exact verdicts": taken}
    seconds = part.seconds | {"exact": time.perf_counter() - clock}
    return replace(part, columns=part.columns | {"status": status}, seconds=seconds, resumed=resumed)
