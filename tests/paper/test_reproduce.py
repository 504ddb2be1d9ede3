"""The paper's tables and figures: printed figures against its source, differences by hand, files that never change."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner, Result

import polycert as pc
from polycert.cli import app
from polycert.errors import PolycertError
from polycert.models.architectures import build, fc1
from polycert.models.model_files import load_module
from polycert.training.recipe_files import library, read_recipe, to_toml
from polycert_paper import FIGURES, TABLES, Store, document, measure, printed_figures, write
from polycert_paper.figures import envelope_sketch
from polycert_paper.figures.histograms import PRINTED_NORMS, Histogram
from polycert_paper.layouts import LAYOUTS
from polycert_paper.settings import settings
from polycert_paper.table import Table, TableCell, TableLine, difference, rounded
from polycert_paper.table_writers import comma_separated, latex, listed, markdown
from polycert_paper.tangents import CURVES, SHARES

ROOT = Path(__file__).parents[2]
FC1 = {"dataset": "mnist", "architecture": "fc1", "activation": "relu", "norm": "inf", "eps": 0.1}
CIFAR_L2 = {"dataset": "cifar10", "architecture": "cnn", "activation": "relu", "norm": "2", "eps": 0.1}


# --- the paper's source -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(shared: Path) -> str:
    file = shared / "paper" / "polyhedral_envelope.tex"
    if not file.is_file():
        pytest.skip("the paper's source is not here (set POLYCERT_SHARED)")
    return file.read_text(encoding="utf-8")


def environment(source: str, label: str) -> list[str]:
    """The lines of the tabular before a label."""
    before = source[: source.index(f"\\label{{{label}}}")]
    return before[before.rindex("\\begin{tabular}") :].splitlines()


def names_and_numbers(lines: list[str]) -> list[tuple[str, list[str]]]:
    """Method and decimal numbers of each line that has both."""
    found = []
    for line in lines:
        first, *rest = line.split("&")
        name = first.replace("\\textbf{", "").replace("}", "").strip()
        numbers = re.findall(r"\d+\.\d+", "&".join(rest))
        if name.lower() in printed_figures.METHOD_NAMES and numbers:
            found.append((name.lower(), numbers))
    return found


@pytest.mark.parametrize(
    ("table", "label"),
    [("table1", "tbl:main"), ("table2", "tbl:nonrelu"), ("table8", "tbl:main_l2"), ("table9", "tbl:nonrelu_l2")],
)
def test_main_tables_are_the_papers(source: str, table: str, label: str) -> None:
    ours = [(method, list(figures.values())) for (_, method), figures in printed_figures.printed(table).items()]
    lines = environment(source, label)
    assert ours == names_and_numbers(lines)
    headings = next(line for line in lines if line.startswith("Methods"))
    spoken = [re.sub(r"[^A-Za-z ]", "", cell).split() for cell in headings.split("&")[1:]]
    figures = next(iter(printed_figures.printed(table).values()))
    words = {"Lin": ("Lin", "CRO"), "exact": ("MIP",)}
    for figure, cell in zip(figures, spoken, strict=True):
        first, _, second = figure.partition("_")
        assert cell[0] == first
        assert not second or cell[1] in words.get(second, (second,))


@pytest.mark.parametrize("table", ["table1", "table2", "table8", "table9"])
def test_sections_are_the_papers(source: str, table: str) -> None:
    label = {"table1": "tbl:main", "table2": "tbl:nonrelu", "table8": "tbl:main_l2", "table9": "tbl:nonrelu_l2"}[table]
    titles = [line for line in environment(source, label) if "multicolumn" in line]
    named = settings(setting for setting, _ in printed_figures.printed(table))
    assert len(titles) == len(named)
    for title, setting in zip(titles, named.values(), strict=True):
        norm = {"inf": r"l_\infty", "2": "l_2"}[setting.norm]
        activation = {"relu": "ReLU", "sigmoid": "Sigmoid", "tanh": "Tanh"}[setting.activation]
        start = f"{setting.dataset.upper()} - {setting.architecture.upper()}, {activation}, ${norm}$"
        assert start in title
        assert f"= {setting.eps}$" in title.replace(" / ", "/")
    rows = printed_figures.printed(table)
    per_section = len(rows) // len(named)
    assert [name for name, _ in rows] == [name for name in named for _ in range(per_section)]


def test_large_budgets_are_the_papers(source: str) -> None:
    lines = environment(source, "tab:big_budget")
    budgets = re.findall(r"\d\.\d(?![\d\]c])", next(line for line in lines if line.startswith("Value")))
    expected = {
        (f"mnist-e-linf-{eps}", method): number
        for method, numbers in names_and_numbers(lines)
        for eps, number in zip(budgets, numbers, strict=True)
    }
    assert {key: figures["CRE_exact"] for key, figures in printed_figures.printed("table3").items()} == expected
    assert len(expected) == 12


@pytest.mark.parametrize(
    ("table", "label", "norm"), [("table4", "tbl:search", "linf"), ("table10", "tbl:app_search_1", "l2")]
)
def test_searches_are_the_papers(source: str, table: str, label: str, norm: str) -> None:
    lines = environment(source, label)
    constant = re.findall(r"\\multirow\{7\}\{\*\}\{(\d+)\}", "".join(lines))
    expected = {}
    for method, numbers in names_and_numbers(lines):
        for k, network in enumerate(("mnist-fc1", "mnist-cnn", "cifar10-cnn")):
            expected[f"{network}-{norm}", method] = [constant[k], *numbers[2 * k : 2 * k + 2]]
    assert {key: list(figures.values()) for key, figures in printed_figures.printed(table).items()} == expected
    assert len(expected) == 21


def test_complexity_is_the_papers(source: str) -> None:
    expected = []
    for line in environment(source, "tab:complexity"):
        found = re.match(r"(.+?)\s*&\s*\$\\bigO\((.+)\)\$", line)
        if found:
            expected.append(found.groups())
    rows = printed_figures.lines("table5")
    assert [(row["method"], row["complexity"]) for row in rows] == expected
    for row in rows:
        powers = dict(re.findall(r"([Nn])(?:\^(\d))?", row["complexity"]))
        assert (row["depth"], row["width"]) == (powers["N"] or "1", powers["n"] or "1")


def test_hyperparameters_are_the_papers(source: str) -> None:
    lines = [line for line in environment(source, "tbl:hyperparams") if "&" in line][1:]
    for first, second in zip(lines[::2], lines[1::2], strict=True):
        dataset, (network, norm) = first.split("&")[0].strip(), second.split("&")[0].strip().split(", ")
        name = f"{dataset.lower()}-{network.lower()}-{'linf' if 'infty' in norm else 'l2'}"
        rows = [row for row in printed_figures.lines("table7") if row["setting"] == name]
        cells = [cell for line in (first, second) for cell in line.split("&")[1:]]
        numbers = re.findall(r"\d+\.\d+", cells[0])  # alpha is on the first line
        assert {row["alpha"] for row in rows} == set(numbers)
        assert {row["eps"] for row in rows} == set(re.findall(r"\d+\.\d+", cells[1]))
        every = re.findall(r"\\times 2\$ every (\d+) epochs", second)
        assert {row["every"] for row in rows} == set(every or [""])
        by_kind = dict(re.findall(r"(PER(?:\+at)?): \$(\d+\.\d+)\$", first + second))
        same = re.findall(r"\d+\.\d+", cells[2])
        for row in rows:
            for method in row["methods"].split():
                assert row["gamma"] == by_kind.get("PER+at" if method.endswith("+at") else "PER", *same[:1])
    methods = [m for row in printed_figures.lines("table7") for m in row["methods"].split()]
    assert len(methods) == 6 * 4


def test_norms_in_captions_are_the_papers(source: str) -> None:
    for name, label in (("figure3", "fig:param_dist"), ("figure8", "fig:param_dist_app")):
        before = source[: source.index(f"\\label{{{label}}}")]
        caption = before[before.rindex("\\caption") :]
        assert re.findall(r"\d+\.\d+", caption) == list(PRINTED_NORMS[name].values())


def test_corrections_are_in_the_notes(shared: Path) -> None:
    notes = (shared / "paper" / "notes.md").read_text(encoding="utf-8")
    rows = {table: printed_figures.printed(table) for table in LAYOUTS}
    for line in printed_figures.lines("corrections"):
        printed = rows[line["table"]][line["setting"], line["method"]][line["figure"]]
        assert line["value"] != printed, line
        for end in line["value"].split(" to "):
            assert end in notes or end.removeprefix("0") in notes, line


def test_every_row_has_a_recipe() -> None:
    recipes = library()
    for table in LAYOUTS:
        for setting, method in printed_figures.printed(table):
            assert recipes[f"{setting}-{method}"]["method"] == method


# --- tables -----------------------------------------------------------------------------------------------------------


def put(folder: Path, name: str, **values: Any) -> Path:
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A record of ours, one of another recipe, a released one with halves, and what figures need."""
    folder = tmp_path / "results"
    put(
        folder,
        "table1/mnist-fc1-linf-kw",
        **FC1,
        method="kw",
        n=10000,
        CTE=2.004,
        PGD=8.59,
        CRE_Lin=13.0,
        CRE_IBP=70.0,
        CRE_exact=[9.0, 9.5],
        ACB_Lin=0.087,
        ACB_IBP=0.03,
        ACB_PEC=0.09296,
        T_bisection=12.0,
        T_envelope=8.4,
        T_root=4.5,
        intervals={"CTE": [1.7456, 2.2954]},
        limits={"exact": 500},
    )
    course = {"command": "polycert train quick", "minutes_wall": 41.84, "metrics": [{"epoch": 1}, {"epoch": 2}]}
    put(folder, "table1/quick", **FC1, method="c-per", n=10000, CTE=1.87, seed=3, training=course)
    put(folder, "table1/stranger", **{**FC1, "eps": 0.2}, method="c-per")
    put(
        folder,
        "released/theirs",
        **FC1,
        method="c-per+at",
        n=10000,
        CTE=1.81,
        ACB_PEC=0.0925,
        clean_half={"n": 5000, "CTE": 2.40, "ACB_PEC": 0.0915},
    )
    put(folder, "table5/growth", exponents={"crown": {"samples": 1.02, "width": 2.5, "depth": 2.0}})
    curve = {"eps": [0.0, 0.1, 0.2], "radius": [0.0, 0.1, 0.05], "certified": [True, True, False]}
    about = {"model": "m", "dataset": "mnist", "source": "released networks", "method": "mmr+at", "index": 3}
    put(folder, "figure1/released-mmr+at", **about, **curve)
    for figure in ("figure3", "figure5"):
        for source in ("ours", "released networks"):
            values = {
                **FC1,
                "dataset": "cifar10",
                "low": -1.0,
                "high": 1.0,
                "counts": [1, 5, 3, 2],
                "below": 1,
                "above": 0,
            }
            put(folder, f"{figure}/{source}", source=source, method="kw", **values)
    for gamma, clean, certified in ((0.1, 24.0, 70.0), (1.0, 26.0, 47.0)):
        put(folder, f"figure4/gamma-{gamma}", **CIFAR_L2, method="c-per+at", CTE=clean, CRE_Lin=certified)
    return folder


