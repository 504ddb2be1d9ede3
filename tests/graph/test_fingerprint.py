"""Fingerprints: the same only for what is the same, byte by byte."""

from __future__ import annotations

import copy
import itertools
import math
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import polycert as pc
from polycert.graph.fingerprint import PROOFS, fingerprint
from polycert.rules import Op
from polycert.rules.piecewise_linear import LeakyRelu, Relu
from tests.helpers.cases import CASES, ready


@dataclass
class Two:
    a: object
    b: object = 0

    @cached_property
    def sum(self) -> int:
        return 3


@dataclass
class Other:
    a: object
    b: object = 0


class Pair(NamedTuple):
    a: object
    b: object


def nan(payload: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000000 | payload))[0]


DIFFERENT = [
    *(None, 0, 1, 10, 2, False, True, 0.0, -0.0, 1.0, math.nextafter(1, 2), math.inf, nan(0), nan(1), signal.SIGINT),
    *("", "0", "None", "a", "ab", b"", b"a", "\ud800", "…"),
    *((), [], {}, (1,), [1], ((1,), 2), (1, (2,)), (1, 2), ((1, 2),), ("a", "bc"), ("ab", "c"), ((),)),
    *({1: 2}, {1: 3}, {2: 1}, Two(1, 2), Two(2, 1), Two(1), Other(1, 2), Pair(1, 2), Two((1, 2))),
    *(len, max, dict, Two, Pair, partial(max, 1), partial(max, 2), partial(min, 1), partial(max, key=len)),
    *(torch.float32, torch.float64, torch.zeros(2), torch.zeros(2, 1), torch.zeros(1, 2)),
    *(torch.zeros(0), torch.zeros(())),
    *(torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int32), torch.tensor([0.0, -0.0])),
    *(torch.tensor([nan(1)], dtype=torch.float64), torch.tensor([nan(2)], dtype=torch.float64), torch.tensor([True])),
    *(torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.float16), torch.zeros(0, 3), torch.zeros(3, 0)),
    *(np.zeros(2), np.zeros(2, "f4"), np.zeros((1, 2)), np.zeros(2, ">f8")),
    *(np.array(["a", "bc"]), np.array(["ab", "c"])),
]  # fmt: skip


def test_different_values_differ() -> None:
    found = [fingerprint(value) for value in DIFFERENT]
    assert len(set(found)) == len(found)


def test_values_differ_from_what_holds_them() -> None:
    for value in DIFFERENT[:20]:
        assert fingerprint(value) != fingerprint((value,)) != fingerprint([value]) != fingerprint(value, value)


def test_the_same_values_agree() -> None:
    x = torch.rand(3, 4)
    for same in (x.clone(), x.T.contiguous().T, nn.Parameter(x), torch.cat([x, x])[:3], x[:, :, None].squeeze(2)):
        assert fingerprint(same) == fingerprint(x)
    assert fingerprint(torch.ones(1).expand(5)) == fingerprint(torch.ones(5))
    assert fingerprint(torch.ones(()).expand(1, 1)) == fingerprint(torch.ones(1, 1))
    assert fingerprint(np.ones((2, 3))) == fingerprint(np.asfortranarray(np.ones((2, 3))))
    used = Two(1, 2)
    assert used.sum == 3
    assert fingerprint(used) == fingerprint(Two(1, 2))


def test_long_tensors_count_to_the_last_digit() -> None:
    """A tensor's text has four digits of each number, and of a long one only the ends."""
    x = torch.rand(5000)
    for place, step in itertools.product((0, 2500, 4999), (1, -1)):
        y = x.clone()
        y.view(torch.int32)[place] += step
        assert str(y) == str(x) or place != 2500
        assert fingerprint(y) != fingerprint(x)


def local() -> list[object]:
    @dataclass
    class Local:
        a: int = 0

    extra = Two(1)
    extra.c = 2  # type: ignore[attr-defined]
    sparse = torch.eye(2).to_sparse()
    return [Local(), Local, extra, sparse, lambda: 0, object(), {1}, nn.ReLU(), [].append, np.array([None]), 1j, ...]


