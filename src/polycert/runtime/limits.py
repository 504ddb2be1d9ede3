"""How large what a file declares may be: one set of limits, looked at before anything is allocated.

Every reader takes its bytes, texts and shapes through here. `POLYCERT_LARGEST_FILE`, a number of GiB, moves the limit
on files of weights and samples; the others are far beyond what networks and properties need.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from polycert.errors import PolycertError, reason

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GIB = 2**30
PROTOBUF = 2**31 - 1  # bytes of an ONNX file: what a protobuf can hold
TEXT = GIB // 4  # bytes of a property or of JSON, unpacked
RECIPE = 2**20  # bytes of TOML
EASY = GIB // 4  # bytes that may be unpacked from however few
RATIO = 100  # beyond that, how many times its packed size a content may be
ENTRIES = 2**27  # of a stored tensor
VALUES = 2**25  # of a network's input, or of any value on the way, for one sample
RANK = 8
LAYERS = 10_000
DEEPEST = 64  # lists in lists, tables in tables, parentheses in parentheses
VARIABLES = 10_000_000  # of a property
CASES = 100_000  # that a property's condition falls into
CONSTRAINTS = 2**25  # of all cases together
BITS = 2**15  # of a numerator or denominator
PIECE = 2**20

Shape = tuple[int, ...]


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""
        ...


def largest_file() -> int:
    """Bytes of a file of weights or samples, packed or not: 16 GiB unless the environment says otherwise."""
    text = os.environ.get("POLYCERT_LARGEST_FILE", "16")
    try:
        size = float(text) * GIB
    except ValueError:
        size = math.nan
    if not 1 <= size < math.inf:
        raise PolycertError(f"POLYCERT_LARGEST_FILE must be a positive number of GiB, got {text!r}")
    return int(size)


def checked_size(path: Path, most: int | None = None) -> int:
    """A file's bytes on disk, or a clear error if there are more than `most`."""
    limit = largest_file() if most is None else most
    try:
        size = path.stat().st_size
    except OSError as error:
        raise PolycertError(f"cannot read {path.name}: {error.strerror}") from None
    if size > limit:
        raise PolycertError(f"{path.name} has {size} bytes, at most {limit} are read{_hint(most)}")
    return size


def room(packed: int, most: int | None = None) -> int:
    """How many bytes may be unpacked from so many."""
    return min(largest_file() if most is None else most, max(EASY, RATIO * packed))


def _hint(most: int | None) -> str:
    return ": set POLYCERT_LARGEST_FILE to more GiB" if most is None else ""


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """A file's bytes, unpacked if its name ends in `.gz`, at most `most` (of weights and samples: `largest_file`)."""
    size = checked_size(path, most)
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as file:
            return b"".join(pieces(file, room(size, most), path.name))
    except OSError as error:
        raise PolycertError(f"cannot read {path.name}: {error.strerror or reason(error)}") from None
    except (EOFError, zlib.error) as error:
        raise PolycertError(f"cannot read {path.name}: {reason(error)}") from None


def pieces(file: Readable, most: int, name: str) -> Iterator[bytes]:
    """What a stream gives, up to `most` bytes; a clear error if there are more."""
    total = 0
    while piece := file.read(PIECE):
        total += len(piece)
        if total > most:
            raise PolycertError(f"{name} has more than {most} bytes")
        yield piece


def read_text(path: Path, most: int = TEXT) -> str:
    """A file's text in UTF-8, unpacked if its name ends in `.gz`."""
    try:
        return read_bytes(path, most).decode()
    except UnicodeDecodeError as error:
        raise PolycertError(f"cannot read {path.name} as text: {reason(error)}") from None


def parse_json(text: str | bytes) -> Any:
    """What JSON says; a `ValueError` if it is malformed or nested too deeply."""
    try:
        return _flat_enough(json.loads(text))
    except RecursionError:
        raise _too_deep() from None


def parse_toml(text: str) -> dict[str, Any]:
    """What TOML says; a `ValueError` if it is malformed or nested too deeply."""
    try:
        return cast(dict[str, Any], _flat_enough(tomllib.loads(text)))
    except RecursionError:
        raise _too_deep() from None


def _flat_enough(value: Any) -> Any:
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return value
    raise _too_deep()


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _too_deep() -> PolycertError:
    return PolycertError(f"it is nested deeper than {DEEPEST}")


def checked_shape(sizes: Sequence[int], what: str, most: int = ENTRIES) -> Shape:
    """A shape of reasonable size."""
    shape = tuple(int(n) for n in sizes[: RANK + 1])
    if any(n < 0 for n in shape) or len(shape) > RANK or math.prod(shape) > most:
        listed = "×".join(_short(n) for n in shape)
        raise PolycertError(f"{what} would have shape {listed}: at most {most} entries in {RANK} axes are supported")
    return shape


def _short(size: int) -> str:
    """A size in digits, however large."""
    return str(size) if abs(size) < 2**64 else "2^64 or more"
