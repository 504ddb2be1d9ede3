"""Tables before they are written. A line has a method, a source, and cells that may carry a difference."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

TO = " to "  # between the ends of an interval


class TableCell(NamedTuple):
    """A figure as text, and its difference from the paper's."""

    value: str = ""
    difference: str = ""


class TableColumn(NamedTuple):
    """A column's heading, and whether its cells have differences."""

    heading: str
    compared: bool = True


class TableLine(NamedTuple):
    """A line: its section, the method, the source of the figures, and one cell for each column."""

    section: str
    method: str
    source: str
    cells: tuple[TableCell, ...]


class Missing(NamedTuple):
    """A missing record, and the command that makes it."""

    what: str
    command: str


@dataclass(frozen=True)
class Table:
    """A table of the paper beside ours, or one of ours alone; `label` heads the first column."""

    name: str
    title: str
    columns: tuple[TableColumn, ...]
    lines: tuple[TableLine, ...]
    notes: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    label: str = "method"

    @property
    def heading(self) -> str:
        """The title, with the table's number in the paper if it has one."""
        number = self.name.removeprefix("table")
        return self.title if number == self.name else f"Table {number}: {self.title}"

    @property
    def sections(self) -> dict[str, list[TableLine]]:
        """The lines of each section, in order."""
        found: dict[str, list[TableLine]] = {}
        for line in self.lines:
            found.setdefault(line.section, []).append(line)
        return found


Figure = float | tuple[float, float]


def rounded(value: Figure, digits: int) -> str:
    """Return a figure, or an interval as `low to high`, with so many digits."""
    ends = value if isinstance(value, tuple) else (value,)
    return TO.join(dict.fromkeys(f"{end:.{digits}f}" for end in ends))


def difference(ours: str, paper: str) -> str:
    """Return ours minus the paper's, both as printed; of an interval, the differences of both ends."""
    if not ours or not paper or TO in paper:
        return ""
    ends = [Decimal(end) - Decimal(paper) for end in ours.split(TO)]
    return TO.join(f"{end:+}" if end else f"{abs(end)}" for end in ends)


def compared(ours: str, paper: str) -> TableCell:
    """Return a cell with our figure and its difference from the paper's."""
    return TableCell(ours, difference(ours, paper))