@pytest.mark.parametrize("value", local(), ids=lambda value: type(value).__name__)
def test_what_is_not_known_is_refused(value: object) -> None:
    for nested in (value, (1, [value]), {"a": value}, Two(value)):
        with pytest.raises(pc.PolycertError, match="no fingerprint of"):
            fingerprint(nested)


# --- ops -----------------------------------------------------------------------------------------------------------


def variants(value: Any, generator: torch.Generator) -> Iterator[Any]:
    """The value with one thing in it changed: each setting, and of each tensor one bit of one entry."""
    if isinstance(value, Tensor):
        changed = value.detach().clone(memory_format=torch.contiguous_format)
        if changed.numel():
            place = int(torch.randint(changed.numel(), (), generator=generator)) * changed.element_size()
            changed.flatten().view(torch.uint8)[place] ^= 1
            yield changed
    elif is_dataclass(value):
        for item in fields(value):
            for one in variants(getattr(value, item.name), generator):
                changed = copy.copy(value)
                object.__setattr__(changed, item.name, one)
                yield changed
    elif isinstance(value, tuple):
        for k, entry in enumerate(value):
            yield from ((*value[:k], one, *value[k + 1 :]) for one in variants(entry, generator))
        yield (*value, 1)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, float):
        yield math.nextafter(value, math.inf)
    else:
        assert value is None
        yield torch.zeros(1)


@cache
def ops() -> dict[type[Op], list[Op]]:
    """Ops of all cases, by kind; of every kind a few."""
    found: dict[type[Op], list[Op]] = {}
    for case in CASES:
        with torch.no_grad():
            graph = ready(case).net.bind()
        for node in graph.nodes[1:]:
            found.setdefault(type(node.op), []).append(node.op)
    return {kind: several[:: max(1, len(several) // 4)] for kind, several in found.items()}


def kinds(base: type) -> Iterator[type]:
    """All classes of ops of the library that can be made."""
    for kind in base.__subclasses__():
        yield from kinds(kind)
        if not kind.__abstractmethods__ and kind.__module__.startswith("polycert.rules."):
            yield kind


KINDS = sorted(set(kinds(Op)), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_setting_and_every_entry_of_an_op_counts(kind: type[Op]) -> None:
    generator = torch.Generator().manual_seed(0)
    for op in ops()[kind]:
        before = fingerprint(op)
        assert fingerprint(copy.deepcopy(op)) == before
        found = [fingerprint(changed) for changed in variants(op, generator)]
        assert found
        assert before not in found


def test_an_ops_kind_counts() -> None:
    assert fingerprint(Relu((3,))) != fingerprint(LeakyRelu((3,), 0.0))


def test_the_wiring_counts_and_names_do_not() -> None:
    graph = ready(next(case for case in CASES if case.name == "residual-sub")).net.bind()
    place = next(k for k, node in enumerate(graph.nodes) if len(node.inputs) == 2)

    def changed(**what: Any) -> str:
        nodes = list(graph.nodes)
        nodes[place] = replace(nodes[place], **what)
        return fingerprint(replace(graph, nodes=tuple(nodes)))

    node = graph.nodes[place]
    assert changed(name="another") == fingerprint(graph)
    assert changed(inputs=node.inputs[::-1]) != fingerprint(graph)
    assert changed(inputs=(0, node.inputs[1])) != fingerprint(graph)
    assert changed(shape=(*node.shape, 1)) != fingerprint(graph)
    assert fingerprint(replace(graph, nodes=graph.nodes[:-1])) != fingerprint(graph)
    assert fingerprint(replace(graph, computed=("weight",))) != fingerprint(graph)
    assert fingerprint(replace(graph, dtype=torch.float32)) != fingerprint(graph)


def test_a_new_meaning_of_proofs_is_another_question(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(1.0)
    monkeypatch.setattr("polycert.graph.fingerprint.PROOFS", 1 + PROOFS)
    assert fingerprint(1.0) != before
