"""The reference page names every public object, and nothing else."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import polycert as pc
from polycert import training

DOCS = Path(__file__).parents[2] / "docs"
NAMED = re.findall(r"^::: ([\w.]+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
MODULES = {"data", "exact", "losses", "zoo"}  # public names that are modules: their own names are listed
# What a data set's files are made of: exported for tests and tools, described on the page "Data sets".
RAW = {"NAMES", "SAMPLE", "SETS", "Arrays", "RawSet", "Split", "parse_cifar", "parse_idx", "parse_idx_pair"}


def public() -> set[str]:
    """All that users may rely on, by its public path."""
    found = {f"polycert.{name}" for name in pc.__all__ if name not in MODULES and name != "__version__"}
    found |= {f"polycert.losses.{name}" for name in pc.losses.__all__}
    found |= {f"polycert.data.{name}" for name in pc.data.__all__ if name not in RAW}
    found |= {f"polycert.zoo.{name}" for name in pc.zoo.__all__ if name.upper() != name}
    found |= {f"polycert.training.{name}" for name in training.__all__}
    return found | {f"polycert.exact.{name}" for name in pc.exact.__all__ if name not in pc.__all__}


def test_nothing_public_is_missing_from_the_reference() -> None:
    assert set(NAMED) == public()


@pytest.mark.parametrize("path", NAMED)
def test_every_entry_of_the_reference_exists_and_is_documented(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert getattr(importlib.import_module(module), name).__doc__
