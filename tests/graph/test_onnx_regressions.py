"""Files that were read as another network, refused without need, or refused with another error than a sentence."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from typer.testing import CliRunner

import polycert as pc
from polycert.cli import app
from polycert.graph.onnx.builder import CONVERTERS
from polycert.rules.maximum import clipped
from polycert.verification.vnnlib import decide, read_property
from tests.helpers.onnx_files import File, Graph, ints, rand

F32, F64 = torch.float32, torch.float64
LARGEST = float(np.finfo(np.float32).max)


def written(
    folder: Path, shape: tuple[int, ...], build: Callable[[Graph], str], opset: int = 13, **options: Any
) -> Path:
    return File("net", shape, build, opset, options=options).write(folder)


def same(net: Any, x: np.ndarray) -> None:
    """Both graphs compute what onnxruntime computes."""
    samples = torch.from_numpy(x.astype(np.float32)).reshape(-1, *net.input_shape)
    expected = net.replay(samples)
    for graph in (net.bind(), net.bind(F64)):
        found = graph.forward(samples.to(graph.dtype)).double().flatten(1)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def sentence(path: Path) -> str:
    with pytest.raises(pc.PolycertError) as caught:
        pc.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- broadcasting --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 1), (1, 3), (3, 1), (3, 3)], ids=str)
def test_the_offset_of_a_gemm_is_broadcast_by_the_rules(shape: tuple[int, ...], tmp_path: Path) -> None:
    offset = np.asarray(rand(*shape, seed=5), dtype=np.float32)
    net = pc.load(written(tmp_path, (3, 4), lambda g: g("Gemm", "x", rand(4, 3), offset)))
    same(net, rand(5, 3, 4, seed=2))


@pytest.mark.parametrize("shape", [(2, 3), (4,), (1, 3, 3)], ids=str)
def test_an_offset_that_does_not_fit_is_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    assert "fit" in sentence(written(tmp_path, (3, 4), lambda g: g("Gemm", "x", rand(4, 3), rand(*shape))))


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Pow"])
@pytest.mark.parametrize("shape", [(), (1,), (2,), (3, 1), (3, 2), (1, 1, 2), (2, 1, 1)], ids=str)
def test_constants_are_broadcast_by_the_rules(op: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Enlarging the value is allowed, but not for a PReLU."""
    constant = np.full(shape, 2, np.float32) if op == "Pow" else np.asarray(abs(rand(*shape)) + 0.5, dtype=np.float32)
    path = written(tmp_path, (3, 2), lambda g: g(op, "x", constant))
    if op == "PRelu" and len(shape) > 2:
        assert "fit" in sentence(path)
    else:
        same(pc.load(path), rand(5, 3, 2, seed=2))


def test_the_largest_of_values_and_several_constants(tmp_path: Path) -> None:
    net = pc.load(written(tmp_path, (3, 2), lambda g: g("Max", rand(2), "x", rand(3, 1, seed=1), g("Neg", "x"))))
    same(net, rand(5, 3, 2, seed=2))


def test_a_product_of_vectors_is_a_number(tmp_path: Path) -> None:
    def build(g: Graph) -> str:
        return g("Concat", g("Unsqueeze", g("MatMul", "x", rand(4)), ints(0)), rand(2, seed=1), axis=0)

    same(pc.load(written(tmp_path, (4,), build)), rand(5, 4, seed=2))


# --- versions, modes, outputs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("domains", [("", ""), ("", "ai.onnx"), ("ai.onnx", "")], ids=str)
@pytest.mark.parametrize("versions", [(11, 13), (13, 11)], ids=str)
def test_two_versions_of_the_ops_are_refused(
    domains: tuple[str, str], versions: tuple[int, int], tmp_path: Path
) -> None:
    """A softmax is another function before opset 13; onnxruntime takes the version that comes last."""
    model = File("net", (1, 4), lambda g: g("Relu", "x")).model()
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(*pair) for pair in zip(domains, versions, strict=True))
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    assert "opsets 11 and 13" in sentence(tmp_path / "net.onnx")


