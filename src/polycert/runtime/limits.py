"""Limits on what a file may declare, checked before anything is allocated.

Every reader of files goes through this module. `POLYCERT_LARGEST_FILE`, a number of GiB, sets the limit on files of
weights and samples. The other limits are far above what networks and properties need.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import numpy as np
from numpy.lib import format as npy

from polycert.errors import PolycertError, reason

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GIB = 2**30
PROTOBUF = 2**31 - 1  # bytes of an ONNX file: what a protobuf can hold
TEXT = GIB // 4  # bytes of a property or of JSON, unpacked
RECIPE = 2**20  # bytes of TOML
UNPACKED = GIB // 4  # bytes that any file may unpack to
RATIO = 100  # above that, the largest ratio of unpacked to packed size
ENTRIES = 2**27  # of a stored tensor
VALUES = 2**25  # entries of a network's input, or of any value that it computes, for one sample
RANK = 8
LAYERS = 10_000
DEEPEST = 64  # levels of nested lists, tables or parentheses
VARIABLES = 10_000_000  # of a property
CASES = 100_000  # clauses of a property's condition in disjunctive normal form
CONSTRAINTS = 2**25  # of all clauses together
BITS = 2**15  # of a numerator or denominator
PIECE = 2**20  # bytes that are read at a time

Shape = tuple[int, ...]


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""
        ...


def largest_file() -> int:
    """The most bytes of a file of weights or samples, packed or not: 16 GiB, or `POLYCERT_LARGEST_FILE`."""
    text = os.environ.get("POLYCERT_LARGEST_FILE", "16")
    try:
        size = float(text) * GIB
    except ValueError:
        size = math.nan
    if not 1 <= size < math.inf:
        raise PolycertError(f"POLYCERT_LARGEST_FILE must be a positive number of GiB, got {text!r}")
    return int(size)


def checked_size(path: Path, most: int | None = None) -> int:
    """A file's size in bytes; raises `PolycertError` if it is above `most` (`largest_file` if that is None)."""
    limit = largest_file() if most is None else most
    try:
        size = path.stat().st_size
    except OSError as error:
        raise PolycertError(f"cannot read {path.name}: {error.strerror}") from None
    if size > limit:
        hint = ": set POLYCERT_LARGEST_FILE to more GiB" if most is None else ""
        raise PolycertError(f"{path.name} has {size} bytes, at most {limit} are read{hint}")
    return size


def most_unpacked(packed: int, most: int | None = None) -> int:
    """The most bytes that a file of `packed` bytes may unpack to, and never more than `most`."""
    return min(largest_file() if most is None else most, max(UNPACKED, RATIO * packed))


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """A file's bytes, unpacked if its name ends in `.gz`; at most `most` (`largest_file` if that is None)."""
    size = checked_size(path, most)
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as file:
            return b"".join(pieces(file, most_unpacked(size, most), path.name))
    except OSError as error:
        raise PolycertError(f"cannot read {path.name}: {error.strerror or reason(error)}") from None
    except (EOFError, zlib.error) as error:
        raise PolycertError(f"cannot read {path.name}: {reason(error)}") from None


def pieces(file: Readable, most: int, name: str) -> Iterator[bytes]:
    """Yield a stream's bytes; raises `PolycertError` if there are more than `most`."""
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
    """The value that JSON text describes; raises `ValueError` if it is malformed or nested too deeply."""
    try:
        return _checked_depth(json.loads(text))
    except RecursionError:
        raise _too_deep() from None


def parse_toml(text: str) -> dict[str, Any]:
    """The table that TOML text describes; raises `ValueError` if it is malformed or nested too deeply."""
    try:
        return cast(dict[str, Any], _checked_depth(tomllib.loads(text)))
    except RecursionError:
        raise _too_deep() from None


