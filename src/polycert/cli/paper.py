"""The package `polycert_paper`: what only reproduces the paper comes with the repository and not with the wheel."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from polycert.cli.exit_status import BadUsage


def paper_module(name: str) -> ModuleType:
    """A module of `polycert_paper`, which is found in a checkout, or a clear error."""
    folder = Path(__file__).parents[3] / "paper"
    if (folder / "polycert_paper").is_dir() and str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        return importlib.import_module(f"polycert_paper.{name}")
    except ModuleNotFoundError as error:
        if error.name != "polycert_paper":
            raise
        raise BadUsage(
            "what reproduces the paper is not in the installed package: clone polycert's repository, "
            "`pip install -e .` there, and run the same command again"
        ) from None
