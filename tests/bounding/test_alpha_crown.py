"""Optimised slopes: never looser than where they start, tighter where it matters, and close to the best there is."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from torch import Tensor, nn

import polycert as pc
from polycert.bounding import alpha_crown
from polycert.bounding.backward import Pass
from polycert.bounding.methods import passes
from tests.helpers.cases import CASES, NAMED, Case, ball, ready

ACTIVATED = [case for case in CASES if ready(case).net.bind().activations]


@pytest.mark.parametrize("case", ACTIVATED, ids=str)
@pytest.mark.parametrize("relaxation", ["parallel", "adaptive"])
def test_never_looser_than_the_start(case: Case, relaxation: str) -> None:
    _, net, x, _ = ready(case)
    with torch.no_grad():
        start = pc.bounds(net, x, ball(math.inf, eps=0.2), method="crown", relaxation=relaxation)
        found = pc.bounds(net, x, ball(math.inf, eps=0.2), method="alpha-crown", relaxation=relaxation)
    assert bool((found.lower >= start.lower - 1e-9).all())
    assert bool((found.upper <= start.upper + 1e-9).all())


@pytest.mark.parametrize("rate", [alpha_crown.RATE, 5.0])
@pytest.mark.parametrize(
    "name", ["relu", "leaky-1.7", "tanh", "gelu", "block-identity", "conv-stack", "lstm", "max-pool"]
)
def test_never_looser_whatever_the_rate(name: str, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """And tighter somewhere, with a rate that makes sense."""
    monkeypatch.setattr(alpha_crown, "STEPS", 10)
    monkeypatch.setattr(alpha_crown, "RATE", rate)
    _, net, x, _ = ready(NAMED[name])
    set_ = ball(math.inf, eps=0.3)
    with torch.no_grad():
        start = pc.bounds(net, x, set_, method="crown", relaxation="adaptive")
        found = pc.bounds(net, x, set_, method="alpha-crown", relaxation="adaptive")
    assert bool((found.lower >= start.lower - 1e-9).all())
    assert bool((found.upper <= start.upper + 1e-9).all())
    if rate < 1:
        assert bool((found.lower > start.lower + 1e-4).any())


@pytest.mark.parametrize("eps", [0.25, 0.4])
def test_close_to_the_linear_program(eps: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best bound with fixed pre-activation bounds is that of the program over the triangles around all units."""
    monkeypatch.setattr(alpha_crown, "STEPS", 30)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        layers = [nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 15), nn.ReLU(), nn.Linear(15, 4)]
        module = nn.Sequential(*layers).double()
        module[2].weight.data.mul_(3)
        x = torch.rand(3, 5, dtype=torch.float64)
    net, set_ = pc.capture(module, (5,)), pc.Ball(math.inf, eps)
    with torch.no_grad():
        start = pc.bounds(net, x, set_, method="crown", relaxation="adaptive").lower
        found = pc.bounds(net, x, set_, method="alpha-crown", relaxation="adaptive").lower
        run = passes(net.bind(), set_.at(x), "crown", "adaptive")[0]
        run.prepare(run.graph.output)
    best = torch.stack([least_outputs(module, run, sample) for sample in range(3)])
    assert bool((found <= best + 1e-7).all())
    assert float((best - start).mean()) > 0.01
    assert float((found - start).mean()) > 0.97 * float((best - start).mean())


def least_outputs(module: nn.Sequential, run: Pass, sample: int) -> Tensor:
    """The least value of each output where `h >= 0`, `h >= z` and h is below the chord; z are affine in h before."""
    sizes = [module[0].in_features, *(layer.out_features for layer in module[::2])]
    count = sum(sizes[:-1])
    box = run.region.box
    limits = list(zip(box.lower[sample].tolist(), box.upper[sample].tolist(), strict=True))
    rows, right, begin = [], [], 0
    for k, layer in enumerate(module[::2]):
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        z = np.zeros((len(bias), count))
        z[:, begin : begin + sizes[k]] = weight
        begin += sizes[k]
        if layer is module[-1]:
            break
        given = run.interval(run.graph.nodes[run.graph.activations[k]].inputs[0])
        low, high = (end[sample].numpy() for end in given)
        steep = np.clip(high, 0, None) / (np.clip(high, 0, None) - np.clip(low, None, 0))
        height = -steep * np.clip(low, None, 0)
        h = np.zeros_like(z)
        h[:, begin : begin + sizes[k + 1]] = np.eye(sizes[k + 1])
        rows += [z - h, h - steep[:, None] * z]
        right += [-bias, height + steep * bias]
        limits += [(0, None)] * sizes[k + 1]
    limit = {"A_ub": np.concatenate(rows), "b_ub": np.concatenate(right), "bounds": limits}
    return torch.tensor([linprog(row, **limit).fun + shift for row, shift in zip(z, bias, strict=True)])


