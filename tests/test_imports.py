"""The packages form a one-way road: each imports from those before it only (docs/architecture.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "polycert"
ROAD = [
    *("runtime", "forms", "sets", "records", "rules", "graph", "models", "bounding", "certification", "attacks"),
    *("verification", "losses", "data", "zoo", "training", "evaluation", "report", "cli"),
]


def imports() -> Iterator[tuple[str, str]]:
    """Pairs of a module and a module of another package that it imports, without `polycert.`."""
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polycert."):
                target = str(node.module).removeprefix("polycert.")
                if target.split(".")[0] in ROAD and target.split(".")[0] != module.split(".")[0]:
                    yield module, target


def test_every_package_is_on_the_road() -> None:
    assert {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ROAD)


def test_nothing_is_loose_in_the_root() -> None:
    found = {path.name for path in ROOT.iterdir() if path.is_file()}
    assert found == {"__init__.py", "__init__.pyi", "__main__.py", "errors.py", "exact.py", "py.typed"}


def test_imports_go_one_way() -> None:
    backward = {
        (module, target)
        for module, target in imports()
        if module.split(".")[0] in ROAD and ROAD.index(target.split(".")[0]) > ROAD.index(module.split(".")[0])
    }
    assert backward == set()


def test_no_package_knows_the_paper() -> None:
    texts = {
        path: path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py") if path != ROOT / "cli" / "reproduce.py"
    }
    assert [path for path, text in texts.items() if "polycert_paper" in text] == []
