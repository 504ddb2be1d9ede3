"""Bugs planted into the readers of files: each kind must find them, so it can fail."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polycert as pc
from polycert.evaluation import measurements, store
from polycert.graph import fingerprint
from polycert.graph.onnx import arithmetic, conv_pool, network
from polycert.graph.onnx.builder import CONVERTERS, known_ops
from polycert.runtime.limits import read_arrays
from polycert.verification import journal
from polycert.verification.vnnlib import PropertyVerdict, constraints, property
from tests.helpers.mutants import FIRST
from tests.hunt import fingerprints, journals, onnx_mutants, properties, readers
from tests.hunt.kind import Kind
from tests.hunt.outcome import CRASH, VIOLATION, case_of, try_case

pytestmark = pytest.mark.slow  # each hunts until it finds what was planted

Chosen = Callable[[Any], bool]
(ONNX,), (READERS,), (JOURNALS,), (FINGERPRINTS,) = (m.KINDS for m in (onnx_mutants, readers, journals, fingerprints))
READING, WITNESSES = properties.KINDS


def found(kind: Kind, chosen: Chosen = lambda case: True, *, count: int = 150, how: str = VIOLATION) -> str:
    """The first find among so many chosen cases."""
    tried = number = 0
    while tried < count:
        case = case_of(kind, 0, number)
        number += 1
        if chosen(case):
            tried += 1
            outcome = try_case(kind, case)
            if outcome.how == how:
                return outcome.sentence
    pytest.fail(f"{kind.name} tries {count} cases and finds nothing")


def holds_op(op: str) -> Chosen:
    return lambda case: any(node["op"] == op for node in case["file"]["nodes"])


def asks(**settings: Any) -> Chosen:
    return lambda case: all(case.get(name) == value for name, value in settings.items())


# --- ONNX files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are not compared with onnxruntime when they are loaded: the hunt looks for itself."""
    monkeypatch.setattr(network, "check_against", lambda *_: None)


@pytest.mark.usefixtures("unchecked")
def test_a_column_that_is_read_as_a_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `Gemm` was read once, if there are as many rows as columns."""
    real = arithmetic.broadcast_to

    def broadcast_to(call: Any, array: Any, shape: tuple[int, ...]) -> np.ndarray:
        given = np.asarray(array)
        turned = call.op == "Gemm" and given.shape == (shape[-1], 1)
        return real(call, given.T if turned else given, shape)

    monkeypatch.setattr(arithmetic, "broadcast_to", broadcast_to)
    assert "onnxruntime gives" in found(ONNX, _adds_a_column)


def _adds_a_column(case: Any) -> bool:
    file = case["file"]
    offsets = [node["in"][2] for node in file["nodes"] if node["op"] == "Gemm" and len(node["in"]) == 3]
    shapes = [file["tensors"][name]["shape"] for name in offsets if name in file["tensors"]]
    return any(len(shape) == 2 and shape[0] > 1 and shape[1] == 1 for shape in shapes)


@pytest.mark.usefixtures("unchecked")
def test_same_lower_that_is_read_as_same_upper_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = conv_pool._same
    monkeypatch.setattr(conv_pool, "_same", lambda *sizes, upper: real(*sizes, upper=True))
    chosen = lambda case: '["s", "SAME_LOWER"]' in str(case).replace("'", '"')  # noqa: E731
    assert "onnxruntime gives" in found(ONNX, chosen)


@pytest.mark.usefixtures("unchecked")
def test_an_op_of_another_meaning_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONVERTERS, "Sigmoid", known_ops()["Tanh"])
    assert "onnxruntime gives" in found(ONNX, holds_op("Sigmoid"))


@pytest.mark.usefixtures("unchecked")
def test_training_that_is_read_as_evaluation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONVERTERS, "Dropout", known_ops()["Identity"])
    assert "onnxruntime gives" in found(ONNX, holds_op("Dropout"))


def test_a_dead_node_that_takes_much_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if onnxruntime were given what the output does not need."""

    def greedy(program: Any) -> Any:
        np.ones(2**27)
        return real(program)

    real = network.OnnxRuntime
    monkeypatch.setattr(network, "OnnxRuntime", greedy)
    assert "bytes while it is read" in found(ONNX, count=20)


