"""The lists of ops in the documentation, as the registry has them.

python -m tests.docs.op_lists   writes them into the pages
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import get_args

from polycert.graph.onnx.constant_folding import FOLDS
from polycert.rules.examples import short
from polycert.rules.registry import Family, Rule, rules

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- from the registry: begin -->\n", "<!-- end -->"


def torch_names(declared: Rule) -> Iterable[str]:
    """Of ATen's ops, without what tells their variants apart."""
    return (short(target).split(".")[0].strip("_") for target in declared.targets)


def onnx_names(declared: Rule) -> Iterable[str]:
    """Of the ONNX ops that are read into it."""
    return declared.onnx


def table(head: str, rows: Iterable[tuple[str, Iterable[str]]]) -> str:
    """A table of two columns, the second a list of names in order; a row without names is left out."""
    lines = [f"| kind | {head} |", "|---|---|"]
    lines += [f"| {kind} | {', '.join(f'`{n}`' for n in sorted(set(names)))} |" for kind, names in rows if names]
    return "\n".join(lines) + "\n"


def by_family(names: Callable[[Rule], Iterable[str]]) -> list[tuple[str, list[str]]]:
    """The names of all rules, family by family."""
    return [(kind, [n for found in rules() if found.family == kind for n in names(found)]) for kind in get_args(Family)]


def lists() -> dict[str, str]:
    """The table of each page."""
    constants = sorted({"Constant", "Shape", "Size", *FOLDS})
    return {
        "architectures.md": table("ops of torch", by_family(torch_names)),
        "onnx.md": table("ONNX ops", [*by_family(onnx_names), ("on constants", constants)]),
    }


def parts(page: str) -> tuple[str, str, str]:
    """What is before the list, the list, and what is behind it."""
    before, rest = page.split(BEGIN)
    listed, after = rest.split(END)
    return before, listed, after


def main() -> None:
    """Write the lists."""
    for name, text in lists().items():
        path = DOCS / name
        before, _, after = parts(path.read_text(encoding="utf-8"))
        path.write_text(before + BEGIN + text + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
