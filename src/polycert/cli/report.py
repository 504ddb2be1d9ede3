"""`polycert report`."""

from __future__ import annotations

from polycert.cli.exit_status import tell, usage
from polycert.cli.options import ReportOptions
from polycert.cli.reproduce import paper_module
from polycert.report import write_report
from polycert.report.page import check_page


def report_command(options: ReportOptions) -> None:
    """Read the records and write the page."""
    with usage():
        check_page(options.out)
    parts = [paper_module("claims").claims_part] if options.paper else []
    runs = write_report(options.runs, options.out, parts)
    if not options.quiet:
        size = options.out.stat().st_size / 1e6
        samples = sum(0 if run.samples is None else len(run.samples) for run in runs)
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        tell(f"{count}, {samples:,} samples: written to {options.out} ({size:.1f} MB)")
