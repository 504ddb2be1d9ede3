"""VNN-LIB: what is read, what is decided, what is refused; decisions against a program of linear pieces."""

from __future__ import annotations

import csv
import os
import random
import resource
import subprocess
import sys
import time
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from typer.testing import CliRunner

import polycert as pc
from polycert.bounding.methods import error_model
from polycert.cli import app
from polycert.graph.onnx import OnnxNetwork
from polycert.verification.input_split import Boxes, InputSplitting, Rows
from polycert.verification.vnnlib import Property, decide, read_property
from polycert.verification.vnnlib.constraints import parse
from polycert.verification.vnnlib.reader import parse_property

F64 = torch.float64
Sides = tuple[tuple[object, object], ...]


def declare(inputs: int, outputs: int) -> str:
    names = [f"X_{k}" for k in range(inputs)] + [f"Y_{k}" for k in range(outputs)]
    return "\n".join(f"(declare-const {name} Real)" for name in names)


def box(*sides: tuple[object, object]) -> str:
    return "\n".join(f"(assert (>= X_{k} {a}))\n(assert (<= X_{k} {b}))" for k, (a, b) in enumerate(sides))


def asked(text: str, inputs: int = 2, outputs: int = 2, sides: Sides = ((-1, 1), (0, 2))) -> Property:
    return parse_property(f"; a remark\n{declare(inputs, outputs)}\n{box(*sides)}\n{text}")


# --- what is read --------------------------------------------------------------------------------------------------


def test_a_box_and_a_conjunction() -> None:
    found = asked("(assert (<= Y_0 Y_1))\n(assert (>= (+ Y_0 (* 2 Y_1) -1) (- 0.5)))")
    (only,) = found.boxes
    assert only.lower.tolist() == [-1, 0]
    assert only.upper.tolist() == [1, 2]
    (clause,) = only.clauses
    assert clause.rows.tolist() == [[1, -1], [-1, -2]]
    assert clause.constants.tolist() == [0, 0.5]
    assert clause.holds(np.array([0.1, 0.3]))
    assert not clause.holds(np.array([0.3, 0.1]))


def test_a_disjunction_of_outputs_keeps_one_box() -> None:
    found = asked("(assert (or (and (>= Y_0 3) (<= Y_1 1)) (and (<= Y_0 Y_1)) (>= Y_1 7)))")
    assert len(found.boxes) == 1
    assert [len(clause.rows) for clause in found.boxes[0].clauses] == [2, 1, 1]


def test_several_boxes_with_outputs_of_their_own() -> None:
    first, second = "(>= X_0 -1) (<= X_0 0)", "(>= X_0 2) (<= X_0 3)"
    cases = f"(and {first} (>= Y_0 1)) (and {second} (<= Y_0 -1)) (and {first} (<= Y_0 -5))"
    text = f"{declare(1, 1)} (assert (or {cases}))"
    found = parse_property(text)
    assert [(b.lower[0], b.upper[0], len(b.clauses)) for b in found.boxes] == [(-1, 0, 2), (2, 3, 1)]


def test_an_input_without_room_and_an_empty_box() -> None:
    found = asked("(assert (>= Y_0 0))", sides=((0.1, 0.1), (0, 1)))
    (only,) = found.boxes
    assert only.lower[0] <= 0.1 <= only.upper[0]
    assert only.inner[0][0] == only.inner[1][0] == 0.1
    assert asked("(assert (>= Y_0 0))", sides=((1, 0), (0, 1))).boxes == ()


def test_the_box_rounds_outward_and_its_inside_inward() -> None:
    found = asked("(assert (>= Y_0 0))", sides=(("0.1", "0.3"), ("-0.30000000000000004440892098500626", "1e-3")))
    only = found.boxes[0]
    assert only.lower[0] < only.inner[0][0] or only.lower[0] == 0.1
    for k, (low, high) in enumerate([("0.1", "0.3"), ("-0.30000000000000004440892098500626", "1e-3")]):
        assert Fraction(float(only.lower[k])) <= Fraction(low) <= Fraction(float(only.inner[0][k]))
        assert Fraction(float(only.inner[1][k])) <= Fraction(high) <= Fraction(float(only.upper[k]))


