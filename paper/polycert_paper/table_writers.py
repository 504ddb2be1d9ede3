"""Tables as Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Iterable, Iterator, Sequence

from polycert_paper.table import Missing, Table, TableCell, TableLine

Commands = Callable[[Sequence[Missing]], Iterator[str]]
NOTHING = "–"
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "†": r"\dag{}",
    "–": "--",
    "×": r"$\times$",
    "±": r"$\pm$",
    "∓": r"$\mp$",
    "<": r"$<$",
    ">": r"$>$",
}


def folded(missing: Sequence[Missing]) -> Iterator[str]:
    """Yield the commands that make missing records, folded up for a page."""
    if missing:
        text = html.escape("\n".join(item.command for item in missing), quote=False)
        yield f"<details><summary>{_count(missing)}</summary>\n<pre><code>{text}\n</code></pre>\n</details>"


def listed(missing: Sequence[Missing]) -> Iterator[str]:
    """Yield the commands that make missing records, for a terminal."""
    if missing:
        yield "\n".join([f"{_count(missing)}:", "", *(f"    {item.command}" for item in missing)])


def _count(missing: Sequence[Missing]) -> str:
    """Return how many records are missing, in words."""
    return f"{len(missing)} {'is' if len(missing) == 1 else 'are'} missing; made by"


def markdown(table: Table, commands: Commands = folded) -> str:
    """Return headings, one Markdown table for each section, notes, and the commands for missing records."""
    parts = [f"## {table.heading}"]
    for section, lines in table.sections.items():
        if section:
            parts.append(f"### {section}")
        rows = [_heads(table)]
        rows.append(["---", "---", *("---:" for _ in table.columns)])
        rows += [[method, line.source, *map(_shown, line.cells)] for method, line in _once(lines)]
        parts.append("\n".join("| " + " | ".join(map(_escaped, row)) + " |" for row in rows))
    parts += table.notes
    return "\n\n".join([*parts, *commands(table.missing)]) + "\n"


def latex(table: Table) -> str:
    """Return a `table` environment that needs no packages; comments hold the commands for missing records."""
    width = len(table.columns) + 2
    body = [r"\hline", _latex_row(_heads(table)), r"\hline"]
    for section, lines in table.sections.items():
        if section:
            body.append(rf"\multicolumn{{{width}}}{{c}}{{\textbf{{{_latex(section)}}}}} \\")
        body += [_latex_row([method, line.source, *map(_shown, line.cells)]) for method, line in _once(lines)]
        body.append(r"\hline")
    caption = " ".join([f"{table.heading}.", *table.notes]).replace("*", "")
    return "\n".join(
        [
            *(f"% missing: {item.command}" for item in table.missing),
            r"\begin{table}",
            r"\centering\footnotesize",
            rf"\begin{{tabular}}{{ll{'r' * len(table.columns)}}}",
            *body,
            r"\end{tabular}",
            rf"\caption{{{_latex(caption.replace('`', ''))}}}",
            rf"\label{{tab:{table.name}}}",
            r"\end{table}",
            "",
        ]
    )


def comma_separated(table: Table) -> str:
    """Return one line for each source, with the differences after each compared column."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    heads = [[c.heading, f"{c.heading} difference"] if c.compared else [c.heading] for c in table.columns]
    writer.writerow(["section", table.label, "source", *(name for pair in heads for name in pair)])
    for line in table.lines:
        cells = zip(line.cells, table.columns, strict=True)
        values = (list(cell) if column.compared else [cell.value] for cell, column in cells)
        writer.writerow([line.section, line.method, line.source, *(text for pair in values for text in pair)])
    return file.getvalue()


WRITERS: dict[str, Callable[[Table], str]] = {".md": markdown, ".tex": latex, ".csv": comma_separated}


def _heads(table: Table) -> list[str]:
    """Return the headings of all columns."""
    return [table.label, "source", *(column.heading for column in table.columns)]


def _once(lines: Iterable[TableLine]) -> Iterator[tuple[str, TableLine]]:
    """Yield each line with its method, or with an empty text if the line before has the same method."""
    before = None
    for line in lines:
        yield ("" if line.method == before else line.method), line
        before = line.method


def _shown(cell: TableCell) -> str:
    """Return a cell as text, with its difference in brackets."""
    if not cell.value:
        return NOTHING
    return f"{cell.value} ({cell.difference})" if cell.difference else cell.value


def _escaped(text: str) -> str:
    """Return a text for a cell of Markdown."""
    return text.replace("|", r"\|").replace("*", r"\*")


def _latex(text: str) -> str:
    """Return a text for LaTeX."""
    return "".join(_LATEX.get(character, character) for character in text)


def _latex_row(cells: Sequence[str]) -> str:
    """Return a row of a LaTeX table."""
    return " & ".join(map(_latex, cells)) + r" \\"
