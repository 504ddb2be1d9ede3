"""Files whose output looks right wherever they are compared, as the units that would show the difference are off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polycert as pc
from polycert.exact import Specification
from polycert.graph.onnx import comparison, constant_folding
from polycert.graph.onnx.builder import CONVERTERS
from polycert.graph.onnx.comparison import check_inside
from polycert.graph.onnx.onnxruntime_check import OnnxRuntime
from polycert.rules.maximum import clipped
from polycert.rules.piecewise_linear import LeakyRelu
from polycert.verification.vnnlib.reader import parse_property
from tests.helpers.onnx_files import FILES, File, Graph, ints, rand

FAR = np.float32(1e7)


def off(g: Graph, size: int = 4) -> str:
    """Units that are off for inputs below 1e7."""
    return g("Relu", g("Sub", "x", np.full((1, size), FAR)))


def load(folder: Path, build: Callable[[Graph], str], opset: int = 13, size: int = 4) -> Any:
    return pc.load(File("net", (1, size), build, opset).write(folder))


def far(net: Any, size: int = 4) -> None:
    """Far inputs, where the units are on, give what onnxruntime gives."""
    x = torch.from_numpy(1e7 + 8 * np.arange(1, size + 1, dtype=np.float32)).reshape(1, *net.input_shape)
    assert net.replay(x).abs().max() > 0
    torch.testing.assert_close(net(x).double().flatten(1), net.replay(x), rtol=1e-5, atol=1e-6)


def sentence(make: Callable[[], Any]) -> str:
    with pytest.raises(pc.PolycertError) as caught:
        make()
    return str(caught.value)


# --- what was read otherwise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("noop", [0, 1])
@pytest.mark.parametrize("axes", [None, ints()], ids=["no axes", "empty axes"])
def test_a_product_of_constants_over_no_axes(axes: Any, noop: int, tmp_path: Path) -> None:
    """Over all axes, or with the attribute over none."""

    def build(g: Graph) -> str:
        given = [ints(-1, -1, -1, -3)] + ([] if axes is None else [axes])
        factor = g("ReduceProd", *given, noop_with_empty_axes=noop, keepdims=1)
        return g("Mul", off(g), g("Cast", factor, to=1))

    far(load(tmp_path, build, 18))


@pytest.mark.parametrize("leading", [(1,), (1, 1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("vector", [False, True])
def test_a_matrix_from_the_left_keeps_its_leading_axes(leading: tuple[int, ...], vector: bool, tmp_path: Path) -> None:
    def build(g: Graph) -> str:
        value = g("Reshape", off(g), ints(4) if vector else ints(4, 1))
        made = g("MatMul", rand(*leading, 2, 4), value)
        return g("Reshape", g("ReduceSum", made, ints(0)), ints(1, 2))

    far(load(tmp_path, build))


def test_an_empty_list_of_axes_to_squeeze_is_refused(tmp_path: Path) -> None:
    def build(g: Graph) -> str:
        return g("Flatten", g("Squeeze", g("Reshape", off(g), ints(1, 4, 1)), ints()))

    assert "empty list of axes" in sentence(lambda: load(tmp_path, build))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_a_dilated_pool_that_pads_by_itself_is_refused(op: str, tmp_path: Path) -> None:
    def build(g: Graph) -> str:
        image = g("Reshape", off(g, 25), ints(1, 1, 5, 5))
        return g("Flatten", g(op, image, kernel_shape=[3, 3], dilations=[2, 2], auto_pad="SAME_UPPER"))

    assert "dilated" in sentence(lambda: load(tmp_path, build, 19, size=25))


def test_a_call_that_the_output_does_not_need_is_never_run(tmp_path: Path) -> None:
    def build(g: Graph) -> str:
        g("Tile", "x", ints(10**9, 1))
        return g("Relu", "x")

    net = load(tmp_path, build)
    assert net(torch.ones(1, 4)).sum() == 4


REFUSED: dict[str, Callable[[Graph], str]] = {
    "must be 0 or 1": lambda g: g("ReduceSum", "x", ints(), noop_with_empty_axes=2),
    "must hold one value": lambda g: g("Add", "x", g("Constant", value_float=1.0, value_int=2)),
    "outputs, not the": lambda g: g("Concat", *g("Split", "x", axis=1, num_outputs=2**31, outputs=2), axis=1),
}


@pytest.mark.parametrize("text", REFUSED)
def test_attributes_that_contradict_are_refused(text: str, tmp_path: Path) -> None:
    assert text in sentence(lambda: load(tmp_path, REFUSED[text], 18))


# --- the judge -----------------------------------------------------------------------------------------------------


def test_a_wrong_constant_is_found_where_units_are_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(constant_folding.FOLDS, "Neg", lambda call, inputs, opset: inputs[0])

    def build(g: Graph) -> str:
        return g("Mul", off(g), g("Cast", g("Neg", ints(2)), to=1))

    assert "in a constant" in sentence(lambda: load(tmp_path, build))


def test_a_wrong_shape_is_found_where_units_are_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flat(b: Any, call: Any, inputs: list[Any]) -> Any:
        return b.reshape(call, inputs[0], (4,))

    monkeypatch.setitem(CONVERTERS, "Unsqueeze", flat)
    build = lambda g: g("Flatten", g("Unsqueeze", off(g), ints(1)))  # noqa: E731
    assert "in the shape [1, 1, 4], read as [4]" in sentence(lambda: load(tmp_path, build))


def test_a_wrong_rule_is_found_where_units_are_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operand is 0 at all inputs that the file is compared on."""

    def leaky(b: Any, call: Any, inputs: list[Any]) -> Any:
        return b.put(call, LeakyRelu(b.nodes[inputs[0].index].shape, leak=0.3), inputs[0].shape, inputs[0])

    monkeypatch.setitem(CONVERTERS, "LeakyRelu", leaky)
    build = lambda g: g("LeakyRelu", g("Neg", off(g)), alpha=0.1)  # noqa: E731
    assert "in one of its calls alone" in sentence(lambda: load(tmp_path, build))