def lines_of(table: Table, method: str, section: str = "MNIST FC1") -> dict[str, dict[str, TableCell]]:
    """The lines of a method by source, their cells by heading."""
    heads = [column.heading for column in table.columns]
    return {
        line.source: dict(zip(heads, line.cells, strict=True))
        for line in table.lines
        if line.method.removesuffix(" †") == method and line.section.startswith(section)
    }


def test_differences_by_hand(records: Path) -> None:
    kw = lines_of(TABLES["table1"](Store(records)), "KW")
    assert kw["paper"]["CTE"] == TableCell("2.26")
    assert kw["paper, corrected"]["CRE exact"] == TableCell("9.01 to 9.10")
    (name,) = [source for source in kw if source.startswith("ours") and "interval" not in source]
    assert name == "ours (exact: 500 samples)"
    ours = kw[name]
    assert ours["CTE"] == TableCell("2.00", "-0.26")
    assert ours["PGD"] == TableCell("8.59", "0.00")
    assert ours["CRE exact"] == TableCell("9.00 to 9.50", "-1.90 to -1.40")
    assert ours["ACB PEC"] == TableCell("0.0930", "+0.0002")
    assert ours["PGD strong"] == TableCell()
    assert kw[f"{name}, 95 % interval"]["CTE"] == TableCell("1.75 to 2.30")


