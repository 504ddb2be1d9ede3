"""One self-contained HTML page about models, made of their records."""

from polycert.report.page import write_report

__all__ = ["write_report"]
