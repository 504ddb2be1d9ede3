"""Tables and figures as files, and the page that shows them all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from polycert.errors import PolycertError
from polycert.records.files import whole_file
from polycert.report.plots import save
from polycert_paper.figures import FIGURES, Picture
from polycert_paper.stored_records import Store
from polycert_paper.table import Table
from polycert_paper.table_writers import WRITERS, folded, markdown
from polycert_paper.tables import TABLES

ALL = "all"
NAMES = (*TABLES, *FIGURES, ALL)
TABLE_FOLDER, IMAGE_FOLDER, PAGE = "tables", "images", "tables.md"
HEADING = """# The paper's tables and figures

Every table and figure of the paper (Liu, Salzmann, Süsstrunk, *Training Provably Robust Models by Polyhedral Envelope
Regularization*), its printed figures beside those of our records. Written by `polycert reproduce all --out docs`; what
is missing says which commands make it."""


def check(name: str) -> None:
    """Raise `PolycertError` unless the name is that of a table, a figure or all."""
    if name not in NAMES:
        raise PolycertError(f"there is no {name!r} to reproduce: choose one of {', '.join(NAMES)}")


@dataclass(frozen=True)
class Made:
    """The tables and figures of a name, before any file is written."""

    name: str
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]

    def write(self, folder: Path) -> list[Path]:
        """Write all files, and return their paths. The same records give the same bytes."""
        whole = self.name == ALL
        written = [path for table in self.tables for path in _write_table(table, folder / TABLE_FOLDER, whole=whole)]
        written += [path for picture in self.pictures for path in _write_picture(picture, folder / IMAGE_FOLDER)]
        if whole:
            written.append(_write_text(folder / PAGE, page(self.tables, self.pictures)))
        return written


def make(name: str, store: Store) -> Made:
    """Return the tables and figures of a name. A wrong record is found here, before the first file is written."""
    check(name)
    tables = tuple(table(store) for key, table in TABLES.items() if name in (key, ALL))
    return Made(name, tables, tuple(picture(store) for key, picture in FIGURES.items() if name in (key, ALL)))


def write(name: str, store: Store, folder: Path) -> list[Path]:
    """Make a table, a figure or all, write the files, and return their paths."""
    return make(name, store).write(folder)


def page(tables: Iterable[Table], pictures: Iterable[Picture]) -> str:
    """Return one Markdown page with all tables and figures."""
    parts = [HEADING]
    for table in tables:
        files = ", ".join(f"[{end[1:]}]({TABLE_FOLDER}/{table.name}{end})" for end in WRITERS if end != ".md")
        parts += [markdown(table).rstrip("\n"), f"Files: {files}."]
    return "\n\n".join([*parts, *(shown(picture, IMAGE_FOLDER) for picture in pictures)]) + "\n"


def shown(picture: Picture, images: str) -> str:
    """Return a figure as Markdown."""
    parts = [f"## Figure {picture.number}: {picture.title}"]
    if picture.figure is None:
        parts.append("Not drawn: there is no record yet.")
    else:
        parts += [f"![Figure {picture.number}: {picture.title}]({images}/{picture.name}.png)", picture.caption]
    return "\n\n".join([*parts, *folded(picture.missing)])


def _write_table(table: Table, folder: Path, *, whole: bool) -> Iterator[Path]:
    """Write one file for each format, without Markdown where the page has the table; yields the paths."""
    for ending, text in WRITERS.items():
        if not (whole and ending == ".md"):
            yield _write_text(folder / f"{table.name}{ending}", text(table))


def _write_picture(picture: Picture, folder: Path) -> Iterator[Path]:
    """Write a figure in both formats, if there is one; yields the paths."""
    for ending in (".png", ".svg"):
        if picture.figure is not None:
            folder.mkdir(parents=True, exist_ok=True)
            save(picture.figure, folder / f"{picture.name}{ending}")
            yield folder / f"{picture.name}{ending}"


def _write_text(path: Path, text: str) -> Path:
    """Write a text file, whole or not at all; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as name:
        name.write_text(text, encoding="utf-8", newline="\n")
    return path