def test_factors_that_no_number_holds_are_scaled_to_whole_ones() -> None:
    (clause,) = asked("(assert (<= (* 0.1 Y_0) (+ (* 0.3 Y_1) 2.5)))").boxes[0].clauses
    assert clause.rows.tolist() == [[1, -3]]
    assert clause.constants.tolist() == [-25]


def test_equality_and_nesting() -> None:
    (clause,) = asked("(assert (and (= Y_0 2) (and (<= Y_1 1))))").boxes[0].clauses
    assert clause.holds(np.array([2.0, 0.0]))
    assert not clause.holds(np.array([2.1, 0.0]))
    assert asked("(assert (< Y_0 0))").boxes[0].clauses[0].strict.tolist() == [True]


def test_bounds_are_read_once_whatever_the_number_of_cases() -> None:
    """A file of 1 MB with 300 cases took minutes while the bounds of the inputs were copied into each of them."""
    sides = [(f"0.{k:06}", f"1.{k:06}") for k in range(10_000)]
    cases = " ".join(f"(and (>= Y_{k} Y_0))" for k in range(1, 300))
    clock = time.process_time()
    (only,) = parse_property(declare(len(sides), 300) + box(*sides) + f"(assert (or {cases}))").boxes
    assert time.process_time() - clock < 10
    assert len(only.clauses) == 299
    assert only.upper.tolist() == pytest.approx([float(high) for _, high in sides], abs=1e-15)


def test_many_boxes_are_read_in_linear_time() -> None:
    cases = [f"(and (>= X_0 0.{k:04}) (<= X_0 1.{k:04}) (<= Y_0 Y_1))" for k in range(10_000)]
    clock = time.process_time()
    found = parse_property(f"{declare(1, 2)}(assert (or {' '.join(cases)}))").boxes
    assert time.process_time() - clock < 10
    assert [only.lower[0] for only in found] == pytest.approx([k / 10_000 for k in range(10_000)], abs=1e-15)
    assert len({id(only.clauses[0]) for only in found}) == 1


def test_the_tightest_bounds_count_wherever_they_are_written() -> None:
    cases = "(and (<= X_0 0.5) (<= Y_0 0)) (<= Y_0 1) (and (>= X_0 0.25) (<= (* 2 X_0) 1) (>= X_0 -7) (<= Y_0 2))"
    found = asked(f"(assert (or {cases})) (assert (<= (* 2 X_1) 3)) (assert (>= Y_1 5))").boxes
    assert [(b.lower.tolist(), b.upper.tolist()) for b in found] == [
        ([-1, 0], [0.5, 1.5]),
        ([-1, 0], [1, 1.5]),
        ([0.25, 0], [0.5, 1.5]),
    ]
    assert [b.clauses[0].constants.tolist() for b in found] == [[0, 5], [-1, 5], [-2, 5]]


def test_a_condition_without_cases_has_no_boxes() -> None:
    assert asked("(assert (< X_0 1)) (assert (or))").boxes == ()


def test_equal_boxes_are_one_however_their_ends_are_spelled() -> None:
    first, second = "(>= X_0 0.50) (<= X_0 1)", "(<= 5e-1 X_0) (<= (* 3 X_0) 3.0) (<= X_0 2)"
    (only,) = parse_property(f"{declare(1, 1)}(assert (or (and {first} (<= Y_0 0)) (and {second} (>= Y_0 9))))").boxes
    assert (only.lower.tolist(), only.upper.tolist(), len(only.clauses)) == ([0.5], [1], 2)


@pytest.mark.parametrize(
    "word", ["0.1", f"0.5{'0' * 300}1", f"0.4{'9' * 300}", "1e-400", "-1e-400", "123456789012345678901234567890"]
)
@pytest.mark.parametrize("spelled", ["{}", "(+ {} 0)"])  # a decimal and a fraction
def test_a_side_of_one_decimal_lies_between_neighbouring_doubles(word: str, spelled: str) -> None:
    end = spelled.format(word)
    (only,) = asked("", sides=((end, end), (0, 1))).boxes
    low, high = float(only.lower[0]), float(only.upper[0])
    assert Fraction(low) < Fraction(word) < Fraction(high)
    assert np.nextafter(low, np.inf) == high
    assert only.narrow.tolist() == [True, False]
    assert only.inner[0][0] == only.inner[1][0] == float(Fraction(word))


