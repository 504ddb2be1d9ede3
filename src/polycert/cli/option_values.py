"""Options whose text must be parsed: numbers, sizes and positions. Each parser raises `BadUsage` for a wrong text."""

from __future__ import annotations

import re
from fractions import Fraction

from polycert.cli.exit_status import BadUsage

_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def number(text: str, option: str) -> float:
    """Return the value of a decimal number, `inf`, or a fraction such as 2/255."""
    try:
        return float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise BadUsage(f"{option} must be a number such as 0.1 or 2/255, got {text!r}") from None


def bound(text: str | None, option: str, default: float | None) -> float | None:
    """Return one side of the box: a number, None for `none`, or the default if nothing was given."""
    if text is None:
        return default
    return None if text.lower() == "none" else number(text, option)


def size(text: str | None) -> int | None:
    """Return the bytes of `500M`, `2G`, `1.5GiB` or a plain number; K, M, G, T are powers of 1024."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    count = 0 if match is None else int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
    if count < 1:
        raise BadUsage(f"--memory must be a size such as 500M or 2G, got {text!r}")
    return count


def positions(text: str | None, length: int) -> list[int]:
    """Return the positions that `0:100`, `::10`, `3,7,-1` or a mixture selects among samples; all without a text."""
    if text is None:
        return list(range(length))
    found: list[int] = []
    for item in text.split(","):
        ends = item.strip().split(":")
        try:
            numbers = [int(end) if end.strip() else None for end in ends]
            if len(numbers) == 1:
                found.append(range(length)[int(ends[0])])
            else:
                found.extend(range(length)[slice(*numbers)])
        except IndexError:
            raise BadUsage(f"--indices: there is no sample {item.strip()} among {length}") from None
        except (ValueError, TypeError):
            raise BadUsage(f"--indices must look like 0:100, ::10 or 3,7,20, got {text!r}") from None
    if not found:
        raise BadUsage(f"--indices {text!r} selects none of the {length} samples")
    return found
