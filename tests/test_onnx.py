"""ONNX files: what is read is what onnxruntime computes, at every opset, and what is malformed is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import polycert as pc
from cases import CASES, Case, ready
from onnx_files import FILES, File

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


@pytest.mark.parametrize("method", ["ibp", "forward", "crown", "crown-ibp"])
@pytest.mark.parametrize("file", FILES, ids=str)
def test_bounds_of_a_file_hold_where_onnxruntime_looks(file: File, method: str, tmp_path: Path) -> None:
    net = pc.load(file.write(tmp_path))
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