def test_the_search_is_taken_from_the_main_table(records: Path) -> None:
    kw = lines_of(TABLES["table4"](Store(records)), "KW")["ours"]
    assert kw["T bisection"] == TableCell("12.00", "0.00")
    assert kw["T envelope"] == TableCell("8.40", "-0.08")
    assert kw["envelope / bisection"] == TableCell("0.7000", "-0.0066")
    assert kw["root / bisection"] == TableCell("0.3750")


def test_what_was_trained_here_says_how(records: Path) -> None:
    table = TABLES["trained"](Store(records))
    (line,) = table.lines
    assert (line.method, line.source) == ("C-PER", "`polycert train quick`")
    found = lines_of(table, "C-PER")[line.source]
    shown = {"seed": "3", "epochs": "2", "minutes": "41.8", "CPU minutes": "", "CRE Lin": ""}
    assert {name: found[name].value for name in shown} == shown
    assert found["CTE"] == TableCell("1.87", "+0.27")


def test_other_recipes_are_shown_beside(records: Path) -> None:
    table = TABLES["table1"](Store(records))
    found = lines_of(table, "C-PER")
    assert found["ours, quick"]["CTE"] == TableCell("1.87", "+0.27")
    assert "ours, missing" in found
    assert [note for note in table.notes if "stranger" in note] == [
        "Not shown: the record stranger, which belongs to no row of this table."
    ]


