"""`polycert reproduce`: the paper's tables and figures, by the package `polycert_paper`.

That package holds what only reproduces the paper. It comes with the repository, not with the wheel.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from polycert.cli.exit_status import BadUsage
from polycert.cli.options import ReproduceOptions


def reproduce_command(options: ReproduceOptions) -> None:
    """Run the command, which is in the paper's package."""
    paper_module("command").reproduce_command(options)


def paper_module(name: str) -> ModuleType:
    """Return a module of `polycert_paper`; raises `BadUsage` outside of a checkout."""
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