def dropout(share: float, training: bool) -> Callable[[Graph], str]:
    return lambda g: g("Relu", g("Dropout", "x", np.float32(share), np.asarray(training), outputs=2)[0])


def test_a_dropout_in_training_mode_is_refused(tmp_path: Path) -> None:
    assert "training mode" in sentence(written(tmp_path, (1, 4), dropout(0.5, True)))


@pytest.mark.parametrize(("share", "training"), [(0.0, True), (0.5, False)])
def test_a_dropout_that_does_nothing_is_read(share: float, training: bool, tmp_path: Path) -> None:
    same(pc.load(written(tmp_path, (1, 4), dropout(share, training))), rand(5, 4))


def test_an_output_without_a_rule_is_refused(tmp_path: Path) -> None:
    def build(g: Graph) -> str:
        return g("Mul", "x", g("Cast", g("Dropout", "x", outputs=2)[1], to=1))

    assert "an output that no rule computes" in sentence(written(tmp_path, (1, 4), build))


def test_an_output_without_a_name_is_not_an_input_left_out(tmp_path: Path) -> None:
    def build(g: Graph) -> str:
        sequence = g("Transpose", "x", perm=[1, 0, 2])
        weights = [g.store(rand(1, 3, 2)), g.store(rand(1, 3, 3, seed=1))]
        g.nodes.append(helper.make_node("RNN", [sequence, *weights], ["", "end"], hidden_size=3))
        return g("Clip", "end", "", np.float32(0.2))

    same(pc.load(written(tmp_path, (1, 3, 2), build)), rand(5, 3, 2))


def test_a_file_of_nothing_but_fused_calls_is_read(tmp_path: Path) -> None:
    net = pc.load(written(tmp_path, (1, 3), lambda g: g("Mul", "x", g("Sigmoid", "x"))))
    same(net, rand(5, 3))


# --- thresholds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [3.0, 300.0, 1e4, 1e6, 1e15, 1e30, LARGEST])
@pytest.mark.parametrize("op", ["Clip", "Max", "Min"])
def test_far_thresholds_are_read_and_cost_nothing(op: str, limit: float, tmp_path: Path) -> None:
    """Bounds of a tiny ball are as tight as if the threshold were not there."""
    low, high = np.float32([[-limit]]), np.float32([[limit]])
    limits = {"Clip": (low.reshape(()), high.reshape(())), "Max": (low,), "Min": (high,)}[op]
    net = pc.load(written(tmp_path, (1, 4), lambda g: g(op, "x", *limits)))
    x = rand(1, 4)
    same(net, np.concatenate([x, 250 * x, -1e5 * x, 3e6 * x]))
    found = pc.bounds(net, torch.from_numpy(x), pc.Ball(eps=0.01))
    torch.testing.assert_close(found.upper.float(), torch.from_numpy(x) + 0.01, rtol=0, atol=2e-4)
    torch.testing.assert_close(found.lower.float(), torch.from_numpy(x) - 0.01, rtol=0, atol=2e-4)


def test_a_limit_of_doubles_beyond_float32_is_a_limit(tmp_path: Path) -> None:
    """No input up to 10^6, and no operand up to 10^8, comes near to it."""
    limit, scale = np.array(1e39), np.array(1e32)

    def build(g: Graph) -> str:
        wide = g("Mul", g("Cast", "x", to=TensorProto.DOUBLE), scale)
        return g("Cast", g("Mul", g("Clip", wide, -limit, limit), 1 / scale), to=TensorProto.FLOAT)

    same(pc.load(written(tmp_path, (1, 2), build)), np.float32([[1e6, 2e7], [-3e7, 1e9]]))


