"""The table of records: one row each, with the columns that at least one of them fills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from polycert.report.runs import Record, ReportedModel


class ReportColumn(NamedTuple):
    """A column of the table of records: its key, heading, explanation and format."""

    key: str
    heading: str
    about: str
    form: str = "{}"


ERROR, RADIUS, COUNT = "{:.2f}", "{:.4f}", "{:.2f}"
COLUMNS = (
    ReportColumn("dataset", "data set", "The test samples"),
    ReportColumn("architecture", "net", "Architecture"),
    ReportColumn("activation", "activation", "Activation function"),
    ReportColumn("norm", "norm", "The l_p norm of the ball"),
    ReportColumn("eps", "eps", "The target radius", "{:.4g}"),
    ReportColumn("method", "training", "Training method"),
    ReportColumn("n", "n", "Samples", "{:,}"),
    ReportColumn("CTE", "CTE", "Clean test error, %", ERROR),
    ReportColumn("PGD", "PGD", "Error under plain PGD, %", ERROR),
    ReportColumn("PGD_strong", "PGD strong", "Error under the strong attack, %", ERROR),
    ReportColumn("CRE_exact", "CRE exact", "Robust error of the exact certifier, % [lower, upper]", ERROR),
    ReportColumn("CRE_Lin", "CRE Lin", "Certified robust error, one slope, %", ERROR),
    ReportColumn("CRE_CROWN", "CRE CROWN", "Certified robust error, CROWN's slopes, %", ERROR),
    ReportColumn("CRE_IBP", "CRE IBP", "Certified robust error by intervals, %", ERROR),
    ReportColumn("ACB_Lin", "ACB Lin", "Average certified bound, all or nothing", RADIUS),
    ReportColumn("ACB_CROWN", "ACB CROWN", "Average certified bound, CROWN's slopes", RADIUS),
    ReportColumn("ACB_IBP", "ACB IBP", "Average certified bound by intervals", RADIUS),
    ReportColumn("ACB_PEC", "ACB PEC", "Average certified bound by the envelope", RADIUS),
    ReportColumn("radius_mean", "largest radius", "Mean of the largest certified radii", RADIUS),
    ReportColumn("T_bisection", "T bisection", "Evaluations per sample of the search by bisection", COUNT),
    ReportColumn("T_envelope", "T envelope", "Evaluations per sample of the paper's search", COUNT),
    ReportColumn("T_root", "T root", "Evaluations per sample of polycert's search", COUNT),
    ReportColumn("unstable", "unstable", "Units whose sign is not fixed, mean per sample", "{:.1f}"),
    ReportColumn("parameter_norm", "norm of parameters", "Norm of all parameters", "{:.4g}"),
    ReportColumn("seed", "seed", "Seed"),
)


class ReportCell(NamedTuple):
    """A cell: its text, the 95 % interval, and the value to sort by."""

    text: str
    interval: str
    value: str


class Row(NamedTuple):
    """A line of the table: the run it belongs to (-1: none to select), its name, a remark, and cells."""

    run: int
    name: str
    remark: str
    cells: list[ReportCell]


def table(runs: Sequence[ReportedModel]) -> tuple[list[ReportColumn], list[Row]]:
    """Columns that some record fills, and a row per record; a second one for the clean half of a leaked test set."""
    entries = [(k, run.name, remark, record) for k, run in enumerate(runs) for remark, record in _records(run)]
    columns = [item for item in COLUMNS if any(is_filled(record.get(item.key)) for *_, record in entries)]
    rows = [Row(k, name, remark, [_cell(record, c) for c in columns]) for k, name, remark, record in entries]
    return columns, rows


def _records(run: ReportedModel) -> Iterator[tuple[str, Record]]:
    if run.record:
        yield "", run.record
    else:
        facts = {
            key: run.fact(key) for key in ("dataset", "architecture", "activation", "norm", "eps", "method", "seed")
        }
        yield "not evaluated yet", facts
    half = run.record.get("clean_half")
    if isinstance(half, Mapping):
        yield "clean half", {**{c.key: run.record.get(c.key) for c in COLUMNS[:6]}, **half}


def is_filled(value: Any) -> bool:
    """Whether there is anything to show."""
    return value is not None and value != ""


def _cell(record: Record, column: ReportColumn) -> ReportCell:
    value = record.get(column.key)
    intervals = record.get("intervals")
    interval = intervals.get(column.key) if isinstance(intervals, Mapping) else None
    return ReportCell(
        show(value, column.form), show(interval, column.form) if is_pair(interval) else "", _sortable(value)
    )


def is_pair(value: Any) -> bool:
    """Whether it is an interval, `[low, high]`."""
    return isinstance(value, list) and len(value) == 2 and all(isinstance(item, int | float) for item in value)


def _sortable(value: Any) -> str:
    return str(value[1]) if is_pair(value) else "" if value is None else str(value)


def show(value: Any, form: str) -> str:
    """A figure, or an interval, as the page prints it; a dash where there is none."""
    if is_pair(value):
        return "[" + ", ".join(form.format(item) for item in value) + "]"
    if not is_filled(value):
        return "–"
    return form.format(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