def test_methods_that_the_paper_has_not_come_after_its_own(records: Path) -> None:
    put(records, "table1/mixed", **FC1, method="mtl-kw", CTE=1.5, training={"command": "polycert train mixed"})
    table = TABLES["table1"](Store(records))
    mixed = lines_of(table, "MTL-KW")
    assert list(mixed) == ["ours, mixed"]
    assert mixed["ours, mixed"]["CTE"] == TableCell("1.50")
    order = [line.method for line in table.lines if line.section == table.lines[0].section]
    assert order[-1] == "MTL-KW"
    assert not any("mixed" in note for note in table.notes)
    assert not any("mtl" in item.what for item in table.missing)
    assert lines_of(TABLES["trained"](Store(records)), "MTL-KW")["`polycert train mixed`"]["CTE"] == TableCell("1.50")


def test_both_halves_of_a_leaked_test_set(records: Path) -> None:
    table = TABLES["table1"](Store(records))
    found = lines_of(table, "C-PER+at")
    assert found["released network"]["CTE"] == TableCell("1.81", "0.00")
    assert found["released network, half without leak"]["CTE"] == TableCell("2.40", "+0.59")
    assert found["released network, leaked half"]["CTE"] == TableCell("1.22", "-0.59")
    assert found["released network, leaked half"]["ACB PEC"].value == "0.0935"
    marked = {line.method for line in table.lines if "†" in line.method}
    assert marked == {"C-PER+at †", "I-PER+at †"}


def test_no_leaked_half_without_counts(records: Path) -> None:
    put(records, "released/theirs", **FC1, method="c-per+at", CTE=1.81, clean_half={"CTE": 2.40})
    assert "released network, leaked half" not in lines_of(TABLES["table1"](Store(records)), "C-PER+at")


def test_missing_rows_say_what_makes_them(records: Path) -> None:
    table = TABLES["table1"](Store(records))
    missing = {item.what: item.command for item in table.missing}
    assert len(missing) == 32  # all but KW, whose record is complete
    assert missing["cifar10-cnn-linf-ibp"] == (
        "polycert train cifar10-cnn-linf-ibp --run-dir runs/cifar10-cnn-linf-ibp && mkdir -p paper/results/table1 && "
        "polycert evaluate runs/cifar10-cnn-linf-ibp/model.safetensors --dataset cifar10 --norm inf --eps 2/255 "
        "--exact inf --out paper/results/table1/cifar10-cnn-linf-ibp.json"
    )
    put(records, "table1/mnist-fc1-linf-at", **FC1, method="at", CTE=1.42)
    again = {item.what: item.command for item in TABLES["table1"](Store(records)).missing}
    assert again["mnist-fc1-linf-at"].startswith(
        "mkdir -p paper/results/table1 && polycert evaluate runs/mnist-fc1-linf-at/"
    )