def test_a_deep_sigmoid_network(shared: Path) -> None:
    net = pc.load(shared / "vnn" / "eran_2021" / "onnx" / "ffnnSIGMOID__Point_6x200.onnx")
    sample = pc.data.load("mnist-sample")
    x, y = sample.x[:3].reshape(3, *net.input_shape), sample.y[:3]
    set_ = pc.Ball(math.inf, 0.012, 0.0, 1.0)
    margins = [
        pc.certify(net, x, y, set_, method=method, relaxation="adaptive", rigorous=False).margin
        for method in ("crown", "alpha-crown")
    ]
    assert bool((margins[1] >= margins[0] - 1e-4).all())
    assert float((margins[1] - margins[0]).mean()) > 0.1


@pytest.mark.parametrize(
    ("activation", "share"),
    [(nn.ReLU(), 0.8), (nn.LeakyReLU(1.5), 0.8), (nn.Tanh(), 0.5), (nn.Sigmoid(), 0.5)],
    ids=["relu", "leaky", "tanh", "sigmoid"],
)
def test_close_to_the_best_slopes(activation: nn.Module, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One hidden layer over a box, against a direct search for the slopes of its lines."""
    monkeypatch.setattr(alpha_crown, "STEPS", 150)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 1)).double()
        module[0].weight.data.mul_(3)
    net, x = pc.capture(module, (3,)), torch.full((1, 3), 0.4, dtype=torch.float64)
    set_ = pc.Ball(math.inf, 0.4)
    with torch.no_grad():
        start = float(pc.bounds(net, x, set_, relaxation="parallel").lower)
        found = float(pc.bounds(net, x, set_, method="alpha-crown", relaxation="parallel").lower)
    best = best_lower_bound(module, x[0].numpy(), 0.4)
    assert found <= best + 1e-6
    assert found >= start + share * (best - start)
    assert best > start + 1e-3


def best_lower_bound(module: nn.Sequential, x: np.ndarray, eps: float) -> float:
    """By a search without derivatives over the slopes of all lines; offsets from a fine grid."""
    (a, b), (c, d) = ([p.detach().numpy() for p in module[k].parameters()] for k in (0, 2))
    middle, width = a @ x + b, np.abs(a).sum(1) * eps
    grids = [torch.linspace(m - w, m + w, 4001, dtype=torch.float64) for m, w in zip(middle, width, strict=True)]
    values = [module[1](grid).numpy() for grid in grids]

    def bound(slopes: np.ndarray) -> float:
        total, slope = float(d[0]), np.zeros(3)
        for k, (grid, value) in enumerate(zip(grids, values, strict=True)):
            rest = c[0, k] * (value - slopes[k] * grid.numpy())
            total += rest.min() + c[0, k] * slopes[k] * b[k]
            slope += c[0, k] * slopes[k] * a[k]
        return total + slope @ x - eps * np.abs(slope).sum()

    starts = np.random.default_rng(0).uniform(0, 1, (12, 4))
    runs = [minimize(lambda s: -bound(s), start, method="Powell", options={"xtol": 1e-7}) for start in starts]
    return max(-float(run.fun) for run in runs)


def test_training_goes_through_and_parameters_keep_their_gradients() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    x = torch.rand(5, 4, dtype=torch.float64)
    env = pc.envelope(pc.capture(module, (4,)), x, None, pc.Ball(eps=0.3), method="alpha-crown")
    assert all(parameter.grad is None for parameter in module.parameters())
    env.margins().sum().backward()
    for parameter in module.parameters():
        assert parameter.grad is not None
        assert bool(torch.isfinite(parameter.grad).all())


def test_best_keeps_the_better() -> None:
    net, x = ready(NAMED["relu"]).net, ready(NAMED["relu"]).x
    margins = {
        name: pc.certify(net, x, None, ball(math.inf, eps=0.2), method="alpha-crown", relaxation=name).radius
        for name in ("parallel", "adaptive", "best")
    }
    assert bool((margins["best"] >= torch.maximum(margins["parallel"], margins["adaptive"]) - 1e-9).all())
