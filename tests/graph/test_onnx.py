"""ONNX files: what is read is what onnxruntime computes, at every opset, and what is malformed is refused."""

from __future__ import annotations

import copy
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn

import polycert as pc
from polycert.rules.convex import Reciprocal
from tests.helpers.cases import CASES, Case, ready
from tests.helpers.onnx_files import FILES, File, rand

F32, F64 = torch.float32, torch.float64


def draw(net: pc.Network, count: int = 5, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, *net.input_shape, generator=generator, dtype=F64).to(net.dtype) * 3 - 1


# --- what is read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_file_is_read_as_onnxruntime_reads_it(file: File, tmp_path: Path) -> None:
    """On other inputs than the importer itself looks at."""
    net = pc.load(file.write(tmp_path))
    x = draw(net)
    expected = net.replay(x)
    scale = expected.abs().amax().clamp(min=1)
    for graph in (net.bind(), net.bind(F64)):
        found = graph.forward(x.to(graph.dtype)).double().flatten(1)
        assert float((found - expected).abs().amax()) <= 1e-5 * float(scale)
    assert net.input_shape == tuple(n for n in (file.sample or file.shape[1:]))


@pytest.mark.parametrize("opset", [8, 9, 11, 13, 15, 18, 21])
@pytest.mark.parametrize("name", ["gemm", "conv", "max-pool", "residual", "sigmoid", "batch-norm", "transpose"])
def test_every_opset(name: str, opset: int, tmp_path: Path) -> None:
    file = next(file for file in FILES if file.name == name)
    net = pc.load(File(name, file.shape, file.build, opset).write(tmp_path))
    x = draw(net)
    torch.testing.assert_close(net(x).double().flatten(1), net.replay(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_bounds_of_a_file_hold_where_onnxruntime_looks(file: File, tmp_path: Path) -> None:
    net = pc.load(file.write(tmp_path))
    method = ("ibp", "forward", "crown", "crown-ibp")[FILES.index(file) % 4]
    x = draw(net, 1)
    ball = pc.Ball(eps=0.2)
    rigorous = not net.bind().computed
    found = pc.bounds(net, x, ball, method=method, rigorous=rigorous)
    points = ball.at(x).sample(40, torch.Generator().manual_seed(1))[:, 0]
    outputs = net.bind(F64).forward(points.double()).flatten(1)
    assert bool((outputs >= found.lower.double().flatten(1) - 1e-9).all())
    assert bool((outputs <= found.upper.double().flatten(1) + 1e-9).all())


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_exported_is_read_back(case: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    """Every op of the registry, through a file; the bounds are those of the captured module."""
    if any(isinstance(node.op, Reciprocal) for node in ready(case).net.bind().nodes):
        pytest.skip("the reciprocal inside a softmax is not written on its own")
    if case.name == "gelu-tanh" and dtype == F64:
        pytest.skip("ONNX defines this op with constants in float32")
    if case.name == "transposed-groups" and dtype == F64:
        pytest.skip("neither onnxruntime nor ONNX's reference has this op in float64")
    module, net, x, ball = ready(case, dtype)
    path = tmp_path / "net.onnx"
    pc.export(net, path)
    back = pc.load(path)
    assert back.input_shape == net.input_shape
    assert back.output_shape == net.output_shape
    assert back.dtype == dtype
    tolerance = 1e-4 if dtype == F32 else 1e-7  # attributes such as a leak are float32 in a file
    with torch.no_grad():
        torch.testing.assert_close(back(x), module(x), rtol=tolerance, atol=tolerance)
        mine, theirs = pc.bounds(back, x, ball(2)), pc.bounds(net, x, ball(2))
    torch.testing.assert_close(mine.lower, theirs.lower, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(mine.upper, theirs.upper, rtol=tolerance, atol=tolerance)


def test_certificates_of_a_file_are_those_of_the_module(tmp_path: Path) -> None:
    module, net, x, ball = ready(next(case for case in CASES if case.name == "conv-stack"), F32)
    pc.export(net, tmp_path / "net.onnx")
    mine, theirs = (pc.certify(n, x, None, ball(2)) for n in (pc.load(tmp_path / "net.onnx"), module))
    torch.testing.assert_close(mine.radius, theirs.radius, rtol=1e-3, atol=1e-6)
    assert mine.certified.tolist() == theirs.certified.tolist()


def test_every_network_of_the_competition_is_read(shared: Path) -> None:
    """`pc.load` itself compares with onnxruntime; here once more, on other inputs."""
    paths = sorted((shared / "vnn").glob("*/onnx/*.onnx"))
    assert len(paths) == 28
    for path in paths:
        net = pc.load(path)
        x = draw(net, 2)
        expected = net.replay(x)
        error = (net(x).double().flatten(1) - expected).abs()
        assert bool((error <= (1e-4 * expected.abs()).clamp(min=1e-5)).all()), path.name


# --- what is refused -----------------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    """The one sentence with which a file is refused."""
    with pytest.raises(pc.PolycertError) as caught:
        pc.load(path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence) < 1500
    return sentence


def base() -> Any:
    return next(file for file in FILES if file.name == "gemm").model()


def node(model: Any, op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
    model.graph.node.append(helper.make_node(op, inputs, outputs, **attributes))
    model.graph.output[0].name = outputs[0]


def unknown_op(model: Any) -> None:
    node(model, "Sin", [model.graph.output[0].name], ["y"])


def custom_domain(model: Any) -> None:
    node(model, "Relu", [model.graph.output[0].name], ["y"], domain="com.evil")


def cycle(model: Any) -> None:
    model.graph.node[0].input[0] = model.graph.output[0].name


def missing_value(model: Any) -> None:
    model.graph.node[0].input[0] = "nowhere"


def computed_twice(model: Any) -> None:
    model.graph.node.append(copy.deepcopy(model.graph.node[0]))


def no_graph(model: Any) -> None:
    model.ClearField("graph")


def huge_tensor(model: Any) -> None:
    model.graph.initializer[0].dims[:] = [2**31, 2**31]


def huge_input(model: Any) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2**40


def negative_size(model: Any) -> None:
    model.graph.initializer[0].dims[:] = [-4, -5]


def short_tensor(model: Any) -> None:
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]


def half_precision(model: Any) -> None:
    tensor = numpy_helper.from_array(rand(4, 5).astype(np.float16), model.graph.initializer[0].name)
    model.graph.initializer[0].CopyFrom(tensor)


def external_data(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def not_a_number(model: Any) -> None:
    tensor = numpy_helper.from_array(np.full((4, 5), np.nan, np.float32), model.graph.initializer[0].name)
    model.graph.initializer[0].CopyFrom(tensor)


def wrong_matrix(model: Any) -> None:
    tensor = numpy_helper.from_array(rand(3, 5), model.graph.initializer[0].name)
    model.graph.initializer[0].CopyFrom(tensor)


def huge_expand(model: Any) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array([2**30, 3], np.int64), "big"))
    node(model, "Expand", [model.graph.output[0].name, "big"], ["y"])


def huge_fill(model: Any) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array([2**20, 2**20], np.int64), "big"))
    model.graph.node.append(helper.make_node("ConstantOfShape", ["big"], ["filled"]))
    node(model, "Add", [model.graph.output[0].name, "filled"], ["y"])


def huge_pads(model: Any) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array([0, 2**40, 0, 2**40], np.int64), "pads"))
    node(model, "Pad", [model.graph.output[0].name, "pads"], ["y"])