@pytest.mark.parametrize("file", [file for file in FILES if file.name != "silu"], ids=str)
def test_every_op_is_compared_by_itself(file: File, tmp_path: Path) -> None:
    net: Any = pc.load(file.write(tmp_path))
    trace = net.trace(net.own)
    alone = {name for call in comparison._alone(trace, net.replay) for name in call.results}
    assert alone == {name for name, place in trace.places.items() if place.node is not None} - {"x"}


QUESTIONS: dict[str, Callable[[Any, Any, pc.Ball], Any]] = {
    "certify": lambda net, x, ball: pc.certify(net, x, None, ball),
    "verify": lambda net, x, ball: pc.verify(net, x, None, ball, timeout=5),
    "radius": lambda net, x, ball: pc.largest_radius(net, x, None, upper=1.0),
    "bounds": lambda net, x, ball: pc.bounds(net, x, ball, rigorous=True),
    "envelope": lambda net, x, ball: pc.envelope(net, x, None, ball, rigorous=True),
    "decide": lambda net, x, ball: pc.exact.decide(net, ball.at(x[-1:]), Specification.margins(0, 4), timeout=5),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_samples_are_not_proved_where_the_graph_is_another_network(
    question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ReLU that ends far beyond all that a file is compared on when it is loaded."""

    def capped(b: Any, call: Any, inputs: list[Any]) -> Any:
        return b.put(call, clipped(b.nodes[inputs[0].index].shape, 0.0, 2e8, b.like), inputs[0].shape, inputs[0])

    monkeypatch.setitem(CONVERTERS, "Relu", capped)
    net = load(tmp_path, lambda g: g("Relu", "x"))
    x = torch.rand(20, 4, generator=torch.Generator().manual_seed(0))
    QUESTIONS[question](net, x, pc.Ball(eps=0.1))
    x[-1] = torch.tensor([5e8, 4e8, 3e8, 2e8])
    assert "a set that is asked about" in sentence(lambda: QUESTIONS[question](net, x, pc.Ball(eps=0.1)))


def test_the_points_of_few_samples_lie_in_their_own_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = load(tmp_path, lambda g: g("Relu", "x"))
    seen: list[torch.Tensor] = []
    given = OnnxRuntime.values
    monkeypatch.setattr(OnnxRuntime, "values", lambda self, x, names: seen.append(x) or given(self, x, names))
    x = torch.tensor([[1.0, 2, 3, 4], [100, 200, 300, 400]])
    check_inside(net.trace(torch.float64), net.replay, pc.Ball(eps=0.5).at(x))
    points = torch.cat(seen)
    gap = (points[:, None] - x).abs().amax(2)
    assert (gap.amin(1) <= 0.5 + 1e-3).all()  # boxes are rounded outward in float32
    assert (gap.amin(0) <= 0.5 + 1e-3).all()


# --- witnesses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "y", "holds"),
    [
        ("(<= Y_0 0.7)", float(np.nextafter(0.7, 1)), False),
        ("(<= Y_0 0.7)", float(np.nextafter(0.7, 0)), True),
        ("(= Y_0 0.1)", 0.1, False),
        ("(= Y_0 0.125)", 0.125, True),
        ("(>= (+ 0.1 Y_0) 0)", -0.1, False),
        ("(<= (+ 0.1 Y_0) 0)", -0.1, True),
        ("(= (* 3 Y_0) 1)", 1 / 3, False),
        ("(< Y_0 0.5)", 0.5, False),
        ("(<= Y_0 0.5)", 0.5, True),
        ("(<= Y_0 0.5)", -np.inf, False),
    ],
)
def test_a_witness_fulfils_the_text_exactly(condition: str, y: float, holds: bool) -> None:
    text = f"(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 0))(assert (<= X_0 1))(assert {condition})"
    (box,) = parse_property(text).boxes
    assert box.holds(np.array([0.5]), np.array([y])) is holds
