"""PER against Eq. (6) computed apart, and attacks that leave the parameters alone."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

import polycert as pc


@pytest.fixture
def problem() -> tuple[nn.Module, pc.Network, Tensor, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4)).double()
        x, y = torch.rand(6, 5).double(), torch.randint(0, 4, (6,))
    return module, pc.capture(module, (5,)), x, y


def signed_distance(slope: np.ndarray, gap: float, x: np.ndarray) -> float:
    """l_inf distance to the hyperplane inside the unit box, by a linear program; Lemma 1 where it is missed."""
    size = len(slope)
    cost = np.r_[np.zeros(size), 1.0]
    rows = np.block([[np.eye(size), -np.ones((size, 1))], [-np.eye(size), -np.ones((size, 1))]])
    limits = [*((-v, 1 - v) for v in x), (0, None)]
    found = linprog(cost, rows, np.zeros(2 * size), np.r_[slope, 0.0][None], [-gap], limits)
    if found.status == 0:
        return math.copysign(found.fun, gap)
    return 1e6 if gap > 0 else -abs(gap) / np.abs(slope).sum()


@pytest.mark.parametrize("method", ["crown", "forward"])
def test_per_is_equation_6(problem: tuple[nn.Module, pc.Network, Tensor, Tensor], method: str) -> None:
    _, net, x, y = problem
    ball = pc.Ball(eps=0.1, low=0.0, high=1.0)
    loss = pc.losses.PER(method=method, alpha=0.15, gamma=0.3, terms=2)
    env = pc.envelope(net, x, y, ball, method=method)
    total = 0.0
    for k in range(len(x)):
        slopes, offsets, at = env.slope[k].detach().numpy(), env.offset[k].detach().numpy(), x[k].numpy()
        distances = [signed_distance(u, float(u @ at + p), at) for u, p in zip(slopes, offsets, strict=True)]
        total += sum(max(0.0, 1 - d / 0.15) for d in sorted(distances)[:2])
    expected = torch.nn.functional.cross_entropy(net(x), y).item() + 0.3 * total / len(x)
    assert loss(net, x, y, ball).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("norm", [2, math.inf])
@pytest.mark.parametrize("at", [False, True])
def test_gradients_reach_every_parameter(
    problem: tuple[nn.Module, pc.Network, Tensor, Tensor], at: bool, norm: float
) -> None:
    module, net, x, y = problem
    pc.losses.PER(alpha=0.5, gamma=1.0, at=at)(net, x, y, pc.Ball(norm, 0.1, 0.0, 1.0)).backward()
    for parameter in module.parameters():
        assert parameter.grad is not None
        assert bool(torch.isfinite(parameter.grad).all())
        assert float(parameter.grad.abs().sum()) > 0


def test_the_subsample_is_uniform(problem: tuple[nn.Module, pc.Network, Tensor, Tensor]) -> None:
    loss = pc.losses.PER(subsample=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        counts = torch.stack([torch.bincount(loss._choose(problem[2]), minlength=6) for _ in range(3000)]).sum(0)
    assert bool(((counts - 1000).abs() < 120).all())


@pytest.mark.parametrize(
    "options", [{"method": "ibp"}, {"alpha": 0.0}, {"gamma": -1.0}, {"terms": 0}, {"subsample": 0}]
)
def test_senseless_settings_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(pc.PolycertError):
        pc.losses.PER(**options)  # type: ignore[arg-type]


def test_attacks_and_certification_leave_gradients_alone(
    problem: tuple[nn.Module, pc.Network, Tensor, Tensor],
) -> None:
    module, net, x, y = problem
    net(x).sum().backward()
    before = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    state = torch.random.get_rng_state()
    pc.attack(net, x, y, pc.Ball(eps=0.1, low=0.0, high=1.0), steps=5, restarts=2)
    pc.certify(net, x, y, pc.Ball(eps=0.1, low=0.0, high=1.0))
    pc.largest_radius(net, x, y, upper=0.3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(p.grad, old) for p, old in zip(module.parameters(), before, strict=True))


@pytest.mark.parametrize("norm", [1, 1.5, 2, math.inf])
def test_an_attack_stays_in_its_set_and_finds_what_is_there(
    problem: tuple[nn.Module, pc.Network, Tensor, Tensor], norm: float
) -> None:
    _, net, x, _ = problem
    y, eps = net(x).argmax(1), 0.8
    hits = pc.attack(net, x, y, pc.Ball(norm, eps, 0.0, 1.0), steps=40, restarts=3)
    moved = torch.linalg.vector_norm((hits.inputs - x).flatten(1), ord=norm, dim=1)
    assert float(moved.max()) <= eps * (1 + 1e-9)
    assert float(hits.inputs.min()) >= 0
    assert float(hits.inputs.max()) <= 1
    assert bool((hits.success == (hits.margin <= 0)).all())
    again = pc.attack(net, x[2:3], y[2:3], pc.Ball(norm, eps, 0.0, 1.0), steps=40, restarts=1)
    first = pc.attack(net, x, y, pc.Ball(norm, eps, 0.0, 1.0), steps=40, restarts=1)
    assert torch.allclose(again.margin, first.margin[2:3])
