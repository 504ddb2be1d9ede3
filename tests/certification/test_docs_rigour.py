"""docs/rigour.md names, for every claim, files and tests that exist."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "rigour.md").read_text()
CLAIMS = PAGE.split("\n## The hunt")[0].splitlines()  # what follows has figures
CELL = re.compile(r"(?<!\\)\|")
TEST = re.compile(r"\btest_\w+")
PLACE = re.compile(r"`([\w/]+\.py)`")


def known() -> set[str]:
    """Names of all tests."""
    files = [ast.parse(path.read_text()) for path in (ROOT / "tests").rglob("test_*.py")]
    return {node.name for file in files for node in file.body if isinstance(node, ast.FunctionDef)}


def claims() -> list[list[str]]:
    """Rows of the page's tables, without their headers: cells."""
    rows = []
    for line in CLAIMS:
        cells = [cell.strip() for cell in CELL.split(line)[1:-1]]
        if line.startswith("|") and set(line) - set("|-") and cells[-1] != "test":
            rows.append(cells)
    return rows


def test_every_test_on_the_page_exists() -> None:
    missing = set(TEST.findall(PAGE)) - known()
    assert not missing


def test_every_table_ends_in_a_test() -> None:
    headers = [before for before, line in itertools.pairwise(CLAIMS) if line.startswith("|---")]
    assert headers
    assert all(header.endswith("| place | test |") for header in headers)


@pytest.mark.parametrize("cells", claims(), ids=lambda cells: cells[0][:40])
def test_a_claim_has_a_place_and_a_test(cells: list[str]) -> None:
    *_, place, named = cells
    assert TEST.search(named)
    places = PLACE.findall(place)
    assert places
    assert all((ROOT / "src" / "polycert" / name).is_file() for name in places)
