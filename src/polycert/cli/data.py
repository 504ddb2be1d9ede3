"""`polycert data`."""

from __future__ import annotations

from rich.console import Console

from polycert import data
from polycert.cli.exit_status import BadUsage, tell
from polycert.cli.options import DataOptions


def data_command(options: DataOptions) -> None:
    """Fetch a data set, or check the copy that is there; print its folder."""
    if options.name not in data.NAMES:
        raise BadUsage(f"unknown data set {options.name!r}: the data sets are {', '.join(data.NAMES)}")
    if options.directory is not None and not options.directory.is_dir():
        raise BadUsage(f"--dir: there is no folder {str(options.directory)!r}")
    folder = data.fetch(options.name, options.directory, None if options.quiet else tell)
    Console(highlight=False).print(str(folder), soft_wrap=True, markup=False)
