"""The end of a command: records, the summary, the exit status."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import typer
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from polycert.cli.exit_status import INTERRUPTED, tell
from polycert.cli.options import ProofOptions, RecordOptions
from polycert.cli.samples import CheckedSamples, Plan
from polycert.records.figures import FIGURES, Figure
from polycert.records.provenance import SampleRecords, box_text
from polycert.sets.ball import eps_text, norm_text
from polycert.verification.verdicts import Verdicts

Rows = dict[str, str]


class Finished(NamedTuple):
    """How many samples were finished, and in what time."""

    finished: int
    seconds: float


def clean_error(job: CheckedSamples, per_cent: float) -> str:
    """The share of wrong predictions, where there are labels."""
    return "- (no labels)" if job.y is None else f"{per_cent:.2f} %"


def about_set(asked: Plan) -> Rows:
    """The norm and the box."""
    return {"norm": norm_text(asked.norm), "box": box_text(asked.low, asked.high)}


def about_proof(options: ProofOptions, asked: Plan) -> Rows:
    """The set and the method, for the summary."""
    return {
        **about_set(asked),
        "method": options.method,
        "relaxation": options.relaxation,
        "rigorous": "no (--fast)" if options.fast else "yes",
    }


def finish(
    options: RecordOptions, job: CheckedSamples, done: Finished, records: SampleRecords | Verdicts, rows: Rows
) -> None:
    """Records first, so that a closed pipe loses nothing; then the summary and the exit status."""
    if options.out is not None:
        records.save(options.out)
    rows = {"samples (n)": str(len(records)), **rows, "seconds": f"{done.seconds:.2f}"}
    _show(f"{Path(options.model).name} on {job.source}, {len(records)} of {job.total} samples", rows)
    where = "" if options.out is None else f", written to {options.out}"
    if done.finished < len(job.x):
        tell(f"interrupted: {done.finished} of {len(job.x)} samples were finished{where}", style="yellow")
        raise typer.Exit(INTERRUPTED)
    if options.out is not None and not options.quiet:
        tell(f"{done.finished} records{where}")


def show_record(title: str, record: dict[str, Any]) -> None:
    """The figures of an evaluation with their 95 % intervals."""
    rows = {"samples (n)": str(record["n"])}
    known = (figure for key, figure in FIGURES.items() if key in record["intervals"])
    rows |= {figure.key: _shown(figure, record[figure.key], *record["intervals"][figure.key]) for figure in known}
    rows |= {"eps": eps_text(record["eps"]), "norm": record["norm"]}
    if "parameter_norm" in record:
        rows["parameter norm"] = f"{record['parameter_norm']:.5g}"
    _show(title, rows | {"seconds": f"{record['seconds']['total']:.1f}"})


def _shown(figure: Figure, value: Any, low: float | None, high: float | None) -> str:
    """A value with its interval: what has a unit as tables print it, other numbers to five digits."""
    kind = figure.group.kind
    form, sign = (figure.form, f" {kind.sign}") if kind.sign else ("{:.5g}", "")
    text = f"[{', '.join(form.format(end) for end in value)}]" if kind.pair else form.format(value)
    return f"{text}{sign}" + ("" if low is None or high is None else f"  ({form.format(low)} … {form.format(high)})")


def _show(title: str, rows: Rows) -> None:
    """All in one piece: a reader such as `head` may close the pipe after its first lines."""
    table = Table(show_header=False, box=box.SIMPLE)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in rows.items():
        table.add_row(name, Text(value))
    Console(highlight=False).print(Group(Text(title, no_wrap=True, overflow="ignore"), table), crop=False)


def counterexamples_of(out: Path) -> Path:
    """Where the counterexamples go, beside the records."""
    return out.with_name(f"{out.stem}.counterexamples.npz")