def subgraph(model: Any) -> None:
    body = copy.deepcopy(model.graph)
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    node(model, "If", ["yes"], ["y"], then_branch=body, else_branch=body)


def two_outputs(model: Any) -> None:
    model.graph.output.append(copy.deepcopy(model.graph.input[0]))


def two_inputs(model: Any) -> None:
    extra = copy.deepcopy(model.graph.input[0])
    extra.name = "extra"
    model.graph.input.append(extra)


def old_opset(model: Any) -> None:
    model.opset_import[0].version = 3


def wrong_attribute(model: Any) -> None:
    model.graph.node[0].attribute.append(AttributeProto(name="transB", type=AttributeProto.STRING, s=b"\xff\xfe"))


def free_sizes(model: Any) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"


def constant_output(model: Any) -> None:
    node(model, "Identity", [model.graph.initializer[0].name], ["y"])


def bad_reshape(model: Any) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1, -1], np.int64), "shape"))
    node(model, "Reshape", [model.graph.output[0].name, "shape"], ["y"])


def bad_pool(model: Any) -> None:
    node(model, "MaxPool", [model.graph.output[0].name], ["y"], kernel_shape=[2**40, 0, -3])


def many_expansions(model: Any) -> None:
    """Each is allowed, all together are not."""
    model.graph.initializer.append(numpy_helper.from_array(np.array([2**22, 3], np.int64), "big"))
    start = model.graph.output[0].name
    for k in range(100):
        model.graph.node.append(helper.make_node("Expand", [start, "big"], [f"wide_{k}"]))
    node(model, "Sum", [f"wide_{k}" for k in range(100)], ["y"])


