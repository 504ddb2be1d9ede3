"""Read tensors that lie in files beside an ONNX file, as torch's exporter writes large ones.

Only plain files in the folder of the ONNX file are opened. All places and sizes are checked before any of them is read.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from polycert.errors import PolycertError
from polycert.graph.onnx.stored_tensors import FIELDS, checked_kind
from polycert.runtime import limits

KEYS = {"location", "offset", "length", "checksum"}  # the checksum of the whole file is not looked at
_SIZE = re.compile(r"\d{1,18}", re.ASCII)
# A file that was put in the place of a checked one is not followed, and not waited for.
_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class Extent(NamedTuple):
    """The bytes of a tensor in another file."""

    tensor: str
    path: Path
    offset: int
    length: int


def read_inside(model: Any, folder: Path, held: int) -> bool:
    """Move the tensors that lie in other files into a model, and return whether there are any.

    Args:
        model: the message of an ONNX file, which is changed in place.
        folder: the folder of the ONNX file, from which the other files are named.
        held: how many bytes the ONNX file has.

    Raises:
        PolycertError: if a file lies elsewhere or does not hold what is declared, or all are too large together.
    """
    from onnx import TensorProto

    outside = [t for t in _tensors(model) if t.data_location != TensorProto.DEFAULT or len(t.external_data)]
    extents = [_extent(tensor, folder) for tensor in outside]
    total = held + sum(extent.length for extent in extents)
    if total > limits.PROTOBUF:
        raise PolycertError(f"with its tensors in other files it has {total} bytes, at most {limits.PROTOBUF} are read")
    for tensor, extent in zip(outside, extents, strict=True):
        tensor.raw_data = _read(extent)
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    return bool(outside)


def _tensors(model: Any) -> Iterator[Any]:
    """Yield all tensors that are read: initialisers, and the attributes of nodes."""
    yield from model.graph.initializer
    for node in model.graph.node:
        yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))


def _extent(tensor: Any, folder: Path) -> Extent:
    """Return where the bytes of a tensor lie, after all checks that need none of them."""
    from onnx import TensorProto

    name = tensor.name or "constant"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    twice = len(entries) < len(tensor.external_data)
    if tensor.data_location != TensorProto.EXTERNAL or twice or not {"location"} <= entries.keys() <= KEYS:
        raise PolycertError(f"the tensor {name!r} does not say clearly where it lies in another file")
    if tensor.HasField("raw_data") or any(len(getattr(tensor, field)) for field in FIELDS):
        raise PolycertError(f"the tensor {name!r} lies both in this file and in another file")
    shape, (width, _) = checked_kind(tensor)
    needed = width * math.prod(shape)
    offset, length = (
        _size(entries.get(key, default), key, name) for key, default in (("offset", "0"), ("length", str(needed)))
    )
    if length != needed:
        raise PolycertError(
            f"the tensor {name!r} of shape {list(shape)} has {length} bytes in another file, not {needed}"
        )
    path = _inside(folder, entries["location"], name)
    size = path.stat().st_size
    if offset + length > size:
        raise PolycertError(
            f"the tensor {name!r} ends at byte {offset + length} of {path.name}, which has {size} bytes"
        )
    return Extent(name, path, offset, length)


def _size(text: str, key: str, name: str) -> int:
    """Return a number of bytes that an entry writes."""
    if _SIZE.fullmatch(text) is None:
        raise PolycertError(f"the {key} of the tensor {name!r} in another file is no number of bytes: {text!r}")
    return int(text)


def _inside(folder: Path, location: str, name: str) -> Path:
    """Return the plain file of a tensor, in the folder or in one of its own folders."""
    paths = PurePosixPath(location), PureWindowsPath(location)
    leads_out = any(path.anchor or ".." in path.parts for path in paths)
    if leads_out or not location or "\0" in location:
        raise _never_opened(location, name)
    try:
        path, home = (folder / location).resolve(strict=True), folder.resolve(strict=True)
        plain = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        raise PolycertError(
            f"the tensor {name!r} lies in another file, {location[:100]!r}, which is not there"
        ) from None
    except (OSError, RuntimeError):  # links that lead to themselves are either
        raise _never_opened(location, name) from None
    if not plain or not path.is_relative_to(home):
        raise _never_opened(location, name)
    return path


def _never_opened(location: str, name: str) -> PolycertError:
    """Return the error for a file that is not a plain one in the folder."""
    return PolycertError(
        f"the tensor {name!r} lies in another file, {location[:100]!r}, which is never opened: "
        "only plain files in the model's own folder are"
    )


def _read(extent: Extent) -> bytes:
    """Return the bytes of a tensor."""
    try:
        with os.fdopen(os.open(extent.path, _FLAGS), "rb") as file:
            file.seek(extent.offset)
            content = file.read(extent.length)
    except OSError as error:
        raise PolycertError(f"cannot read {extent.path.name}: {error.strerror}") from None
    if len(content) != extent.length:
        raise PolycertError(f"{extent.path.name} changed while the tensor {extent.tensor!r} was read")
    return content
