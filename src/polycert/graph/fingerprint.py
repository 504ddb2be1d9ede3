"""Fingerprints: two values have the same one only if every byte of them is the same.

Every value is written as its type and its content, each with its length, so that no two values are written alike. A
value of an unknown type is an error, because values that only print alike must not count as the same.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, cached_property, partial, singledispatch
from hashlib import sha256
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from polycert.errors import PolycertError
from polycert.graph.graph import Digested, Graph, Network, Node

Write = Callable[[bytes | memoryview], None]


# This number is raised with every change of what may be called proved, so that earlier verdicts are not taken over.
PROOFS = 4


def fingerprint(*values: object) -> str:
    """Return the SHA-256 of the values and of what counts as a proof, as 64 hexadecimal digits.

    Numbers and tensors count by their bytes, tensors with their type and shape; dataclasses, tuples, lists and dicts
    with all that is in them; functions and classes by name, so they must be found under it; graphs without the names of
    their nodes and their device.

    Examples:
        >>> fingerprint(0.0) == fingerprint(-0.0), fingerprint("ab", "c") == fingerprint("a", "bc")
        (False, False)
    """
    found = sha256()
    _put((PROOFS, values), found.update)
    return found.hexdigest()


def network_digest(network: Network) -> str | None:
    """Return the SHA-256 of a network as it is now, by which records name it, or None if an op has no fingerprint.

    It is computed again only if a tensor was replaced or has changed: for one sample it would cost as much as a proof.
    """
    graph = network.bind()
    tensors, kept = list(_tensors(graph.nodes)), network.digested
    try:
        marks = [_mark(tensor) for tensor in tensors]
        if kept is None or kept.marks != marks or any(a is not b for a, b in zip(kept.tensors, tensors, strict=True)):
            found = sha256()
            _put(graph, found.update)
            kept = Digested(found.hexdigest(), tensors, marks)
            object.__setattr__(network, "digested", kept)  # networks may be frozen, and this changes nothing about one
    except PolycertError:
        return None
    return kept.digest


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of some nodes, wherever they are in their ops."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    else:
        for name in _field_names(type(value)):  # type: ignore[arg-type]  # mypy takes classes for unhashable
            yield from _tensors(getattr(value, name))


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind)) if is_dataclass(kind) else ()


def _mark(tensor: Tensor) -> tuple[int, int]:
    """Return two numbers that tell whether a tensor has changed.

    A change in place raises the tensor's version. A change by `.data` does not, but it shows in a sum of the words.
    """
    content = _bytes(tensor)
    whole = content[: content.nbytes // 8 * 8]
    words = torch.from_numpy(whole).view(torch.int64).sum() if len(whole) else 0
    return 0 if tensor.is_inference() else tensor._version, int(words) ^ crc32(content[len(whole) :].data)


def _bytes(tensor: Tensor) -> np.ndarray:
    """Return the content of a tensor as bytes `[n]`."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise PolycertError(f"no fingerprint of a tensor in layout {tensor.layout}: give a dense one")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # An expanded tensor of one number counts as contiguous, but has stride 0.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy()


@singledispatch
def _put(value: Any, write: Write) -> None:
    """Write one value. This function is for dataclasses; those for other types are registered below."""
    if not is_dataclass(value):
        raise PolycertError(f"no fingerprint of a {type(value).__qualname__}: say how in fingerprint.py")
    names = [item.name for item in fields(value)]
    for name in vars(value):
        if name not in names and not _cached(type(value), name):
            raise PolycertError(f"no fingerprint of {type(value).__qualname__}.{name}: make it a field")
    _put_all(type(value), [(name, getattr(value, name)) for name in names], write)


def _cached(kind: type, name: str) -> bool:
    """Whether an attribute is a cached property of the class."""
    return isinstance(getattr(kind, name, None), cached_property)


def _put_all(kind: type, items: list[Any], write: Write) -> None:
    """Write a value that holds others: its type, their number, and each of them."""
    _block(_name(kind).encode(), write)
    write(_length(len(items)))
    for item in items:
        _put(item, write)


def _put_plain(kind: str, content: bytes, write: Write) -> None:
    """Write a value that holds no others."""
    _block(kind.encode(), write)
    _block(content, write)


def _put_array(kind: str, shape: tuple[int, ...], content: np.ndarray, write: Write) -> None:
    """Write a tensor or an array, given its bytes `[n]`."""
    _block(kind.encode(), write)
    _block(repr(tuple(map(int, shape))).encode(), write)
    write(_length(content.nbytes))
    write(content.data)


def _block(content: bytes, write: Write) -> None:
    """Write a length and then the bytes."""
    write(_length(len(content)))
    write(content)


def _length(count: int) -> bytes:
    return count.to_bytes(8, "big")


def _name(thing: Any) -> str:
    """Return the module and the name of a class or function, by which it must be found again."""
    try:
        found = attrgetter(thing.__qualname__)(sys.modules[thing.__module__])
    except (AttributeError, KeyError):
        found = None
    if found is not thing:
        raise PolycertError(f"no fingerprint of {thing!r}: it is not found by its name, so define it in a module")
    return f"{thing.__module__}:{thing.__qualname__}"


@_put.register(NoneType)
def _(value: None, write: Write) -> None:
    _put_plain("None", b"", write)


@_put.register(bool)
@_put.register(int)
def _(value: int, write: Write) -> None:
    _put_plain(_name(type(value)), b"%d" % value, write)


@_put.register(float)
def _(value: float, write: Write) -> None:
    _put_plain(_name(type(value)), struct.pack(">d", value), write)


@_put.register(str)
def _(value: str, write: Write) -> None:
    _put_plain(_name(type(value)), value.encode("utf-8", "surrogatepass"), write)


@_put.register(bytes)
def _(value: bytes, write: Write) -> None:
    _put_plain(_name(type(value)), value, write)


@_put.register(Enum)
def _(value: Enum, write: Write) -> None:
    _put_plain(_name(type(value)), value.name.encode(), write)


@_put.register(torch.dtype)
def _(value: torch.dtype, write: Write) -> None:
    _put_plain(_name(type(value)), str(value).encode(), write)


@_put.register(type)
@_put.register(FunctionType)
@_put.register(BuiltinFunctionType)
def _(value: Any, write: Write) -> None:
    _put_plain("callable", _name(value).encode(), write)


@_put.register(partial)
def _(value: partial[Any], write: Write) -> None:
    _put_all(type(value), [value.func, value.args, value.keywords], write)


@_put.register(tuple)
@_put.register(list)
def _(value: Any, write: Write) -> None:
    _put_all(type(value), list(value), write)


@_put.register(dict)
def _(value: dict[Any, Any], write: Write) -> None:
    _put_all(type(value), list(value.items()), write)


@_put.register(Tensor)
def _(value: Tensor, write: Write) -> None:
    _put_array(f"tensor of {value.dtype}", value.shape, _bytes(value), write)


@_put.register(np.ndarray)
@_put.register(np.generic)
def _(value: Any, write: Write) -> None:
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise PolycertError("no fingerprint of an array of objects: give numbers")
    content = np.frombuffer(array.tobytes(), np.uint8)
    _put_array(f"array of {np.lib.format.dtype_to_descr(array.dtype)!r}", array.shape, content, write)


@_put.register(Graph)
def _(value: Graph, write: Write) -> None:
    _put_all(type(value), [value.dtype, value.computed, value.nodes], write)


@_put.register(Node)
def _(value: Node, write: Write) -> None:
    _put_all(type(value), [value.op, value.inputs, value.shape], write)