# --- nothing left --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda g: g("Pad", "x", ints(0, -2, 0, -2)),
        lambda g: g("Relu", g("Slice", "x", ints(3), ints(3), ints(1))),
        lambda g: g("Slice", "x", ints(3), ints(1), ints(1)),
        lambda g: g("Gather", "x", np.zeros(0, np.int64), axis=1),
        lambda g: g("Expand", g("Slice", "x", ints(0), ints(1), ints(1)), ints(1, 0)),
    ],
    ids=["pad", "slice", "slice-crossed", "gather", "expand"],
)
def test_an_empty_result_is_refused(build: Callable[[Graph], str], tmp_path: Path) -> None:
    assert "empty" in sentence(written(tmp_path, (1, 4), build))


def test_an_empty_part_may_be_joined(tmp_path: Path) -> None:
    def build(g: Graph) -> str:
        first, second = g("Split", "x", ints(0, 4), outputs=2, axis=1)
        return g("Relu", g("Concat", second, first, axis=1))

    same(pc.load(written(tmp_path, (1, 4), build)), rand(5, 4))


@pytest.mark.parametrize(("start", "end"), [(-9, -9), (9, -9), (2, 0), (-1, -3), (0, -9)])
def test_a_slice_that_runs_down_from_beyond_the_front(start: int, end: int, tmp_path: Path) -> None:
    net = pc.load(written(tmp_path, (1, 4), lambda g: g("Slice", "x", ints(start), ints(end), ints(1), ints(-1))))
    same(net, rand(5, 4))


# --- coefficients that are computed while a file is read -----------------------------------------------------------


def gemm_that_underflows(g: Graph) -> str:
    made = g("Gemm", "x", np.float32([[2.0**-60]]), alpha=2.0**-100)
    return g("Mul", g("Mul", made, np.float32([2.0**100])), np.float32([2.0**60]))


def offset_that_underflows(g: Graph) -> str:
    made = g("Gemm", "x", np.float32([[2.0**-100]]), np.float32([2.0**-100]), beta=2.0**-60)
    return g("Mul", g("Mul", made, np.float32([2.0**100])), np.float32([2.0**60]))


def norm_that_underflows(g: Graph) -> str:
    ones = np.ones(1, np.float32)
    made = g("BatchNormalization", "x", ones * 2.0**-100, 0 * ones, 0 * ones, ones * 2.0**104, epsilon=0.0)
    return g("Mul", g("Mul", made, np.float32([2.0**100])), np.float32([2.0**52]))


def norm_whose_shift_underflows(g: Graph) -> str:
    ones = np.ones(1, np.float32)
    made = g("BatchNormalization", "x", ones * 2.0**-51, 0 * ones, ones * 2.0**-100, ones, epsilon=0.0)
    return g("Mul", g("Mul", made, np.float32([2.0**100])), np.float32([2.0**20]))


def norm_that_overflows(g: Graph) -> str:
    ones = np.ones(1, np.float32)
    made = g("BatchNormalization", "x", ones * 2.0**100, 0 * ones, 0 * ones, ones * 2.0**-96, epsilon=0.0)
    return g("Mul", g("Mul", made, np.float32([2.0**-100])), np.float32([2.0**-48]))


def quotient_that_overflows(g: Graph) -> str:
    return g("Mul", g("Div", "x", np.float32([2.0**-140])), np.float32([2.0**-120]))


UNDERFLOWS: dict[Callable[[Graph], str], Callable[[Fraction], Fraction]] = {
    gemm_that_underflows: lambda x: x,
    offset_that_underflows: lambda x: x * 2**60 + 1,
    norm_that_underflows: lambda x: x,
    norm_whose_shift_underflows: lambda x: x * 2**69 - Fraction(1, 2**31),
    norm_that_overflows: lambda x: x,
    quotient_that_overflows: lambda x: x * 2**20,
}


