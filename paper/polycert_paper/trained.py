"""The table of networks trained here: the command, the time it took, and the main figures beside the paper's."""

from __future__ import annotations

from collections.abc import Iterator

from polycert_paper import printed_figures
from polycert_paper.layouts import HEADINGS, LAYOUTS, TableLayout, value_of
from polycert_paper.settings import settings
from polycert_paper.stored_records import Record, Store, Training
from polycert_paper.table import Table, TableCell, TableColumn, TableLine, compared, rounded

FIGURES = ("CTE", "PGD", "CRE_Lin", "CRE_exact")
NOTES = (
    "Minutes of training, on the clock and of the CPU; other work may have shared the machine. In brackets: the figure "
    "minus the paper's printed one.",
)


def trained_table(store: Store) -> Table:
    """Return the table of every record that holds its training, in the order of the paper's tables."""
    lines = [line for layout in LAYOUTS.values() for line in _lines(layout, store)]
    columns = [TableColumn(name, compared=False) for name in ("seed", "epochs", "minutes", "CPU minutes")]
    columns += [TableColumn(HEADINGS[figure].title) for figure in FIGURES]
    return Table("trained", "Trained here", tuple(columns), tuple(lines), NOTES)


def _lines(layout: TableLayout, store: Store) -> Iterator[TableLine]:
    """Yield the lines of one table of networks."""
    records = store.records(layout.folders[0]).values()
    rows = printed_figures.with_own_methods(printed_figures.printed(layout.name))
    named = settings(setting for setting, _ in rows)
    for (name, method), printed in rows.items():
        for record in records:
            if record.training is not None and record.of(named[name], method):
                cells = (*_course(record, record.training), *_figures(record, printed))
                yield TableLine(
                    named[name].title, printed_figures.method_name(method), f"`{record.training.command}`", cells
                )


def _course(record: Record, training: Training) -> Iterator[TableCell]:
    """Yield the cells of seed, epochs and minutes."""
    yield TableCell("" if record.seed is None else str(record.seed))
    yield TableCell(str(len(training.metrics)) if training.metrics else "")
    for minutes in (training.minutes_wall, training.minutes_cpu):
        yield TableCell("" if minutes is None else rounded(minutes, 1))


def _figures(record: Record, printed: printed_figures.Figures) -> Iterator[TableCell]:
    """Yield the cells of the figures."""
    for figure in FIGURES:
        value = value_of(record, figure)
        yield compared("" if value is None else rounded(value, HEADINGS[figure].digits), printed.get(figure, ""))