def test_bounds_that_are_too_narrow_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pc.bounds

    def narrow(*given: Any, **options: Any) -> Any:
        whole = real(*given, **options)
        return replace(whole, lower=torch.lerp(whole.lower, whole.upper, 0.4))

    monkeypatch.setattr(pc, "bounds", narrow)
    assert "bounds output" in found(ONNX)


def test_a_false_unsat_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_mutants, "decide", lambda *_, **__: PropertyVerdict("unsat"))
    assert "unsat" in found(ONNX, asks(property=True))


# --- other files ---------------------------------------------------------------------------------------------------


def test_a_number_without_an_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python refuses to read so many digits, with an error of its own."""
    monkeypatch.setattr(constraints, "LONGEST", 10**9)
    content = FIRST.replace("0.25", "9" * 5000).encode()
    outcome = try_case(READERS, {"file": "first.vnnlib", "content": b64encode(content).decode()})
    assert outcome.how == CRASH
    assert "ValueError" in outcome.sentence


def test_bounds_that_are_rounded_to_nearest_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nearest(values: Sequence[Decimal | Fraction]) -> tuple[np.ndarray, ...]:
        return (np.array(list(map(float, values))),) * 3

    monkeypatch.setattr(property, "_enclosed", nearest)
    assert "no box and clause" in found(READING)


def test_a_strict_comparison_that_is_turned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "COMPARISONS", ("<=", ">=", "<", ">", "="))
    real = constraints.clauses
    turned = {"<": ">=", ">": "<="}
    swap = lambda e: real([turned.get(e[0], e[0]), *e[1:]] if isinstance(e, list) and e else e)  # noqa: E731
    monkeypatch.setattr(constraints, "clauses", swap)
    assert "no box and clause" in found(READING, lambda case: "'<'" in str(case) or "'>'" in str(case))


def test_a_witness_that_is_none_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(property.Clause, "holds", lambda self, y: True)
    assert "passes for a witness" in found(WITNESSES)


# --- journals ------------------------------------------------------------------------------------------------------


def test_a_line_that_is_believed_after_an_edit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    journals.journals()

    def unsealed(self: Any, text: bytes) -> bytes | None:
        line = journal.SEAL.fullmatch(text)
        return None if line is None else line[1] + b"}"

    monkeypatch.setattr(journal.ChecksummedLines, "_unsealed", unsealed)
    edited = lambda case: case["what"] == "damage" and {c[0] for c in case["changes"]} <= {"edit", "sample"}  # noqa: E731
    assert found(JOURNALS, edited, count=60)


def test_a_missing_lock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "lock", lambda *_: None)
    assert "a second process works" in found(JOURNALS, asks(what="held"), count=3)


@pytest.mark.parametrize("change", ["network", "samples"])
def test_a_slice_without_a_seal_is_found(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path, about: str) -> measurements.Measurements:
        arrays = read_arrays(path)
        prefix = len(store.COLUMN)
        columns = {name[prefix:]: held for name, held in arrays.items() if name.startswith(store.COLUMN)}
        return measurements.Measurements(columns, arrays["points"], arrays["hits"], {})

    monkeypatch.setattr(store, "_read", read)
    monkeypatch.setattr(journals, "module", _other_module(journals.module))
    journals.network.cache_clear()
    try:
        assert "damaged slice is believed" in found(JOURNALS, asks(what="parts", change=change), count=2)
    finally:
        journals.network.cache_clear()


def _other_module(real: Callable[..., Any]) -> Callable[..., Any]:
    """The changed network differs enough to be measured differently."""

    def made(changed: bool = False) -> Any:
        module = real(changed)
        if changed:
            with torch.no_grad():
                next(iter(module.parameters())).mul_(1.5)
        return module

    return made


@pytest.mark.parametrize("way", ["weight", "graph"])
def test_a_fingerprint_that_ignores_tensors_is_found(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_put_array", lambda *_: None)
    assert "have one fingerprint" in found(FINGERPRINTS, asks(way=way, double=False), count=20)
