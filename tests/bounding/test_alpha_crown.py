"""Optimised slopes: never looser than where they start, tighter where it matters, and close to the best there is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import polycert as pc
from polycert.bounding import alpha_crown
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
