"""A training's metrics, a line of JSON per epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polycert.errors import PolycertError
from polycert.runtime.limits import parse_json, read_text


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """One row per epoch, none without a file; a last line that a kill cut short does not count."""
    lines = read_text(path).splitlines() if path.is_file() else []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise PolycertError(f"line {number} of {str(path)!r} is not JSON ({error}): remove it") from error
        if not (isinstance(row, dict) and isinstance(row.get("epoch"), int)):
            raise PolycertError(f"line {number} of {str(path)!r} has no epoch: remove it")
        rows.append(row)
    return rows
