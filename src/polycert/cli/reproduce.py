"""`polycert reproduce`: the paper's tables and figures."""

from __future__ import annotations

from polycert.cli.options import ReproduceOptions
from polycert.cli.paper import paper_module


def reproduce_command(options: ReproduceOptions) -> None:
    """Run the command of the package about the paper."""
    paper_module("command").reproduce_command(options)
