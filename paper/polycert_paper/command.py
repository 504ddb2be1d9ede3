"""The command `polycert reproduce`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from polycert.cli.exit_status import BadUsage, tell, usage
from polycert.cli.options import ReproduceOptions
from polycert.cli.progress import progress_bar
from polycert_paper import TABLES, document, measure
from polycert_paper.stored_records import RECORDS, Store
from polycert_paper.table_writers import listed, markdown


def reproduce_command(options: ReproduceOptions) -> None:
    """Measure a model for a figure, or make tables and figures from stored records."""
    with usage():
        document.check(options.name)
    if options.add is not None:
        _add(options, options.add)
        return
    _check_folders(options)
    made = document.make(options.name, Store(options.records or RECORDS))
    if options.out is None:
        text = "\n".join(markdown(table, listed) for table in made.tables)
        Console(highlight=False, soft_wrap=True, markup=False).print(text, end="")
        return
    written = made.write(options.out)
    if not options.quiet:
        names = ", ".join(str(path.relative_to(options.out)) for path in written) or "nothing"
        tell(f"written to {options.out}: {names}")
        _remark(made)


def _check_folders(options: ReproduceOptions) -> None:
    """Raise `BadUsage` if a folder of the options does not fit."""
    if options.records is not None and not options.records.is_dir():
        raise BadUsage(f"--records: there is no folder {str(options.records)!r}")
    if options.out is None and options.name not in TABLES:
        raise BadUsage(f"{options.name} needs --out DIR, a folder for the pictures")
    if options.out is not None and options.out.exists() and not options.out.is_dir():
        raise BadUsage(f"--out must be a folder, but {str(options.out)!r} is a file")


def _remark(made: document.Made) -> None:
    """Say how many records are missing, and how to make those of a figure, which leaves no file without them."""
    absent = [item for table in made.tables for item in table.missing]
    absent += [item for picture in made.pictures for item in picture.missing]
    if absent:
        tell(f"{len(absent)} records are missing or incomplete", style="yellow")
    for picture in made.pictures if made.name != document.ALL else ():
        for item in picture.missing:
            tell(f"{item.what} is made by: {item.command}", style="yellow")


def _add(options: ReproduceOptions, model: Path) -> None:
    """Measure what a figure needs of a model, store it, and print the file's path."""
    if options.name not in measure.MEASURES:
        raise BadUsage(f"--add goes with {', '.join(measure.MEASURES)}, not {options.name}")
    if not model.is_file():
        raise BadUsage(f"--add: there is no file {str(model)!r}")
    if options.data_dir is not None and not options.data_dir.is_dir():
        raise BadUsage(f"--data-dir: there is no folder {str(options.data_dir)!r}")
    with progress_bar(quiet=options.quiet) as bar:

        def advance(done: int, total: int) -> None:
            bar.update(bar.task_ids[0], description="searching", completed=done, total=total)

        settings = measure.Settings(options.limit, options.index, options.data_dir, options.threads or 1, advance)
        target = measure.add(options.name, model, options.records or RECORDS, settings)
    Console(highlight=False).print(str(target), soft_wrap=True, markup=False)
