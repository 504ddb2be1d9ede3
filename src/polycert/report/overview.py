"""Summaries of runs: a headline, cards and shares of samples for each, and the table of all records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from polycert.records import figures
from polycert.records.figures import Figure, Group
from polycert.report.runs import Record, ReportedModel, flag
from polycert.sets.ball import eps_text


class ReportColumn(NamedTuple):
    """A column of the table of records: its key, heading, explanation and format."""

    key: str
    heading: str
    about: str
    form: str = "{}"


FACTS = (
    ReportColumn("dataset", "data set", "The test samples"),
    ReportColumn("architecture", "net", "Architecture"),
    ReportColumn("activation", "activation", "Activation function"),
    ReportColumn("norm", "norm", "The l_p norm of the ball"),
    ReportColumn("eps", "eps", "The target radius", "{:.4g}"),
    ReportColumn("method", "training", "Training method"),
)
SEED = ReportColumn("seed", "seed", "Seed")
COLUMNS = (
    *FACTS,
    ReportColumn("n", "n", "Samples", "{:,}"),
    *(
        ReportColumn(figure.key, figure.title, figure.meaning, figure.form)
        for figure in figures.of(figures.CLEAN, figures.ATTACKED, figures.EXACT, figures.CERTIFIED)
        + figures.of(figures.WHOLE, figures.PARTIAL, figures.LARGEST, figures.SEARCH, figures.HIDDEN)
    ),
    ReportColumn("parameter_norm", "norm of parameters", "Norm of all parameters", "{:.4g}"),
    SEED,
)
CARDS = (figures.CLEAN, figures.ATTACKED, figures.CERTIFIED, figures.EXACT, figures.PARTIAL, figures.LARGEST)


def shares(run: ReportedModel) -> dict[str, float] | None:
    """Return the per cent of samples that are proved, open, broken by an attack, and wrong; None if unknown."""
    found = _shares_of_samples(run.samples) if run.samples is not None else _shares_of_record(run.record)
    if found is None:
        return None
    proved, wrong, broken = found
    broken = max(broken - wrong, 0.0)
    return {"proved": proved, "open": max(100 - proved - wrong - broken, 0.0), "broken": broken, "wrong": wrong}


def _shares_of_samples(frame: pd.DataFrame) -> tuple[float, float, float] | None:
    """Return the per cent of samples that are proved, wrong, and wrong or broken, from the file of samples."""
    ways = [flag(frame, name) for name in figures.PROOFS.values() if name in frame]
    if not ways:
        return None
    wrong = frame["prediction"] != frame["label"]
    broken = wrong | flag(frame, "attacked") if "attacked" in frame else wrong
    proved = pd.concat(ways, axis=1).any(axis=1)
    if "status" in frame:
        proved, broken = proved | (frame["status"] == figures.ROBUST), broken | (frame["status"] == figures.FALSIFIED)
    return 100 * float(proved.mean()), 100 * float(wrong.mean()), 100 * float(broken.mean())


def _shares_of_record(record: Record) -> tuple[float, float, float] | None:
    """Return the same from the figures of a record."""
    exact: Any = record.get("CRE_exact")
    fewer = (record.get("limits") or {}).get("exact", record["n"]) < record["n"] if record else False
    lower, upper = (0.0, None) if fewer or not is_pair(exact) else exact
    known = [value for value in (*_values(record, figures.CERTIFIED), upper) if isinstance(value, int | float)]
    wrong = record.get("CTE")
    if not known or not isinstance(wrong, int | float):
        return None
    broken = max(
        value for value in (wrong, lower, *_values(record, figures.ATTACKED)) if isinstance(value, int | float)
    )
    return 100 - min(known), wrong, broken


def _values(record: Record, group: Group) -> list[Any]:
    """Return the values of the figures of a group, None where the record lacks one."""
    return [record.get(figure.key) for figure in figures.of(group)]


def headline(run: ReportedModel, parts: Mapping[str, float] | None) -> str:
    """Return the result in a sentence or two."""
    if parts is None:
        return "This model has not been evaluated yet: only its training is shown."
    ball = f"of up to {eps_text(run.fact('eps'))} (l_{run.fact('norm')})"
    share = math.floor(10 * parts["proved"] + 1e-6) / 10  # rounded down, so that 100 % means all
    text = f"{share:.1f} % of {run.record['n']:,} samples are proved: no change {ball} alters their class. "
    if run.record.get("rigorous") is False:
        text = (
            f"Fast arithmetic certifies {share:.1f} % of {run.record['n']:,} samples against changes {ball}; "
            "its rounding errors are not covered, so nothing is proved. "
        )
    tried = f"an attack breaks {parts['broken']:.1f} %, " if parts["broken"] > 0 else ""
    return f"{text}{parts['wrong']:.1f} % are wrong as they are, {tried}and {parts['open']:.1f} % are open."


def cards(run: ReportedModel) -> list[dict[str, str]]:
    """Return the main figures, each with its 95 % interval or its key."""
    if not run.record:
        return _training_cards(run)
    found = []
    for figure in (_chosen(run.record, group) for group in CARDS):
        if figure is not None:
            interval = (run.record.get("intervals") or {}).get(figure.key)
            text = show(run.record[figure.key], figure.form) + _sign(figure)
            note = f"95 %: {show(interval, figure.form)}" if is_pair(interval) else figure.key.replace("_", " ")
            found.append({"label": figure.group.words, "value": text, "note": note, "key": figure.key})
    return found


def _chosen(record: Record, group: Group) -> Figure | None:
    """Return the strongest known figure of a group: the last of the attacks, the lowest certified error."""
    known = [figure for figure in figures.of(group) if is_filled(record.get(figure.key))]
    if group == figures.CERTIFIED:
        return min(known, key=lambda figure: float(record[figure.key]), default=None)
    return known[-1] if known else None


def _sign(figure: Figure) -> str:
    """Return the unit that follows a value, if it is a single value; brackets mark an interval."""
    kind = figure.group.kind
    return f" {kind.sign}" if kind.sign and not kind.pair else ""


def _training_cards(run: ReportedModel) -> list[dict[str, str]]:
    """Return cards with the validation errors of a model that was not evaluated."""
    last = run.metrics[-1] if run.metrics else {}
    note = f"validation, epoch {last.get('epoch', '?')}"
    return [
        {"label": label, "value": show(last[key], "{:.2f} %"), "note": note, "key": key}
        for key, label in figures.VALIDATION.items()
        if is_filled(last.get(key))
    ]


def contradictions(frame: pd.DataFrame | None) -> int:
    """Return the number of samples with a counterexample inside their certified radius, which must be 0."""
    if frame is None or not {"largest", "attack_radius"} <= set(frame):
        return 0
    return int((frame["attack_radius"] < frame["largest"] * (1 - 1e-6)).sum())


class ReportCell(NamedTuple):
    """A cell: its text, the 95 % interval as text, and the value to sort by."""

    text: str
    interval: str
    value: str


class Row(NamedTuple):
    """A line of the table: the position of its run, the run's name, a remark, and cells."""

    run: int
    name: str
    remark: str
    cells: list[ReportCell]