def test_growth_beside_the_papers_count(records: Path) -> None:
    table = TABLES["table5"](Store(records))
    crown = lines_of(table, "Fast-Lin / CROWN", "")
    assert crown["paper, counted"]["operations"] == TableCell("O(N^2 n^3)")
    assert crown["ours, measured"]["width n"] == TableCell("2.50", "-0.50")
    assert crown["ours, measured"]["depth N"] == TableCell("2.00", "0.00")
    assert [item.command for item in table.missing] == [
        "python benchmarks/growth.py --out paper/results/table5/growth.json"
    ]


def test_touching_points_touch() -> None:
    """The exact points solve f'(t) = d, and ours are equal to them."""
    table = TABLES["table6"](Store(Path()))
    slope = {"sigmoid": lambda t: 1 / (2 + 2 * math.cosh(t)), "tanh": lambda t: 1 / math.cosh(t) ** 2}
    for curve in CURVES:
        for number in (1, 2):
            found = lines_of(table, f"{curve.name}, t_{number}", "")
            for share, exact, ours in zip(SHARES, found["exact"].values(), found["ours"].values(), strict=True):
                t = float(exact.value)
                steepest = slope[curve.name](0.0)
                assert slope[curve.name](t) / steepest == pytest.approx(float(share), rel=2e-3)
                assert (t < 0) == (number == 1)
                assert abs(float(ours.difference)) <= 0.001
    lost = lines_of(table, "sigmoid, t_2", "")["paper's formula"]
    assert lost[f"d / steepest = {SHARES[-1]}"].value == "inf"


def test_recipes_have_the_papers_hyperparameters() -> None:
    table = TABLES["table7"](Store(Path()))
    ours = [line for line in table.lines if line.source.startswith("recipe")]
    assert len(ours) == 24
    for line in ours:
        assert all(not cell.difference or float(cell.difference) == 0 for cell in line.cells), line


@pytest.mark.parametrize(
    ("value", "digits", "text"), [(1.865, 1, "1.9"), ((1.0, 1.001), 2, "1.00"), ((1.0, 1.2), 1, "1.0 to 1.2")]
)
def test_rounding(value: Any, digits: int, text: str) -> None:
    assert rounded(value, digits) == text


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        ("1.87", "1.60", "+0.27"),
        ("1.60", "1.60", "0.00"),
        ("0.1 to 0.3", "0.2", "-0.1 to +0.1"),
        ("", "1", ""),
        ("1", "", ""),
    ],
)
def test_difference(ours: str, theirs: str, text: str) -> None:
    assert difference(ours, theirs) == text


# --- formats ----------------------------------------------------------------------------------------------------------


def assert_latex(text: str, columns: int) -> None:
    code = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    bare = re.sub(r"\\[\\&%$#_{}]", "", code)
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    opened = re.findall(r"\\begin\{(\w+)\}", code)
    assert sorted(opened) == sorted(re.findall(r"\\end\{(\w+)\}", code)) == ["table", "tabular"]
    body = bare[bare.index("\\hline") : bare.index("\\end{tabular}")]
    assert not set("#_^%~") & set(re.sub(r"\\text\w+\{\}", "", body))
    assert code.isascii()
    rows = [line for line in code.splitlines() if line.endswith("\\\\") and "multicolumn" not in line]
    assert rows
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == columns + 1


@pytest.mark.parametrize("name", TABLES)
def test_latex_is_balanced_and_escaped(records: Path, name: str) -> None:
    table = TABLES[name](Store(records))
    assert_latex(latex(table), len(table.columns))


def test_latex_escapes_everything() -> None:
    nasty = "50 % & a_b {c} #1 $x$ ~ ^ \\ † < >"
    table = Table("table0", nasty, (), (TableLine(nasty, nasty, nasty, ()),))
    assert_latex(latex(table), 0)


