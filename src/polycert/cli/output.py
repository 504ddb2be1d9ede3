"""What a command does at its end: it saves records, prints a summary, and sets the exit status."""

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
    """The number of samples that were finished, and the time they took."""

    finished: int
    seconds: float


def clean_error(samples: CheckedSamples, per_cent: float) -> str:
    """Return the share of wrong predictions as text, or a remark if there are no labels."""
    return "- (no labels)" if samples.y is None else f"{per_cent:.2f} %"


def about_set(asked: Plan) -> Rows:
    """Return the norm and the box, for the summary."""
    return {"norm": norm_text(asked.norm), "box": box_text(asked.low, asked.high)}


def about_proof(options: ProofOptions, asked: Plan) -> Rows:
    """Return the set and the method, for the summary."""
    return {
        **about_set(asked),
        "method": options.method,
        "relaxation": options.relaxation,
        "rigorous": "no (--fast)" if options.fast else "yes",
    }


def finish(
    options: RecordOptions, samples: CheckedSamples, done: Finished, records: SampleRecords | Verdicts, rows: Rows
) -> None:
    """Save the records, print the summary, and set the exit status.

    Records are saved first, so that a closed pipe loses none.
    """
    if options.out is not None:
        records.save(options.out)
    rows = {"samples (n)": str(len(records)), **rows, "seconds": f"{done.seconds:.2f}"}
    _show(f"{Path(options.model).name} on {samples.source}, {len(records)} of {samples.total} samples", rows)
    where = "" if options.out is None else f", written to {options.out}"
    if done.finished < len(samples.x):
        tell(f"interrupted: {done.finished} of {len(samples.x)} samples were finished{where}", style="yellow")
        raise typer.Exit(INTERRUPTED)
    if options.out is not None and not options.quiet:
        tell(f"{done.finished} records{where}")


def show_record(title: str, record: dict[str, Any]) -> None:
    """Print the figures of an evaluation with their 95 % intervals."""
    rows = {"samples (n)": str(record["n"])}
    known = (figure for key, figure in FIGURES.items() if key in record["intervals"])
    rows |= {figure.key: _shown(figure, record[figure.key], *record["intervals"][figure.key]) for figure in known}
    rows |= {"eps": eps_text(record["eps"]), "norm": record["norm"]}
    if "parameter_norm" in record:
        rows["parameter norm"] = f"{record['parameter_norm']:.5g}"
    _show(title, rows | {"seconds": f"{record['seconds']['total']:.1f}"})


def _shown(figure: Figure, value: Any, low: float | None, high: float | None) -> str:
    """Return a value with its interval as text: with a unit as in tables, without one to five digits."""
    kind = figure.group.kind
    form, sign = (figure.form, f" {kind.sign}") if kind.sign else ("{:.5g}", "")
    text = f"[{', '.join(form.format(end) for end in value)}]" if kind.pair else form.format(value)
    return f"{text}{sign}" + ("" if low is None or high is None else f"  ({form.format(low)} … {form.format(high)})")


def _show(title: str, rows: Rows) -> None:
    """Print a table in one piece, since a reader such as `head` may close the pipe after its first lines."""
    table = Table(show_header=False, box=box.SIMPLE)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in rows.items():
        table.add_row(name, Text(value))
    Console(highlight=False).print(Group(Text(title, no_wrap=True, overflow="ignore"), table), crop=False)


def counterexamples_of(out: Path) -> Path:
    """Return the path of the counterexamples, beside the records."""
    return out.with_name(f"{out.stem}.counterexamples.npz")