def huge_window(model: Any) -> None:
    model.graph.input[0].type.tensor_type.shape.CopyFrom(TENSOR_4096)
    del model.graph.node[:]
    node(model, "GlobalMaxPool", ["x"], ["y"])


def two_lines(model: Any) -> None:
    model.graph.node[0].op_type = "Su\nb"


TENSOR_4096 = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4096, 4096]).type.tensor_type.shape

MALFORMED: dict[Callable[[Any], None], str] = {
    unknown_op: "no rule for Sin",
    custom_domain: "com.evil",
    cycle: "cycle",
    missing_value: "never computed",
    computed_twice: "computed twice",
    no_graph: "no graph",
    huge_tensor: "at most",
    huge_input: "at most",
    negative_size: "-4",
    short_tensor: "stores 19 entries",
    half_precision: "type 10",
    external_data: "another file",
    not_a_number: "NaN",
    wrong_matrix: "matrix of shape",
    huge_expand: "at most",
    huge_fill: "at most",
    huge_pads: "at most",
    subgraph: "no rule for If",
    two_outputs: "one input and one output",
    two_inputs: "one input and one output",
    old_opset: "opset 3",
    wrong_attribute: "cannot read",
    free_sizes: "free axes",
    constant_output: "does not depend",
    bad_reshape: "cannot make shape",
    bad_pool: "image",
    many_expansions: "entries together",
    huge_window: "windows of at most",
    two_lines: "no rule for Su b",
}


@pytest.mark.parametrize("damage", MALFORMED, ids=lambda damage: damage.__name__)
def test_a_malformed_file_is_refused_with_one_sentence(damage: Callable[[Any], None], tmp_path: Path) -> None:
    model = base()
    damage(model)
    path = tmp_path / "bad.onnx"
    path.write_bytes(model.SerializeToString())
    before, clock = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    assert MALFORMED[damage] in refusal(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # kilobytes
    assert time.monotonic() - clock < 10


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    content = base().SerializeToString()
    path = tmp_path / "cut.onnx"
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        refusal(path)
    path.write_bytes(b"PK\x03\x04 something else")
    refusal(path)
    (tmp_path / "folder.onnx").mkdir()
    refusal(tmp_path / "folder.onnx")


def fuzz(content: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, cut out or put in."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        place = chance.randrange(len(data))
        kind = chance.randrange(4)
        if kind == 0:
            data[place] = chance.randrange(256)
        elif kind == 1:
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 2:
            del data[place : place + chance.randint(1, 9)]
        else:
            data[place:place] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 9)))
    return bytes(data)


@pytest.mark.slow
def test_damaged_files_never_do_more_than_raise_one_sentence(tmp_path: Path) -> None:
    """For a minute: bytes of every file of the registry are changed at random."""
    contents = [file.model().SerializeToString() for file in FILES]
    chance, end, path = random.Random(0), time.monotonic() + 60, tmp_path / "fuzzed.onnx"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = {"read": 0, "refused": 0, "said too much": 0}
    while time.monotonic() < end:
        path.write_bytes(fuzz(chance.choice(contents), chance))
        clock = time.monotonic()
        try:
            pc.load(path)
            outcomes["read"] += 1
        except pc.PolycertError as error:
            outcomes["refused"] += "\n" not in str(error)
            outcomes["said too much"] += "\n" in str(error)
        assert time.monotonic() - clock < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000
    assert outcomes["refused"] > 100
    assert outcomes["said too much"] == 0


def test_nothing_is_written_where_an_export_fails(tmp_path: Path) -> None:
    net = ready(next(case for case in CASES if case.name == "relu"), F32).net
    with pytest.raises(pc.PolycertError, match=r"exported as \.onnx"):
        pc.export(net, tmp_path / "net.pt")
    with pytest.raises(pc.PolycertError, match="folder does not exist"):
        pc.export(net, tmp_path / "no" / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_exported_file_passes_the_checker(tmp_path: Path) -> None:
    net = ready(next(case for case in CASES if case.name == "max-pool"), F32).net
    pc.export(net, tmp_path / "net.onnx")
    onnx.checker.check_model(tmp_path / "net.onnx", full_check=True)


def test_a_dropped_softmax_is_not_exported_as_if_it_were_there(tmp_path: Path) -> None:
    net = pc.capture(nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)), (3,))
    with pytest.raises(pc.PolycertError, match="ends in a softmax"):
        pc.export(net, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())
