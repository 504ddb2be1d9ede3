"""ONNX's own node tests: each is computed as ONNX expects it, or refused with one sentence; never otherwise.

A node test may have several inputs and outputs, a network has one of each. So every input of floating-point numbers is
the free one in turn, with the others as constants of the file, and every output is the only one in turn.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

import polycert as pc
from polycert.graph.onnx.builder import known_ops
from polycert.graph.onnx.constant_folding import FOLDS
from polycert.graph.onnx.network import OnnxNetwork
from polycert.graph.onnx.program import read_program

OPS = {*known_ops(), *FOLDS, "Constant", "Shape", "Size"}
FLOOR = 271  # files that are computed as expected: never fewer


class Question(NamedTuple):
    """One file, the input to try and the output that ONNX expects."""

    name: str
    model: Any
    x: np.ndarray
    y: np.ndarray


def questions() -> Iterator[Question]:
    """Every node test whose ops all have an entry, for every choice of its free input and its output."""
    for case in collect_testcases(None):
        if case.model is None or not {node.op_type for node in case.model.graph.node} <= OPS:
            continue
        for inputs, outputs in case.data_sets:
            for free, x in enumerate(inputs):
                for chosen, y in enumerate(outputs):
                    if all(getattr(part, "dtype", None) in (np.float32, np.float64) for part in (x, y)):
                        model = narrowed(case.model, inputs, free, chosen)
                        yield Question(f"{case.name}[{free},{chosen}]", model, x, y)


def narrowed(model: Any, inputs: list[Any], free: int, chosen: int) -> Any:
    """The model with one input left, the others stored in it, and one output."""
    found = copy.deepcopy(model)
    graph = found.graph
    names = [value.name for value in graph.input]
    for k, (name, value) in enumerate(zip(names, inputs, strict=True)):
        if k != free and isinstance(value, (np.ndarray, np.generic)):
            graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    for values, kept in ((graph.input, free), (graph.output, chosen)):
        only = copy.deepcopy(values[kept])
        del values[:]
        values.append(only)
    return found


def answer(asked: Question, path: Path) -> str:
    """`equal`, `refused` or what went wrong; onnxruntime is not asked."""
    path.write_bytes(asked.model.SerializeToString())
    try:
        graph = OnnxNetwork(read_program(path), torch.float64, torch.device("cpu")).bind()
        found = graph.forward(torch.from_numpy(asked.x.astype(np.float64)).reshape(1, *graph.input_shape))
    except pc.PolycertError as error:
        return "refused" if "\n" not in str(error) else f"{asked.name}: says {error}"
    except Exception as error:
        return f"{asked.name}: raises {error!r}"
    if found.numel() != asked.y.size:
        return f"{asked.name}: {list(found.shape)} for {list(asked.y.shape)}"
    error = np.abs(found.numpy().reshape(-1) - asked.y.reshape(-1).astype(np.float64))
    allowed = 2e-4 * np.abs(asked.y).max(initial=0) + 1e-6  # some expected numbers are typed with four digits
    return "equal" if (error <= allowed).all() else f"{asked.name}: wrong by {error.max():.3g}"


@pytest.fixture(scope="module")
def asked() -> list[Question]:
    """All questions."""
    with np.errstate(all="ignore"):
        return list(questions())


@pytest.mark.filterwarnings("ignore")
def test_node_tests_are_computed_as_expected_or_refused(asked: list[Question], tmp_path: Path) -> None:
    answers = [answer(question, tmp_path / "node.onnx") for question in asked]
    counts = Counter(found if found in ("equal", "refused") else "different" for found in answers)
    print(f"node tests: {dict(counts)}")
    assert [found for found in answers if found not in ("equal", "refused")] == []
    assert counts["equal"] >= FLOOR


@pytest.mark.filterwarnings("ignore")
def test_what_is_computed_as_expected_passes_the_check_with_onnxruntime(asked: list[Question], tmp_path: Path) -> None:
    """Right files are not refused, other than by onnxruntime itself."""
    path, refused = tmp_path / "node.onnx", []
    for question in asked:
        if answer(question, path) == "equal":
            try:
                pc.load(path)
            except pc.PolycertError as error:
                refused.append(f"{question.name}: {error}")
    assert [sentence for sentence in refused if "onnxruntime refuses" not in sentence] == []