def _checked_depth(value: Any) -> Any:
    """The value itself; raises `PolycertError` if its lists and tables are nested deeper than `DEEPEST`."""
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
    """The sizes as a shape; raises `PolycertError` if there are more than `most` entries or `RANK` axes."""
    shape = tuple(int(n) for n in sizes[: RANK + 1])
    if any(n < 0 for n in shape) or len(shape) > RANK or math.prod(shape) > most:
        listed = "×".join(str(n) if abs(n) < 2**64 else "2^64 or more" for n in shape)
        raise PolycertError(f"{what} would have shape {listed}: at most {most} entries in {RANK} axes are supported")
    return shape


ENDING = ".npy"
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those that numpy writes; others may unpack to gigabytes
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# What zipfile and numpy raise for damaged files.
_DAMAGED = (
    *(OSError, ValueError, TypeError, EOFError, RuntimeError, NotImplementedError, SyntaxError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, AttributeError, KeyError, OverflowError),
)


def read_arrays(path: Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file by name. With `names`, only these, and only those that the file has.

    Raises:
        PolycertError: if the file is not an archive of plain arrays, is damaged, or would unpack to too many bytes.
    """
    try:
        packed = checked_size(path)
        with path.open("rb") as file:
            if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                raise PolycertError("it holds a single array: save several by name with numpy.savez")
        if not zipfile.is_zipfile(path):
            raise PolycertError("it is no archive of arrays, and Python objects are never loaded")
        with zipfile.ZipFile(path) as archive:
            members = {m.filename.removesuffix(ENDING): m for m in archive.infolist()}
            wanted = members.keys() if names is None else [name for name in names if name in members]
            _check_total([members[name] for name in wanted], packed)
            return {name: _read_member(archive, members[name]) for name in wanted}
    except PolycertError as error:
        raise PolycertError(f"cannot read {path.name} as plain arrays: {error}") from None
    except _DAMAGED as error:
        raise PolycertError(f"cannot read {path.name} as plain arrays: {reason(error)[:200]}") from None


def _check_total(members: list[zipfile.ZipInfo], packed: int) -> None:
    total, most = sum(member.file_size for member in members), most_unpacked(packed)
    if total > most:
        raise PolycertError(
            f"its arrays would take {total} bytes, at most {most} are unpacked from {packed}: "
            "save it with numpy.savez, not savez_compressed, or set POLYCERT_LARGEST_FILE to more GiB"
        )


class Header(NamedTuple):
    """The header of an `.npy` array."""

    shape: Shape
    by_columns: bool
    dtype: np.dtype

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return math.prod(self.shape) * self.dtype.itemsize


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    if member.compress_type not in PACKINGS:
        raise PolycertError(f"{member.filename!r} is packed in a way that numpy never uses: save it with numpy")
    with archive.open(member) as stream:
        file = cast(BinaryIO, stream)
        header = _header(file, member)
        content = np.empty(header.size, np.uint8)
        _fill(content.data, file, member.filename)
    return content.view(header.dtype).reshape(header.shape, order="F" if header.by_columns else "C")


def _header(file: BinaryIO, member: zipfile.ZipInfo) -> Header:
    """An array's header; its size must agree with the archive's directory."""
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise PolycertError(f"{member.filename!r} must have numpy's format 1.0 or 2.0: save it with numpy")
    header = Header(*_HEADERS[version](file))
    if header.dtype.hasobject:
        raise PolycertError(f"{member.filename!r} holds Python objects, which are never loaded")
    stored = member.file_size - file.tell()
    if any(n < 0 for n in header.shape) or header.size != stored:
        raise PolycertError(f"{member.filename!r} stores {stored} bytes, which are not what its shape needs")
    return header


def _fill(content: memoryview, file: BinaryIO, name: str) -> None:
    """Read a stream into `content`; raises `PolycertError` unless it has exactly that many bytes."""
    done = 0
    while piece := file.read(PIECE):
        if done + len(piece) > len(content):
            break
        content[done : done + len(piece)] = piece
        done += len(piece)
    if piece or done < len(content):
        raise PolycertError(f"{name!r} does not hold the {len(content)} bytes that it declares")