@pytest.mark.parametrize("name", TABLES)
def test_csv_reads_back(records: Path, name: str) -> None:
    table = TABLES[name](Store(records))
    rows = list(csv.DictReader(io.StringIO(comma_separated(table))))
    assert len(rows) == len(table.lines)
    for row, line in zip(rows, table.lines, strict=True):
        assert (row["section"], row[table.label], row["source"]) == line[:3]
        assert None not in row.values()
        for column, cell in zip(table.columns, line.cells, strict=True):
            assert row[column.heading] == cell.value
            assert row.get(f"{column.heading} difference", "") == cell.difference


def test_differences_in_csv_are_those_of_its_lines(records: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(comma_separated(TABLES["table1"](Store(records))))))
    printed = {(row["section"], row["method"]): row for row in rows if row["source"] == "paper"}
    checked = 0
    for row in rows:
        for key in (key for key in row if key.endswith(" difference") and row[key]):
            figure = key.removesuffix(" difference")
            theirs = Decimal(printed[row["section"], row["method"]][figure])
            ends = zip(row[figure].split(" to "), row[key].split(" to "), strict=True)
            assert all(Decimal(value) - theirs == Decimal(change) for value, change in ends)
            checked += 1
    assert checked > 10


@pytest.mark.parametrize("name", TABLES)
def test_markdown_tables_are_even(records: Path, name: str) -> None:
    text = markdown(TABLES[name](Store(records)))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    assert text.startswith("## Trained here\n" if name == "trained" else f"## Table {name.removeprefix('table')}: ")


# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything from the committed records."""
    folder = tmp_path_factory.mktemp("drawn")
    write("all", Store(ROOT / "paper" / "results"), folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_regenerating_changes_nothing(drawn: Path) -> None:
    before = contents(drawn)
    write("all", Store(ROOT / "paper" / "results"), drawn)
    assert contents(drawn) == before


def test_docs_are_what_the_records_give(drawn: Path) -> None:
    """`polycert reproduce all --out docs` after a change of records; pictures depend on the fonts' version."""
    texts = [name for name in contents(drawn) if name.endswith((".md", ".tex", ".csv"))]
    assert len(texts) == 23
    for name in texts:
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == (drawn / name).read_text(encoding="utf-8"), name
    images = {name for name in contents(drawn) if name.startswith("images/")}
    assert all((ROOT / "docs" / name).is_file() for name in images)


def test_another_process_draws_the_same(records: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    names = ("figure1", "figure5")
    for name in names:
        write(name, Store(records), tmp_path / "here")
    code = (
        "import pathlib; from polycert_paper import Store, write\n"
        f"records, out = map(pathlib.Path, ({str(records)!r}, {str(tmp_path / 'there')!r}))\n"
        f"for name in {names!r}: write(name, Store(records), out)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert len(contents(tmp_path / "here")) == 4
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


@pytest.mark.parametrize("name", FIGURES)
def test_pictures_are_drawn_or_say_what_is_missing(records: Path, tmp_path: Path, name: str) -> None:
    picture = FIGURES[name](Store(records))
    written = write(name, Store(records), tmp_path / "out")
    if name in ("figure8", "figure9"):
        assert picture.figure is None
        assert written == []
        assert len(picture.missing) == 3
        assert all(item.command.startswith("polycert train cifar10-cnn-l2-") for item in picture.missing)
    else:
        assert [path.suffix for path in written] == [".png", ".svg"]
        assert all(path.stat().st_size > 5000 for path in written)
        assert picture.figure is not None
        assert all(axes.get_xlabel() for axes in picture.figure.axes)
        assert picture.figure.axes[0].get_ylabel()


def test_missing_gammas(records: Path) -> None:
    missing = [item.command for item in FIGURES["figure4"](Store(records)).missing]
    assert len(missing) == 5
    assert (
        "--set gamma=0.3 --run-dir runs/figure4-gamma-0.3 && mkdir -p paper/results/figure4 && polycert evaluate"
        in "".join(missing)
    )


def test_the_caption_of_the_sweep_says_how_long_its_runs_were(records: Path) -> None:
    assert "epochs" not in FIGURES["figure4"](Store(records)).caption
    for gamma, epochs in ((0.3, 6), (3.0, 8)):
        training = {"command": "polycert train x", "metrics": [{"epoch": 1}] * epochs}
        put(records, f"figure4/gamma-{gamma}", **CIFAR_L2, method="c-per+at", CTE=1.0, CRE_Lin=2.0, training=training)
    assert "ours after 6 to 8 epochs" in FIGURES["figure4"](Store(records)).caption


def test_histogram_shares() -> None:
    values = {**FC1, "source": "ours", "method": "kw", "low": 0.0, "high": 1.0}
    found = Histogram(**values, counts=[2, 4, 6, 4], below=1, above=2, zero=1)
    share, edges = found.steps(2)
    assert share.tolist() == [30.0, 50.0]
    assert edges.tolist() == [0.0, 0.5, 1.0]


def test_the_sketch_tells_the_truth() -> None:
    """No point of ball and envelope has another class; the distance is where the envelope's border is."""
    net, rng = envelope_sketch.network(), np.random.default_rng(0)
    point = torch.tensor([envelope_sketch.POINT], dtype=torch.float64)
    for eps in envelope_sketch.RADII:
        found = pc.envelope(net, point, torch.tensor([0]), pc.Ball(norm=2, eps=eps))
        angle, radius = rng.uniform(0, 2 * np.pi, 4000), eps * np.sqrt(rng.uniform(0, 1, 4000))
        near = point + torch.from_numpy(np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1))
        inside = ((near @ found.slope[0].T) + found.offset[0]).min(1).values > 0
        with torch.no_grad():
            assert bool((net(near[inside]).argmax(1) == 0).all())
        distance = (point @ found.slope[0].T + found.offset[0]) / found.slope[0].norm(dim=1)
        assert float(found.distances().detach().min()) == pytest.approx(float(distance.min().detach()))
        assert (float(distance.detach().min()) >= eps) == (eps == envelope_sketch.RADII[0])


# --- measurements -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with a small network for MNIST."""
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    architecture = fc1((1, 28, 28), hidden=8)
    pc.save(build(architecture), folder / "model.safetensors", architecture, (1, 28, 28))
    recipe = read_recipe("mnist-fc1-linf-kw")
    (folder / "recipe.toml").write_text(to_toml(recipe.plain()), encoding="utf-8")
    return folder


def test_parameters_are_counted(run: Path, tmp_path: Path) -> None:
    target = measure.add("figure3", run / "model.safetensors", tmp_path / "results", measure.Settings())
    assert target == tmp_path / "results" / "figure3" / "mine.json"
    stored = json.loads(target.read_text(encoding="utf-8"))
    module = load_module(run / "model.safetensors").module
    values = np.concatenate([value.detach().numpy().ravel() for value in module.parameters()]).astype(np.float64)
    assert stored["parameter_norm"] == pytest.approx(np.linalg.norm(values), abs=1e-4)
    assert sum(stored["counts"]) == len(values) == 784 * 8 + 8 + 80 + 10
    assert sum(stored["counts"][50:]) == (values >= 0).sum()
    assert (stored["source"], stored["method"]) == ("ours", "kw")


def test_radii_come_from_stored_samples(run: Path, tmp_path: Path) -> None:
    frame = pd.DataFrame({"largest": [0.0, 0.05, 0.11, 0.3, 0.7, 0.0]})
    frame.to_parquet(run / "evaluation.samples.parquet")
    stored = json.loads(
        measure.add("figure5", run / "model.safetensors", tmp_path / "results", measure.Settings()).read_text("utf-8")
    )
    assert (stored["zero"], stored["above"], sum(stored["counts"])) == (2, 1, 3)
    assert (stored["low"], stored["high"]) == (0.0, 0.5)
    (run / "evaluation.samples.parquet").write_bytes(b"no parquet")
    with pytest.raises(PolycertError, match=r"evaluation\.samples\.parquet"):
        measure.add("figure5", run / "model.safetensors", tmp_path / "results", measure.Settings())


def test_models_of_unknown_origin_are_refused(run: Path, tmp_path: Path) -> None:
    (run / "recipe.toml").unlink()
    with pytest.raises(PolycertError, match=r"recipe\.toml"):
        measure.add("figure3", run / "model.safetensors", tmp_path / "results", measure.Settings())
    assert not (tmp_path / "results").exists()


def test_released_norms_are_the_captions(shared: Path, tmp_path: Path) -> None:
    for name, method in (("kw", "kw"), ("c-perat", "c-per+at")):
        model = shared / "zoo" / "relu_linf__cifar10_cnn" / f"cifar_cnn_l1_{name}.npz"
        stored = json.loads(measure.add("figure3", model, tmp_path, measure.Settings()).read_text("utf-8"))
        assert f"{stored['parameter_norm']:.2f}" == PRINTED_NORMS["figure3"][method]
        assert stored["source"] == measure.THEIRS


# --- the command ------------------------------------------------------------------------------------------------------


def polycert(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def assert_refused(result: Result, status: int, *words: str) -> None:
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert all(word in result.stderr for word in words), result.stderr


def test_a_table_is_printed(records: Path) -> None:
    result = polycert("table1", "--records", records)
    assert result.exit_code == 0, result.output
    assert result.stdout == markdown(TABLES["table1"](Store(records)), listed)
    assert "&&" in result.stdout


def test_files_of_a_table(records: Path, tmp_path: Path) -> None:
    result = polycert("table4", "--records", records, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert sorted(contents(tmp_path / "out")) == [f"tables/table4{end}" for end in (".csv", ".md", ".tex")]


def test_an_unknown_name_is_refused(records: Path) -> None:
    assert_refused(polycert("table11", "--records", records), 2, "table11", "table10", "figure9", "all")


def test_a_broken_record_is_named(records: Path, tmp_path: Path) -> None:
    path = records / "table1" / "mnist-fc1-linf-at.json"
    path.write_text("{", encoding="utf-8")
    assert_refused(polycert("all", "--records", records, "--out", tmp_path / "out"), 1, str(path), "JSON")
    assert not (tmp_path / "out").exists()
    path.write_text("[]", encoding="utf-8")
    assert_refused(polycert("table1", "--records", records), 1, str(path), "one JSON object, got list")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"CTE": "many"}, ("CTE", "number")),
        ({"CTE": math.nan}, ("CTE", "finite")),
        ({"CRE_exact": 3.0}, ("CRE_exact",)),
        ({"eps": 0.3}, ("as its name says", "0.3")),
        ({"method": "kw"}, ("as its name says", "kw")),
    ],
)
def test_a_wrong_record_is_named(records: Path, change: dict[str, Any], words: tuple[str, ...]) -> None:
    path = put(records, "table1/mnist-fc1-linf-at", **{**FC1, "method": "at", "CTE": 1.0, **change})
    assert_refused(polycert("table1", "--records", records), 1, str(path), *words)