MALFORMED = {
    "cut off": "(assert (<= Y_0 1)",
    "closed twice": "(assert (<= Y_0 1)))",
    "unknown head": "(check-sat)",
    "unknown comparison": "(assert (!= Y_0 1))",
    "three operands": "(assert (<= Y_0 1 2))",
    "not linear": "(assert (<= (* Y_0 Y_1) 1))",
    "not a term": "(assert (<= (f Y_0) 1))",
    "undeclared output": "(assert (<= Y_7 1))",
    "undeclared name": "(assert (<= Z_0 1))",
    "several inputs": "(assert (<= (+ X_0 X_1) 1))",
    "input and output": "(assert (<= X_0 Y_0))",
    "strict input": "(assert (< X_0 1))",
    "no variable": "(assert (<= 1 2))",
    "a word": "assert",
    "nothing asserted": "(assert)",
    "nested": "(assert " + "(and " * 5000 + "(<= Y_0 1)" + ")" * 5001,
    "huge number": "(assert (<= Y_0 1e999))",
    "huge exponent": "(assert (<= Y_0 1e99999999))",
    "not a number": "(assert (<= Y_0 nan))",
    "many cases": " ".join("(assert (or (<= Y_0 1) (<= Y_1 2)))" for _ in range(40)),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_property_is_refused_with_one_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.vnnlib"
    path.write_text(declare(2, 2) + box((0, 1), (0, 1)) + MALFORMED[name])
    with pytest.raises(pc.PolycertError) as caught:
        read_property(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_missing_bounds_gaps_and_other_files(tmp_path: Path) -> None:
    for text in (declare(2, 1) + "(assert (<= X_0 1))", "(declare-const X_1 Real)(declare-const Y_0 Real)", ""):
        with pytest.raises(pc.PolycertError):
            parse_property(text)
    (tmp_path / "bytes.vnnlib").write_bytes(b"\xff\xfe\x00")
    for name in ("bytes.vnnlib", "nothing.vnnlib"):
        with pytest.raises(pc.PolycertError):
            read_property(tmp_path / name)


def test_expressions_do_not_recurse() -> None:
    assert parse("(a (b c) ; d\n e) f") == [["a", ["b", "c"], "e"], "f"]
    with pytest.raises(pc.PolycertError, match="nested"):
        parse("(" * 100_000)


@pytest.mark.slow
def test_damaged_properties_never_do_more_than_raise_one_sentence() -> None:
    """For half a minute: words of a property are changed, dropped, doubled."""
    text = declare(2, 2) + box((0, 1), (-0.5, 0.5)) + "(assert (or (and (<= Y_0 Y_1) (>= Y_1 0.2)) (>= (* 2 Y_0) 1)))"
    words = text.replace("(", " ( ").replace(")", " ) ").split()
    chance, end = random.Random(0), time.monotonic() + 30
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    while time.monotonic() < end:
        changed = list(words)
        for _ in range(chance.randint(1, 5)):
            place = chance.randrange(len(changed))
            changed[place : place + chance.randint(0, 2)] = chance.choices(words, k=chance.randint(0, 3))
        try:
            parse_property(" ".join(changed))
        except pc.PolycertError as error:
            refused += "\n" not in str(error)
    assert refused > 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize(
    "declared", ["(declare-const Y_2 Int)", "(declare-fun Y_2 (Real) Real)", "(declare-const Y_2)"]
)
def test_variables_that_are_no_real_numbers_are_refused(declared: str) -> None:
    with pytest.raises(pc.PolycertError, match="declaration of a real number"):
        asked(f"{declared} (assert (<= Y_0 0))")


@pytest.mark.parametrize("kind", ["int32", "float16"])
def test_variables_of_other_types_are_refused_in_version_2(kind: str) -> None:
    pytest.importorskip("vnnlib")
    one, zero = ("1", "0") if kind == "int32" else ("1.0", "0.0")
    with pytest.raises(pc.PolycertError, match="variables of type"):
        parse_property(f"""(vnnlib-version <2.0>)
            (declare-network net (declare-input X {kind} [1]) (declare-output Y float32 [1]))
            (assert (<= X[0] {one})) (assert (>= X[0] {zero})) (assert (<= Y[0] 0.0))""")


def test_a_remark_ends_with_its_line_however_that_ends() -> None:
    (clause,) = asked("(assert (<= Y_0 Y_1)) ; a remark\r(assert (<= Y_0 0))").boxes[0].clauses
    assert len(clause.rows) == 2


def test_version_2_says_the_same() -> None:
    pytest.importorskip("vnnlib")
    second = parse_property("""(vnnlib-version <2.0>)
        (declare-network net (declare-input X float32 [1,2]) (declare-output Y float32 [1,2]))
        (assert (>= X[0,0] -1.0)) (assert (<= X[0,0] 1.0)) (assert (>= X[0,1] 0.0)) (assert (<= X[0,1] 2.0))
        (assert (or (<= (+ (* 2.0 Y[0,0]) Y[0,1]) 0.1) (>= Y[0,1] 3.0)))""")
    first = asked("(assert (or (<= (+ (* 2.0 Y_0) Y_1) 0.1) (>= Y_1 3.0)))")
    for mine, theirs in zip(second.boxes, first.boxes, strict=True):
        assert mine.lower.tolist() == theirs.lower.tolist()
        assert mine.upper.tolist() == theirs.upper.tolist()
        for a, b in zip(mine.clauses, theirs.clauses, strict=True):
            assert a.rows.tolist() == b.rows.tolist()
            assert a.constants.tolist() == b.constants.tolist()


# --- what is decided -----------------------------------------------------------------------------------------------


def small(seed: int, folder: Path, widths: tuple[int, ...] = (2, 6, 6, 2)) -> OnnxNetwork:
    """A random ReLU network, through a file."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [layer for n, m in pairwise(widths) for layer in (nn.Linear(n, m), nn.ReLU())]
    module = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.5)
    pc.export(pc.capture(module, widths[:1]), folder / "net.onnx")
    net = pc.load(folder / "net.onnx")
    assert isinstance(net, OnnxNetwork)
    return net


def least_gap(net: OnnxNetwork, steps: int = 400) -> float:
    """The least `y_0 - y_1` on a fine grid of the box [-1, 1]^2."""
    axis = torch.linspace(-1, 1, steps + 1, dtype=F64)
    points = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), 2).reshape(-1, 2)
    outputs = net.bind(F64).forward(points)
    return float((outputs[:, 0] - outputs[:, 1]).min())


@pytest.mark.parametrize("seed", range(6))
def test_decisions_on_both_sides_of_the_least_value(seed: int, tmp_path: Path) -> None:
    """Just below the least value on a grid nothing is reached, just above it something is."""
    net = small(seed, tmp_path)
    least = least_gap(net)
    for shift, status in ((-0.05, "unsat"), (0.001, "sat")):
        text = f"(assert (<= (- Y_0 Y_1) {least + shift!r}))"
        found = decide(net, asked(text, sides=((-1, 1), (-1, 1))), timeout=60)
        assert found.status == status
        if found.counterexample is not None:
            assert bool((np.abs(found.counterexample.x) <= 1).all())
            y = net.replay(torch.from_numpy(found.counterexample.x)[None])[0].numpy()
            assert np.array_equal(y, found.counterexample.y)
            assert y[0] - y[1] <= least + shift


def test_several_boxes_are_all_decided(tmp_path: Path) -> None:
    net = small(1, tmp_path)
    value = float(net(torch.zeros(1, 2))[0, 0])
    far = f"(and (>= X_0 0) (<= X_0 0.1) (>= X_1 0) (<= X_1 0.1) (>= Y_0 {value + 100}))"
    near = f"(and (>= X_0 -0.1) (<= X_0 0) (>= X_1 0) (<= X_1 0) (>= Y_0 {value - 100}))"
    for cases, status in (([far, far], "unsat"), ([far, near], "sat")):
        found = decide(net, parse_property(declare(2, 2) + f"(assert (or {' '.join(cases)}))"), timeout=30)
        assert found.status == status


def test_a_fixed_input_keeps_its_value(tmp_path: Path) -> None:
    net = small(2, tmp_path)
    found = decide(net, asked("(assert (>= Y_0 -100))", sides=((0.1, 0.1), (0.7, 0.7))), timeout=30)
    assert found.status == "sat"
    assert found.counterexample is not None
    assert found.counterexample.x.tolist() == [0.1, 0.7]


def test_a_property_without_outputs_is_fulfilled_by_any_input(tmp_path: Path) -> None:
    found = decide(small(2, tmp_path), asked(""), timeout=30)
    assert found.status == "sat"
    assert found.counterexample is not None


def test_an_empty_property_holds_and_sizes_must_fit(tmp_path: Path) -> None:
    net = small(2, tmp_path)
    assert decide(net, asked("(assert (>= Y_0 0))", sides=((1, 0), (0, 1))), timeout=5).status == "unsat"
    with pytest.raises(pc.PolycertError, match="3 inputs"):
        decide(net, asked("(assert (>= Y_0 0))", inputs=3, sides=((0, 1),) * 3), timeout=5)


@pytest.mark.parametrize("limit", [2**20, 150, 40])
def test_every_box_is_bounded_over_its_own_sides(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Chunks of few rows hold some of the boxes only, down to a single one."""
    monkeypatch.setattr("polycert.bounding.chunking.CHUNK", limit)
    torch.manual_seed(0)
    layers = (nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    graph = pc.capture(nn.Sequential(*layers).double(), (3,)).bind()
    corner, width = torch.rand(7, 3).double() * 4 - 2, torch.rand(7, 1).double() * 2
    boxes = Boxes(corner, corner + width)
    rows = Rows(torch.eye(2).double(), torch.zeros(2).double())
    with torch.no_grad():
        whole = InputSplitting(graph, rows, error_model(graph), []).bound(boxes).value
        for k in range(len(whole)):
            alone = InputSplitting(graph, rows, error_model(graph), []).bound(boxes.pick(torch.tensor([k]))).value
            torch.testing.assert_close(whole[k], alone[0], rtol=1e-9, atol=1e-9)
            points = corner[k] + torch.rand(200, 3).double() * width[k]
            assert bool((graph.forward(points).amin(0) >= whole[k]).all())


@pytest.mark.parametrize("seed", range(3))
def test_cutting_boxes_loses_no_point_that_fails(seed: int, tmp_path: Path) -> None:
    """Every point with no positive row lies in what is left of some box."""
    net = small(seed, tmp_path)
    graph = net.bind(F64)
    axis = torch.linspace(-1, 1, 101, dtype=F64)
    points = torch.tensor(list(product(axis.tolist(), repeat=2)), dtype=F64)
    coef = torch.tensor([[1.0, -1.0], [0.3, 1.0]], dtype=F64)
    values = graph.forward(points) @ coef.T
    worst = points[values.amax(1).argmin()]
    rows = Rows(coef, -graph.forward(worst[None])[0] @ coef.T - 0.02)  # some points fail around the worst one
    failing = points[((values + rows.constant) <= 0).all(1)]
    search = InputSplitting(graph, rows, error_model(graph), [])
    ends = torch.linspace(-1, 1, 9, dtype=F64)
    corners = torch.tensor(list(product(range(8), repeat=2)))
    boxes = Boxes(ends[corners], ends[corners + 1])
    with torch.no_grad():
        left, _ = search._cut(boxes, search.bound(boxes))
    inside = ((failing[:, None] >= left.lower) & (failing[:, None] <= left.upper)).all(2)
    assert bool(inside.any(1).all())
    assert len(failing) > 0
    volume = (left.upper - left.lower).prod(1).sum()
    assert float(volume) < 4  # something was cut off


@pytest.mark.slow
def test_competition_instances(shared: Path) -> None:
    """No wrong answer, and at least 40 of the 51 decided within 60 seconds each."""
    folder = shared / "vnn"
    wrong, decided = [], 0
    with (folder / "instances.csv").open() as file:
        for row in csv.DictReader(file):
            net, spec = pc.load(folder / row["onnx"]), read_property(folder / row["vnnlib"])
            assert isinstance(net, OnnxNetwork)
            found = decide(net, spec, timeout=60)
            decided += found.status == row["truth"]
            if found.status in ("sat", "unsat") and found.status != row["truth"]:
                wrong.append((row["onnx"], row["vnnlib"], found.status))
    assert wrong == []
    assert decided >= 40


def many_boxes(net: OnnxNetwork, count: int) -> Property:
    """Boxes around points of a grid, none of which reaches its clause."""
    highest = -least_gap(net, 50)
    corners = [
        f"(and (>= X_0 {k / 10}) (<= X_0 {k / 10 + 0.1}) (>= X_1 0) (<= X_1 0.5) (<= Y_0 (- Y_1 {highest + 9})))"
        for k in range(count)
    ]
    return parse_property(declare(2, 2) + f"(assert (or {' '.join(corners)}))")


def test_a_journal_of_a_property_is_taken_up_and_processes_share_its_boxes(tmp_path: Path) -> None:
    net, journal = small(4, tmp_path), tmp_path / "journal"
    property_ = many_boxes(net, 9)
    first = decide(net, property_, timeout=60, workers=2, journal=journal)
    assert (first.status, first.resumed) == ("unsat", 0)
    assert len(journal.read_text().splitlines()) == 10
    again = decide(net, property_, timeout=60, journal=journal)
    assert (again.status, again.resumed) == ("unsat", 9)
    wider = decide(net, many_boxes(net, 10), timeout=60, journal=tmp_path / "other")
    assert (wider.status, wider.resumed) == ("unsat", 0)


def test_a_counterexample_of_a_journal_is_replayed(tmp_path: Path) -> None:
    net, journal = small(4, tmp_path), tmp_path / "journal"
    reached = asked(f"(assert (<= (- Y_0 Y_1) {least_gap(net, 50) + 0.5!r}))", sides=((-1, 1), (-1, 1)))
    assert decide(net, reached, timeout=60, journal=journal).status == "sat"
    again = decide(net, reached, timeout=60, journal=journal)
    assert (again.status, again.resumed) == ("sat", 1)
    assert again.counterexample is not None
    assert reached.boxes[0].holds(*again.counterexample)


# --- the command line ----------------------------------------------------------------------------------------------


def test_verify_prints_the_answer_first(tmp_path: Path) -> None:
    net = small(0, tmp_path)
    least = least_gap(net, 100)
    for shift, status in ((-1.0, "unsat"), (1.0, "sat")):
        path = tmp_path / f"{status}.vnnlib"
        condition = f"(assert (<= (- Y_0 Y_1) {least + shift!r}))"
        path.write_text(f"{declare(2, 2)}{box((-1, 1), (-1, 1))}{condition}")
        out = tmp_path / "result.txt"
        found = CliRunner().invoke(app, ["verify", str(tmp_path / "net.onnx"), str(path), "--out", str(out)])
        assert found.exit_code == 0
        assert found.stdout.splitlines()[0] == status
        assert out.read_text() == found.stdout
    ((found_values),) = parse("\n".join(found.stdout.splitlines()[1:]))
    assert [name for name, _ in found_values] == ["X_0", "X_1", "Y_0", "Y_1"]
    x = torch.tensor([[float(value) for _, value in found_values[:2]]], dtype=F64)
    assert net.replay(x)[0].tolist() == pytest.approx([float(value) for _, value in found_values[2:]], abs=1e-9)


def test_verify_refuses_bad_usage_with_one_sentence(tmp_path: Path) -> None:
    small(0, tmp_path)
    net = str(tmp_path / "net.onnx")
    (tmp_path / "p.vnnlib").write_text(f"{declare(2, 2)}{box((-1, 1), (-1, 1))}(assert (<= Y_0 0))")
    prop = str(tmp_path / "p.vnnlib")
    for arguments, status in (
        (["net.safetensors", prop], 2),
        ([net, prop, "--timeout", "0"], 2),
        ([net, prop, "--out", str(tmp_path / "no" / "x.txt")], 2),
        ([net, str(tmp_path / "no.vnnlib")], 1),
        ([str(tmp_path / "no.onnx"), prop], 1),
    ):
        found = CliRunner().invoke(app, ["verify", *arguments])
        assert found.exit_code == status, arguments
        assert found.stderr.startswith("error: ")
        assert len(found.stderr.strip().splitlines()) == 1


def test_verify_refuses_options_that_a_property_would_not_heed(tmp_path: Path) -> None:
    small(0, tmp_path)
    (tmp_path / "p.vnnlib").write_text(f"{declare(2, 2)}{box((-1, 1), (-1, 1))}(assert (<= Y_0 0))")
    task = ["verify", str(tmp_path / "net.onnx"), str(tmp_path / "p.vnnlib")]
    for given in (["--eps", "0.1"], ["--dataset", "mnist", "--limit", "3"], ["--norm", "2"], ["--data-dir", "d"]):
        found = CliRunner().invoke(app, [*task, *given])
        assert found.exit_code == 2
        for flag in given[::2]:
            assert flag in found.stderr
    assert CliRunner().invoke(app, [*task, "--timeout", "9", "--seed", "1", "--threads", "1", "-q"]).exit_code == 0


@pytest.mark.slow
def test_the_scripts_of_the_competition(tmp_path: Path) -> None:
    """By the calling convention: version, category, network, property, results, seconds."""
    small(0, tmp_path)
    (tmp_path / "p.vnnlib").write_text(f"{declare(2, 2)}{box((-1, 1), (-1, 1))}(assert (>= Y_0 1000))")
    tool = tmp_path / "polycert"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m polycert "$@"\n')
    tool.chmod(0o755)
    folder = Path(__file__).parents[2] / "vnncomp"
    instance = ["v1", "test", str(tmp_path / "net.onnx"), str(tmp_path / "p.vnnlib")]
    source = str(Path(pc.__file__).parents[1])
    settings = {**os.environ, "POLYCERT": str(tool), "PYTHONPATH": source}
    subprocess.run([folder / "prepare_instance.sh", *instance], check=True)
    results = tmp_path / "results.txt"
    subprocess.run([folder / "run_instance.sh", *instance, str(results), "60.0"], check=True, env=settings)
    assert results.read_text() == "unsat\n"
    broken = [*instance[:3], str(tmp_path / "no.vnnlib")]
    subprocess.run([folder / "run_instance.sh", *broken, str(results), "60"], check=True, env=settings)
    assert results.read_text() == "error\n"
    assert subprocess.run([folder / "prepare_instance.sh", *broken], check=False).returncode != 0


def test_export_writes_what_load_reads(tmp_path: Path) -> None:
    net = small(0, tmp_path)
    found = CliRunner().invoke(app, ["export", str(tmp_path / "net.onnx"), str(tmp_path / "again.onnx")])
    assert found.exit_code == 0
    x = torch.rand(4, 2)
    torch.testing.assert_close(pc.load(tmp_path / "again.onnx")(x), net(x))
    assert CliRunner().invoke(app, ["export", str(tmp_path / "net.onnx"), str(tmp_path / "again.pt")]).exit_code == 2


# --- spellings and sides that are easily misread -------------------------------------------------------------------


def twins(tmp_path: Path) -> OnnxNetwork:
    """The network with the outputs x and -x."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    sides = [helper.make_tensor_value_info(k, TensorProto.FLOAT, [1, n]) for k, n in (("x", 1), ("y", 2))]
    weight = numpy_helper.from_array(np.array([[1, -1]], np.float32), "w")
    graph = helper.make_graph([node], "net", sides[:1], sides[1:], [weight])
    path = tmp_path / "net.onnx"
    path.write_bytes(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString()
    )
    found = pc.load(path)
    assert isinstance(found, OnnxNetwork)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "(assert (>= (+ Y_0 Y_00) 1.5))",
        "(declare-const X_00 Real)(assert (>= X_00 5))(assert (<= X_00 6))",
        "(declare-const Y_٠ Real)",
        "(assert (>= (+- Y_0 Y_1) 1.5))",
        "(assert (>= (-* 2 Y_0) 1.5))",
        "(assert (>= (+-* Y_0 Y_1) 1.5))",
        "(assert (>= Y_0 ١))",
    ],
)
def test_other_spellings_are_errors(text: str) -> None:
    with pytest.raises(pc.PolycertError):
        asked(text)


@pytest.mark.parametrize(
    ("side", "text", "possible"),
    [
        (("0", "0.1"), "(assert (> Y_0 0.1))", False),  # the float32 number next to 0.1 is above it
        (("1e-50", "2e-50"), "(assert (<= Y_0 0))", False),  # no float32 number is inside
        (("1e-400", "2e-400"), "(assert (<= Y_0 0))", False),  # and no double
        (("0.1", "0.1"), "(assert (> Y_0 0.1))", False),
        (("0.1", "0.1"), "(assert (> Y_0 0.09))", True),
        (("0.1", "0.1"), "(assert (and))", True),
        (("0", "0.1"), "(assert (>= Y_0 0.09))", True),
        (("1e-50", "2e-50"), "(assert (<= Y_0 1e-30))", True),
    ],
)
def test_a_counterexample_lies_in_the_box(side: tuple[str, str], text: str, possible: bool, tmp_path: Path) -> None:
    found = decide(twins(tmp_path), asked(text, 1, 2, (side,)), timeout=2)
    assert (found.status == "sat") == possible
