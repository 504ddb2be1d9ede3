"""What stands in several files agrees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import polycert as pc
from polycert.runtime.limits import parse_toml

ROOT = Path(__file__).parents[2]


def test_the_citation_names_the_version() -> None:
    assert f"version: {pc.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_every_page_of_the_documentation_is_in_its_navigation() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert set(re.findall(r": ([\w-]+\.md)$", text, re.MULTILINE)) == pages


def test_the_workflow_runs_every_python_that_is_promised() -> None:
    project = parse_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert project["requires-python"] == f">={promised[0]}"
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert re.findall(r'"(3\.\d+)"', re.findall(r"python: \[(.*)\]", workflow)[0]) == promised


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_dollars_come_in_pairs(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert prose.count("$") % 2 == 0