def table(runs: Sequence[ReportedModel]) -> tuple[list[ReportColumn], list[Row]]:
    """Return the columns that some record fills, and one row for each record.

    A model whose training has seen a part of the test set has a second row for the other part.
    """
    entries = [(k, run.name, remark, record) for k, run in enumerate(runs) for remark, record in _records(run)]
    columns = [item for item in COLUMNS if any(is_filled(record.get(item.key)) for *_, record in entries)]
    rows = [Row(k, name, remark, [_cell(record, c) for c in columns]) for k, name, remark, record in entries]
    return columns, rows


def _records(run: ReportedModel) -> Iterator[tuple[str, Record]]:
    """Yield a run's records for the table, each with a remark."""
    if run.record:
        yield "", run.record
    else:
        yield "not evaluated yet", {column.key: run.fact(column.key) for column in (*FACTS, SEED)}
    half = run.record.get("clean_half")
    if isinstance(half, Mapping):
        yield "clean half", {**{c.key: run.record.get(c.key) for c in FACTS}, **half}


def is_filled(value: Any) -> bool:
    """Return whether there is anything to show."""
    return value is not None and value != ""


def _cell(record: Record, column: ReportColumn) -> ReportCell:
    """Return the cell of a record in a column."""
    value = record.get(column.key)
    intervals = record.get("intervals")
    interval = intervals.get(column.key) if isinstance(intervals, Mapping) else None
    return ReportCell(
        show(value, column.form), show(interval, column.form) if is_pair(interval) else "", _sortable(value)
    )


def is_pair(value: Any) -> bool:
    """Return whether a value is an interval, `[low, high]`."""
    return isinstance(value, list) and len(value) == 2 and all(isinstance(item, int | float) for item in value)


def _sortable(value: Any) -> str:
    """Return the text by which the page sorts a value; of an interval, its upper end."""
    return str(value[1]) if is_pair(value) else "" if value is None else str(value)


def show(value: Any, form: str) -> str:
    """Return a figure or an interval as the page prints it; a dash where there is none."""
    if is_pair(value):
        return "[" + ", ".join(form.format(item) for item in value) + "]"
    if not is_filled(value):
        return "–"
    return form.format(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
