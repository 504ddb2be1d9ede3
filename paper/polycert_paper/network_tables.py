"""Tables of networks, with the paper's figures, those of its released weights, and ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from polycert.records.figures import FIGURES
from polycert_paper import printed_figures
from polycert_paper.layouts import HEADINGS, LAYOUTS, TableLayout, value_of
from polycert_paper.settings import Setting, settings
from polycert_paper.stored_records import RELEASED, Figures, Record, Store
from polycert_paper.table import Figure, Missing, Table, TableCell, TableColumn, TableLine, compared, rounded

# Parts of a record that may cover fewer samples than the rest. Any other limit of a record concerns all figures.
_PARTS = {figure.group.part for figure in FIGURES.values()}
WHOLE = 10000  # samples of each test set of the paper


def network_table(layout: TableLayout, store: Store) -> Table:
    """Return the table: every row of the paper in its order, and after each setting methods that the paper lacks."""
    rows = printed_figures.with_own_methods(printed_figures.printed(layout.name))
    named = settings(setting for setting, _ in rows)
    corrected = printed_figures.corrections(layout.name)
    released, folder = store.records(RELEASED).values(), store.records(layout.folders[0])
    lines: list[TableLine] = []
    missing: list[Missing] = []
    for (name, method), figures in rows.items():
        row = _Row(layout, named[name], method, figures, _own(layout, store, named[name], method))
        lines += row.lines(
            corrected.get((name, method), {}),
            [record for record in released if record.of(named[name], method)],
            {key: record for key, record in folder.items() if record.of(named[name], method) and key != row.name},
        )
        missing += row.missing()
    notes = (*layout.notes, *_strangers(folder, [(named[name], method) for name, method in rows]))
    printed = {figure for figures in rows.values() for figure in figures}
    columns = tuple(TableColumn(HEADINGS[figure].title, figure in printed) for figure in layout.figures)
    return Table(layout.name, layout.title, columns, tuple(lines), notes, tuple(missing))


@dataclass(frozen=True)
class _Row:
    """One row of the paper's table, and our record for it."""

    layout: TableLayout
    setting: Setting
    method: str
    printed: printed_figures.Figures
    own: Record | None

    @property
    def name(self) -> str:
        """The name of the row's recipe and of its record."""
        return f"{self.setting.name}-{self.method}"

    def lines(
        self, corrected: printed_figures.Figures, released: list[Record], variants: dict[str, Record]
    ) -> Iterator[TableLine]:
        """Yield the paper's figures, those of its released weights, ours, and those of our other recipes."""
        if self.printed:
            yield self._line("paper", tuple(TableCell(self.printed.get(figure, "")) for figure in self.layout.figures))
        if corrected:
            yield self._line("paper, corrected", tuple(TableCell(corrected.get(f, "")) for f in self.layout.figures))
        for record in released:
            if any(cell.value for cell in self._cells(record)):
                yield from self._of(record, "released network")
        if self.own is not None:
            yield from self._of(self.own, "ours")
        elif self.printed:
            yield self._line("ours, missing", tuple(TableCell() for _ in self.layout.figures))
        for name, record in variants.items():
            yield from self._of(record, f"ours, {name}")

    def _of(self, record: Record, source: str) -> Iterator[TableLine]:
        """Yield a record's figures, their intervals, and both halves of the test set if one was leaked."""
        source += self._samples(record)
        yield self._line(source, self._cells(record))
        if any(figure in record.intervals for figure in self.layout.figures):
            yield self._line(f"{source}, 95 % interval", self._intervals(record))
        if record.clean_half is not None:
            yield self._line(f"{source}, half without leak", self._cells(record.clean_half))
            leaked = leaked_half(record, record.clean_half)
            if leaked is not None:
                yield self._line(f"{source}, leaked half", self._cells(leaked))

    def _samples(self, record: Record) -> str:
        """Return a remark on figures that are of fewer samples than the paper's, or an empty text."""
        few = {} if record.n in (None, WHOLE) else {"all": record.n}
        parts = {FIGURES[key].group.part for key in self.layout.figures if key in FIGURES}
        concerned = {part: n for part, n in record.limits.items() if part in parts or part not in _PARTS}
        short = [f"{part}: {n} samples" for part, n in {**few, **concerned}.items() if n != WHOLE]
        return f" ({', '.join(short)})" if short else ""

    def _line(self, source: str, cells: tuple[TableCell, ...]) -> TableLine:
        """Return a line of the table for this row."""
        mark = " †" if self.method in printed_figures.LEAKED else ""
        return TableLine(self.setting.title, f"{printed_figures.method_name(self.method)}{mark}", source, cells)

    def _cells(self, figures: Figures) -> tuple[TableCell, ...]:
        """Return a cell for each figure of the table."""
        return tuple(self._cell(figure, figures) for figure in self.layout.figures)

    def _cell(self, figure: str, figures: Figures) -> TableCell:
        """Return the cell of one figure."""
        value = value_of(figures, figure)
        text = "" if value is None else rounded(value, HEADINGS[figure].digits)
        return compared(text, self.printed.get(figure, ""))

    def _intervals(self, record: Record) -> tuple[TableCell, ...]:
        """Return a cell with the 95 % interval of each figure."""
        pairs = ((record.intervals.get(figure), HEADINGS[figure].digits) for figure in self.layout.figures)
        return tuple(TableCell() if pair is None else TableCell(rounded(pair, digits)) for pair, digits in pairs)

    def missing(self) -> list[Missing]:
        """Return the command that makes our record, if it lacks a figure that the paper prints."""
        shown = [figure for figure in self.layout.figures if figure in self.printed]
        if not self.printed or (
            self.own is not None and all(value_of(self.own, figure) is not None for figure in shown)
        ):
            return []
        # A record of the main table also holds the search, so one evaluation serves both tables.
        main = LAYOUTS[self.layout.folders[-1]]
        exact = ("--exact inf",) if "CRE_exact" in main.figures else ()
        evaluate = self.setting.evaluate(self.name, f"paper/results/{main.name}/{self.name}.json", *exact)
        command = evaluate if self.own is not None else f"{self.setting.train(self.method)} && {evaluate}"
        return [Missing(self.name, command)]


def leaked_half(record: Record, clean: Figures) -> Figures | None:
    """Return the figures of the leaked half; those of the whole are the means over both halves.

    The result is None if the record does not allow to compute them.
    """
    if record.n is None or clean.n is None or not clean.n < record.n or set(record.limits) - set(_PARTS):
        return None
    whole, part, rest = record.n, clean.n, record.n - clean.n
    found: dict[str, Figure] = {}
    for key, ours in record.figures.items():
        theirs = clean.figures.get(key)
        # The means of searches are over correctly classified samples only, and their number is unknown.
        if not FIGURES[key].group.part and isinstance(ours, float) and isinstance(theirs, float):
            found[key] = (whole * ours - part * theirs) / rest
    return Figures(n=rest, figures=found) if found else None


def _own(layout: TableLayout, store: Store, setting: Setting, method: str) -> Record | None:
    """Return our record for a row, from the first folder that has one."""
    found = (store.row(folder, setting, method) for folder in layout.folders)
    return next((record for record in found if record is not None), None)


def _strangers(folder: dict[str, Record], rows: list[tuple[Setting, str]]) -> Iterator[str]:
    """Yield a note for each record in the table's own folder that belongs to no row."""
    for name, record in folder.items():
        if not any(record.of(setting, method) for setting, method in rows):
            yield f"Not shown: the record {name}, which belongs to no row of this table."