def test_a_misnamed_sweep_is_named(records: Path, tmp_path: Path) -> None:
    put(records, "figure4/gamma-x", **CIFAR_L2, method="c-per+at", CTE=1.0)
    assert_refused(polycert("figure4", "--records", records, "--out", tmp_path), 1, "gamma-x.json", "rename")


def test_bad_usage(records: Path, tmp_path: Path, run: Path) -> None:
    assert_refused(polycert("figure1", "--records", records), 2, "--out")
    assert_refused(polycert("all", "--records", records), 2, "--out")
    assert_refused(polycert("table1", "--records", tmp_path / "nowhere"), 2, "--records", "nowhere")
    file = put(tmp_path, "file")
    assert_refused(polycert("table1", "--records", records, "--out", file), 2, "--out")
    assert_refused(polycert("figure2", "--add", run / "model.safetensors"), 2, "--add", "figure1")
    assert_refused(polycert("figure3", "--add", tmp_path / "no.npz"), 2, "no.npz")


def test_adding_by_command(run: Path, tmp_path: Path) -> None:
    result = polycert("figure3", "--add", run / "model.safetensors", "--records", tmp_path / "r")
    assert result.exit_code == 0, result.output
    assert Path(result.stdout.replace("\n", "")) == tmp_path / "r" / "figure3" / "mine.json"


def test_names_are_complete() -> None:
    tables, figures = [f"table{k}" for k in range(1, 11)], [f"figure{k}" for k in range(1, 10)]
    assert list(document.NAMES) == [*tables, "trained", *figures, "all"]
