"""`.npz` files as plain arrays: the archive's directory and the arrays' headers are believed only within limits."""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np
from numpy.lib import format as npy

from polycert.errors import PolycertError, reason
from polycert.runtime import limits

ENDING = ".npy"
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what numpy writes; others may need gigabytes to unpack
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# What zipfile and numpy raise for damaged files, beside their own errors.
_DAMAGE = (
    *(OSError, ValueError, TypeError, EOFError, RuntimeError, NotImplementedError, SyntaxError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, AttributeError, KeyError, OverflowError),
)


def read_arrays(path: Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file by name; of those in `names`, if given, only the ones that are there.

    Raises:
        PolycertError: if the file is no archive of plain arrays, is damaged, or would unpack to too much.
    """
    try:
        packed = limits.checked_size(path)
        with path.open("rb") as file:
            if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                raise PolycertError("it holds a single array: save several by name with numpy.savez")
        if not zipfile.is_zipfile(path):
            raise PolycertError("it is no archive of arrays, and Python objects are never loaded")
        with zipfile.ZipFile(path) as archive:
            members = {m.filename.removesuffix(ENDING): m for m in archive.infolist()}
            wanted = members.keys() if names is None else [name for name in names if name in members]
            _check_total([members[name] for name in wanted], packed)
            return {name: _member(archive, members[name]) for name in wanted}
    except PolycertError as error:
        raise PolycertError(f"cannot read {path.name} as plain arrays: {error}") from None
    except _DAMAGE as error:
        raise PolycertError(f"cannot read {path.name} as plain arrays: {reason(error)[:200]}") from None


def _check_total(members: list[zipfile.ZipInfo], packed: int) -> None:
    total, most = sum(member.file_size for member in members), limits.room(packed)
    if total > most:
        raise PolycertError(
            f"its arrays would take {total} bytes, at most {most} are unpacked from {packed}: "
            "save it with numpy.savez, not savez_compressed, or set POLYCERT_LARGEST_FILE to more GiB"
        )


class Header(NamedTuple):
    """What an array's own header declares."""

    shape: limits.Shape
    by_columns: bool
    dtype: np.dtype

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return math.prod(self.shape) * self.dtype.itemsize


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    if member.compress_type not in PACKINGS:
        raise PolycertError(f"{member.filename!r} is packed in another way than numpy's")
    with archive.open(member) as stream:
        file = cast(BinaryIO, stream)
        header = _header(file, member)
        content = np.empty(header.size, np.uint8)
        _fill(content.data, file, member.filename)
    return content.view(header.dtype).reshape(header.shape, order="F" if header.by_columns else "C")


def _header(file: BinaryIO, member: zipfile.ZipInfo) -> Header:
    """An array's header; what it declares must be what the archive's directory declares."""
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise PolycertError(f"{member.filename!r} has another format than numpy's 1.0 and 2.0")
    header = Header(*_HEADERS[version](file))
    if header.dtype.hasobject:
        raise PolycertError(f"{member.filename!r} holds Python objects, which are never loaded")
    stored = member.file_size - file.tell()
    if any(n < 0 for n in header.shape) or header.size != stored:
        raise PolycertError(f"{member.filename!r} stores {stored} bytes, which are not what its shape needs")
    return header


def _fill(content: memoryview, file: BinaryIO, name: str) -> None:
    """All bytes of a stream, which must be neither fewer nor more."""
    done = 0
    while piece := file.read(limits.PIECE):
        if done + len(piece) > len(content):
            break
        content[done : done + len(piece)] = piece
        done += len(piece)
    if piece or done < len(content):
        raise PolycertError(f"{name!r} does not hold the {len(content)} bytes that it declares")
