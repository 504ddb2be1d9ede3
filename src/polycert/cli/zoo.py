"""`polycert zoo`."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from polycert import zoo
from polycert.cli.exit_status import BadUsage, tell, usage
from polycert.cli.options import ZooOptions
from polycert.cli.output import show_record
from polycert.records.figures import FIGURES

ENDLESS = 10_000  # characters
FACTS = ("dataset", "architecture", "method", "norm", "eps")
SHORT = [figure.key for figure in FIGURES.values() if figure.short]


def zoo_command(options: ZooOptions) -> None:
    """List the models, show one, or add one."""
    if options.add is not None:
        if not options.add.is_dir():
            raise BadUsage(f"--add: there is no folder {str(options.add)!r}")
        made = zoo.add(options.add, options.name)
        tell(f"added {made.name} to {made.folder}")
    elif options.name is None:
        _list()
    else:
        with usage():
            found = zoo.entry(options.name)
        found.verify()
        console = Console(highlight=False)
        console.print(f"{found.path()}\n\n{found.recipe}", markup=False, soft_wrap=True)
        show_record(f"{found.name} on {found.record['dataset']}", found.record)


def _list() -> None:
    """Print a table of the models."""
    table = Table(box=box.SIMPLE)
    for title in ("model", *FACTS, *SHORT):
        table.add_column(title, justify="left" if title in ("model", *FACTS[:3]) else "right", no_wrap=True)
    for name in zoo.names():
        record = zoo.entry(name).record
        facts = [_text(record.get(fact)) for fact in FACTS]
        table.add_row(name, *facts, *(_text(record.get(figure)) for figure in SHORT))
    # In a narrow terminal the lines wrap; at its width, rich would cut names and figures off.
    needed = Console(width=ENDLESS).measure(table).maximum
    Console(highlight=False, width=max(Console().width, needed)).print(table)


def _text(value: object) -> str:
    """Return a value of a record as text."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
