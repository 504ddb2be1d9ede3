"""The command line, `polycert` or `python -m polycert`. Only this package prints, and sets threads and seeds."""

from polycert.cli.app import app, main

__all__ = ["app", "main"]
