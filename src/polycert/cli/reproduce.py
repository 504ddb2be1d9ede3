"""`polycert reproduce`: the paper's tables and figures, which come with the repository and not with the wheel."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from polycert.cli.exit_status import BadUsage
from polycert.cli.options import ReproduceOptions


def reproduce_command(options: ReproduceOptions) -> None:
    """Run the command of the package `polycert_paper`, which is found in a checkout."""
    folder = Path(__file__).parents[3] / "paper"
    if (folder / "polycert_paper").is_dir() and str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        command = importlib.import_module("polycert_paper.command")
    except ModuleNotFoundError as error:
        if error.name != "polycert_paper":
            raise
        raise BadUsage(
            "the paper's tables and figures are not in the installed package: clone polycert's repository, "
            "`pip install -e .` there, and run `polycert reproduce` again"
        ) from None
    command.reproduce_command(options)