@pytest.mark.parametrize("build", UNDERFLOWS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("method", ["ibp", "crown"])
def test_a_coefficient_that_leaves_the_range_proves_nothing_false(
    build: Callable[[Graph], str], method: str, tmp_path: Path
) -> None:
    """The file is refused, or its bounds hold for the network in exact arithmetic."""
    try:
        net = pc.load(written(tmp_path, (1, 1), build))
    except pc.PolycertError:
        return
    for x in (torch.tensor([[0.7]]), torch.tensor([[0.0]]), torch.tensor([[-3.1]], dtype=F64)):
        value = UNDERFLOWS[build](Fraction(float(x)))
        if net.bind().computed:
            with pytest.raises(pc.PolycertError, match="stored weights"):
                pc.bounds(net, x, pc.Ball(eps=0.0), rigorous=True, method=method)
            continue
        found = pc.bounds(net, x, pc.Ball(eps=0.0), rigorous=True, method=method)
        assert not float(found.lower) > value
        assert not float(found.upper) < value


def test_a_gemm_with_factors_is_proved(tmp_path: Path) -> None:
    """Its factors are applied to the product, not multiplied into the weights with a rounding that no term covers."""
    weight, offset = rand(4, 3), rand(3, seed=1)
    net = pc.load(written(tmp_path, (1, 4), lambda g: g("Gemm", "x", weight, offset, alpha=0.3, beta=-1.7)))
    x = rand(1, 4, seed=2)
    fractions = np.vectorize(lambda number: Fraction(float(number)), otypes=[object])
    alpha, beta = fractions(np.float32([0.3, -1.7]))
    exact = alpha * (fractions(x) @ fractions(weight))[0] + beta * fractions(offset)
    found = pc.bounds(net, torch.from_numpy(x), pc.Ball(eps=0.0), rigorous=True)
    for value, low, high in zip(exact, found.lower.flatten().tolist(), found.upper.flatten().tolist(), strict=True):
        assert low <= value <= high
        assert high - low < 1e-3


@pytest.mark.parametrize(("op", "name", "default"), [("LeakyRelu", "alpha", 0.01), ("HardSigmoid", "alpha", 0.2)])
def test_the_defaults_of_attributes_are_float32_numbers(op: str, name: str, default: float, tmp_path: Path) -> None:
    """As they are where a file says them: both graphs are one network."""
    nets = []
    for k, options in enumerate(({}, {name: default})):
        (tmp_path / str(k)).mkdir()
        nets.append(pc.load(written(tmp_path / str(k), (1, 4), lambda g, o=options: g(op, "x", **o))))
    x = torch.from_numpy(rand(5, 4)).double()
    first, second = (net.bind(F64).forward(x) for net in nets)
    assert torch.equal(first, second)


def test_computed_constants_are_named(tmp_path: Path) -> None:
    def build(g: Graph) -> str:
        return g("Add", "x", g("Range", np.float32(0), np.float32(0.35), np.float32(0.1)))

    assert pc.load(written(tmp_path, (1, 4), build)).bind().computed


THIRD, SEVENTH = np.float32([1 / 3]), np.float32([1 / 7])
TINY = np.float32([np.finfo(np.float32).tiny])
HALVES = np.float32([1.5, -2.25, 0.125, 3])
Folded = tuple[str, list[np.ndarray], bool]
FOLDED: dict[str, Folded] = {  # op, operands, whether the result is exact
    "a token that is added to zeros": ("Add", [np.zeros(4, np.float32), rand(4)], True),
    "zero that is added": ("Add", [rand(4), np.float32([-0.0])], True),
    "sum of halves": ("Add", [HALVES, HALVES[::-1]], True),
    "sum that is rounded": ("Add", [THIRD, SEVENTH], False),
    "one of many sums is rounded": ("Add", [np.float32([0, 0, 1, 0]), np.float32([3, 4, 1e-9, 5])], False),
    "sum that overflows": ("Add", [np.float32([LARGEST]), np.float32([LARGEST])], False),
    "zero that is subtracted": ("Sub", [rand(4), np.zeros(1, np.float32)], True),
    "difference to zero": ("Sub", [np.zeros(1, np.float32), rand(4)], True),
    "difference of neighbours": ("Sub", [np.nextafter(THIRD, np.float32(1)), THIRD], True),
    "difference that is rounded": ("Sub", [np.float32([1]), np.float32([1e-9])], False),
    "factor 1": ("Mul", [rand(4), np.float32([1])], True),
    "factor 0": ("Mul", [rand(4), np.float32([0])], True),
    "factor 1/4": ("Mul", [rand(4), np.float32([0.25])], True),
    "product that is rounded": ("Mul", [THIRD, SEVENTH], False),
    "product that underflows": ("Mul", [TINY, TINY], False),
    "product that loses digits to underflow": ("Mul", [TINY * np.float32(1.2345678), np.float32([0.25])], False),
    "divisor 1": ("Div", [rand(4), np.float32([1])], True),
    "divisor 8": ("Div", [rand(4), np.float32([8])], True),
    "whole quotient": ("Div", [np.float32([9]), np.float32([3])], True),
    "quotient that is rounded": ("Div", [np.float32([1]), np.float32([3])], False),
    "root of a square": ("Sqrt", [np.float32([2.25, 64, 0, 1])], True),
    "root that is rounded": ("Sqrt", [np.float32([2])], False),
    "floor": ("Floor", [rand(4) * 10], True),
    "doubles": ("Mul", [np.float64([3]), np.float64([2.0**-30])], True),
    "doubles that are rounded": ("Mul", [np.float64([1 / 3]), np.float64([1 / 7])], False),
    "doubles that underflow": ("Mul", [np.float64([1e-200]), np.float64([1e-200])], False),
}


@pytest.mark.parametrize("name", FOLDED)
def test_what_is_computed_without_rounding_counts_as_stored(name: str, tmp_path: Path) -> None:
    op, operands, exact = FOLDED[name]
    kind = TensorProto.DOUBLE if operands[0].dtype == np.float64 else TensorProto.FLOAT
    shape = (1, 4)

    def build(g: Graph) -> str:
        return g("Add", "x", g(op, *operands))

    path = written(tmp_path, shape, build, kind=kind)
    if "overflows" in name:
        assert "finite" in sentence(path)
        return
    net = pc.load(path)
    assert bool(net.bind().computed) != exact
    x = torch.zeros(1, 4, dtype=net.dtype)
    if exact:
        assert bool((pc.bounds(net, x, pc.Ball(eps=1.0), rigorous=True).lower.flatten(1) <= net.replay(x)).all())
    else:
        with pytest.raises(pc.PolycertError, match="stored weights"):
            pc.bounds(net, x, pc.Ball(eps=1.0), rigorous=True)


def test_sums_of_many_entries_are_exact_only_if_that_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries beyond the limit of fractions count as rounded; those with a neutral operand need no fractions."""
    monkeypatch.setattr("polycert.graph.onnx.exact_folding.MOST", 3)
    for other, exact in ((np.float32([0, 0, 0, 0]), True), (np.float32([1, 0, 0, 0]), True), (HALVES, False)):
        net = pc.load(written(tmp_path, (1, 4), lambda g, b=other: g("Add", "x", g("Add", HALVES, b))))
        assert bool(net.bind().computed) != exact


def test_nothing_is_exact_while_subnormal_numbers_are_flushed(tmp_path: Path) -> None:
    tiny = np.float32([1e-40])
    assert torch.set_flush_denormal(True)
    try:
        net = pc.load(written(tmp_path, (1, 4), lambda g: g("Add", "x", g("Add", tiny, tiny))))
    finally:
        torch.set_flush_denormal(False)
    assert net.bind().computed


def test_whole_numbers_that_a_double_rounds(tmp_path: Path) -> None:
    for number, exact in ((2**53, True), (2**53 + 1, False)):
        whole = np.array([number], np.int64)

        def build(g: Graph, whole: np.ndarray = whole) -> str:
            return g("Mul", "x", g("Cast", whole, to=TensorProto.DOUBLE))

        net = pc.load(written(tmp_path, (1, 4), build, kind=TensorProto.DOUBLE))
        assert bool(net.bind().computed) != exact


def test_the_command_line_says_that_nothing_can_be_proved(tmp_path: Path) -> None:
    names = [f"{letter}_{k}" for letter in "XY" for k in range(4)]
    declared = "".join(f"(declare-const {name} Real)" for name in names)
    sides = "".join(f"(assert (>= X_{k} 0))(assert (<= X_{k} 1))" for k in range(4))
    (tmp_path / "p.vnnlib").write_text(f"{declared}{sides}(assert (>= Y_0 9))")
    for second, status in ((THIRD, "unknown"), (np.zeros(1, np.float32), "unsat")):
        path = written(tmp_path, (1, 4), lambda g, b=second: g("Add", "x", g("Add", SEVENTH, b)))
        task = ["verify", str(path), str(tmp_path / "p.vnnlib"), "--timeout", "2"]
        found = CliRunner().invoke(app, task)
        assert found.exit_code == 0
        assert (found.stdout.splitlines()[0] in ("unknown", "timeout")) == (status == "unknown")
        assert ("nothing can be proved" in found.stderr) == (status == "unknown")
        assert "nothing can be proved" not in CliRunner().invoke(app, [*task, "-q"]).stderr


def test_a_double_network_is_not_proved_with_rounded_weights(tmp_path: Path) -> None:
    weight = rand(4, 3).astype(np.float64) / 3
    net = pc.load(written(tmp_path, (1, 4), lambda g: g("MatMul", "x", weight), kind=TensorProto.DOUBLE))
    assert not net.bind().computed
    assert net.bind(F32).computed


# --- the judge -----------------------------------------------------------------------------------------------------


def capped(limit: float) -> Callable[[Any, Any, Any], Any]:
    """A ReLU read wrongly: it ends at a limit."""
    return lambda b, call, inputs: b.put(
        call, clipped(b.nodes[inputs[0].index].shape, 0.0, limit, b.like), inputs[0].shape, inputs[0]
    )


@pytest.mark.parametrize("limit", [20.0, 1e3, 5e5])
def test_a_file_is_compared_on_inputs_of_many_sizes(
    limit: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONVERTERS, "Relu", capped(limit))
    assert "onnxruntime on inputs of many sizes" in sentence(written(tmp_path, (1, 4), lambda g: g("Relu", "x")))


def test_a_property_is_not_proved_where_its_box_shows_another_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far beyond the inputs that a file is compared on when it is loaded."""
    monkeypatch.setitem(CONVERTERS, "Relu", capped(2e8))
    net = pc.load(written(tmp_path, (1, 1), lambda g: g("Relu", "x")))
    declared = "(declare-const X_0 Real)(declare-const Y_0 Real)"
    box = "(assert (>= X_0 400000000.0))(assert (<= X_0 500000000.0))"
    (tmp_path / "p.vnnlib").write_text(f"{declared}{box}(assert (>= Y_0 900000000.0))")
    asked = read_property(tmp_path / "p.vnnlib")
    with pytest.raises(pc.PolycertError, match="a set that is asked about"):
        decide(net, asked, timeout=30)


@pytest.mark.parametrize("op", ["Max", "Min", "Concat", "Add", "Gemm"])
def test_an_input_that_is_needed_may_not_be_left_out(op: str, tmp_path: Path) -> None:
    """onnxruntime ends the whole process at `Max(x, "")`."""
    node = helper.make_node(op, ["x", ""], ["y"], **({"axis": 1} if op == "Concat" else {}))
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "net", sides[:1], sides[1:]), opset_imports=[helper.make_opsetid("", 13)]
    )
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(pc.PolycertError, match="it has no name"):
        pc.load(path)
