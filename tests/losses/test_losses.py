"""Losses against independent computations: numpy, linear programs, autograd, finite differences."""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import linprog
from torch import Tensor, nn

import polycert as pc
from polycert.losses import AT, IBP, KW, L1, MMR, MTLIBP, MTLKW, PER, CrownIBP, KeyedDraws, Plain, Stability, Sum
from polycert.losses.mmr import boundaries

ACTIVATIONS = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}
LOSSES: dict[str, Any] = {
    "plain": Plain(),
    "at": AT(attack_steps=3),
    "kw": KW(),
    "ibp": IBP(kappa=0.4),
    "c-ibp": CrownIBP(kappa=0.4, beta=0.3),
    "mmr": MMR(gamma_boundary=0.7, gamma_decision=0.9, decisions=2),
    "mmr+at": MMR(gamma_boundary=0.7, gamma_decision=0.9, at=True, attack_steps=3),
    "c-per": PER(alpha=0.4, gamma=0.7, terms=2),
    "c-per+at": PER(alpha=0.4, gamma=0.7, at=True, attack_steps=3),
    "i-per": PER(method="forward", alpha=0.4, gamma=0.7),
    "i-per+at": PER(method="forward", alpha=0.4, gamma=0.7, at=True, attack_steps=3),
    "mtl-ibp": MTLIBP(mix=0.3, attack_steps=3),
    "mtl-kw": MTLKW(mix=0.3, attack_steps=3),
    "sum": Sum(PER(alpha=0.4), L1(0.01), Stability(0.02)),
}
ATTACKING = [name for name in LOSSES if "at" in name or name.startswith("mtl")]


@cache
def network(activation: str) -> tuple[nn.Sequential, pc.Network]:
    """A small network in float64. Shared between tests: gradients are set to None by each."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = nn.Linear(5, 6), ACTIVATIONS[activation](), nn.Linear(6, 5), ACTIVATIONS[activation](), nn.Linear(5, 4)
        module = nn.Sequential(*layers).double()
    return module, pc.capture(module, (5,))


def batch(count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(count, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 4, (count,), generator=generator)


def keyed(index: list[int], whole: list[int] | None = None, processes: int = 1, epoch: int = 0) -> KeyedDraws:
    return KeyedDraws(0, epoch, torch.tensor(index), torch.tensor(whole or index), processes)


def box_ball(norm: float = math.inf, eps: float = 0.07) -> pc.Ball:
    return pc.Ball(norm, eps, low=0.0, high=1.0)


# gradients


@pytest.mark.parametrize("norm", [2, math.inf])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_that_of_finite_differences(
    name: str, activation: str, norm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    (module, net), (x, y), loss, ball = network(activation), batch(3), LOSSES[name], box_ball(norm)
    module.zero_grad(set_to_none=True)
    if name.startswith("mmr") and activation != "relu":
        with pytest.raises(pc.PolycertError, match="piecewise linear"):
            loss(net, x, y, ball)
        return
    # Attacked points are constants of a loss: here they stay put while the weights move.
    for where in ("loss", "worst_case", "per", "mmr"):
        monkeypatch.setattr(f"polycert.losses.{where}.attacked", lambda _, region, *__: region.project(region.x + 0.05))
    draws = keyed([4, 9, 2])
    loss(net, x, y, ball, draws).backward()
    parameters, generator, step = list(module.parameters()), torch.Generator().manual_seed(5), 1e-6
    for _ in range(4):
        directions = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
        values = [moved(parameters, directions, shift, lambda: loss(net, x, y, ball, draws)) for shift in (step, -step)]
        expected = (values[0] - values[1]) / (2 * step)
        found = sum(float((p.grad * d).sum()) for p, d in zip(parameters, directions, strict=True))
        assert abs(expected) > 1e-3
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def moved(parameters: list[Any], directions: list[Tensor], step: float, work: Callable[[], Tensor]) -> float:
    """A value with the weights moved along a direction, which are then as they were."""
    kept = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for p, direction in zip(parameters, directions, strict=True):
            p.add_(direction, alpha=step)
        value = work().item()
        for p, old in zip(parameters, kept, strict=True):
            p.copy_(old)
    return value


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_finite_at_awkward_points(name: str) -> None:
    """Radius 0, and inputs on the border of the box."""
    module, net = network("relu")
    module.zero_grad(set_to_none=True)
    x, y = torch.tensor([[0.0, 1.0, 0.0, 0.5, 1.0]] * 2).double(), torch.tensor([0, 1])
    for eps in (0.0, 0.3):
        LOSSES[name](net, x, y, box_ball(2, eps)).backward()
        assert all(bool(torch.isfinite(p.grad).all()) for p in module.parameters() if p.grad is not None)


# PER by an independent script


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


class Reach:
    """The set around one sample as the script sees it: l_inf in the unit box, or l_2 without a box."""

    def __init__(self, x: np.ndarray, eps: float, norm: float) -> None:
        self.x, self.eps, self.norm = x, eps, norm
        self.low, self.high = np.maximum(x - eps, 0), np.minimum(x + eps, 1)

    def minimum(self, slope: np.ndarray) -> np.ndarray:
        """Of `slope x'` for each row."""
        if self.norm == 2:
            return slope @ self.x - self.eps * np.linalg.norm(slope, axis=1)
        return np.maximum(slope, 0) @ self.low + np.minimum(slope, 0) @ self.high

    def distance(self, slope: np.ndarray, offset: float, start: np.ndarray) -> float:
        gap = float(slope @ start + offset)
        return gap / np.linalg.norm(slope) if self.norm == 2 else signed_distance(slope, gap, start)


def relu_lines(lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The paper's slope and the height of its upper line (Appendix A-A)."""
    slope = np.where(lower >= 0, 1.0, np.where(upper <= 0, 0.0, upper / np.maximum(upper - lower, 1e-300)))
    return slope, np.where((lower < 0) & (upper > 0), -slope * lower, 0.0)


def pulled(layers: list[Any], lines: list[Any], rows: np.ndarray, shift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower linear bounds of `rows h + shift`, h the last activation, pulled to the input neuron by neuron."""
    for (weight, bias), (slope, height) in zip(reversed(layers), reversed(lines), strict=True):
        shift = shift + np.minimum(rows, 0) @ height
        rows = rows * slope
        shift, rows = shift + rows @ bias, rows @ weight
    return rows, shift


def crown_envelope(layers: list[Any], reach: Reach, label: int) -> tuple[np.ndarray, np.ndarray]:
    """U and p of the paper's backward linearisation (Appendix A-B)."""
    lines: list[Any] = []
    for depth in range(1, len(layers)):
        weight, bias = layers[depth - 1]
        bounds = []
        for sign in (1, -1):
            rows, shift = pulled(layers[: depth - 1], lines, sign * weight, sign * bias)
            bounds.append(sign * (reach.minimum(rows) + shift))
        lines.append(relu_lines(*bounds))
    weight, bias = margin_layer(layers[-1], label)
    return pulled(layers[:-1], lines, weight, bias)


def forward_envelope(layers: list[Any], reach: Reach, label: int) -> tuple[np.ndarray, np.ndarray]:
    """U and p of the paper's forward linearisation (Appendix A-C)."""
    columns, low, high = np.eye(len(reach.x)), np.zeros(len(reach.x)), np.zeros(len(reach.x))
    for k, (own, shift) in enumerate(layers):
        weight, bias = (own, shift) if k + 1 < len(layers) else margin_layer((own, shift), label)
        positive, negative = np.maximum(weight, 0), np.minimum(weight, 0)
        low, high = positive @ low + negative @ high + bias, positive @ high + negative @ low + bias
        columns = weight @ columns
        if k + 1 < len(layers):
            slope, height = relu_lines(reach.minimum(columns) + low, high - reach.minimum(-columns))
            columns, low, high = slope[:, None] * columns, slope * low, slope * high + height
    return columns, low


def margin_layer(layer: Any, label: int) -> tuple[np.ndarray, np.ndarray]:
    weight, bias = layer
    others = [k for k in range(len(bias)) if k != label]
    return weight[label] - weight[others], bias[label] - bias[others]


def arrays(module: nn.Sequential) -> list[Any]:
    linear = [layer for layer in module if isinstance(layer, nn.Linear)]
    return [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in linear]


@pytest.mark.parametrize("at", [False, True], ids=["clean", "at"])
@pytest.mark.parametrize("norm", [2, math.inf])
@pytest.mark.parametrize(("method", "script"), [("crown", crown_envelope), ("forward", forward_envelope)])
def test_per_is_equation_6(method: str, script: Any, norm: float, at: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an attack, distances begin at the attacked points and half of the cross-entropy is theirs (Algorithm 2)."""
    (module, net), (x, y) = network("relu"), batch()
    ball = box_ball(eps=0.1) if norm == math.inf else pc.Ball(2, 0.1)
    points = ball.at(x).project(x + 0.05) if at else x
    monkeypatch.setattr("polycert.losses.per.attacked", lambda *_: points)
    total = 0.0
    for one, point, label in zip(x.numpy(), points.numpy(), y.tolist(), strict=True):
        slopes, offsets = script(arrays(module), reach := Reach(one, 0.1, norm), label)
        distances = [reach.distance(u, p, point) for u, p in zip(slopes, offsets, strict=True)]
        total += sum(max(0.0, 1 - d / 0.15) for d in sorted(distances)[:2])
    fit = (F.cross_entropy(module(x), y).item() + F.cross_entropy(module(points), y).item()) / 2
    expected = fit + 0.3 * total / len(x)
    loss = PER(method=method, alpha=0.15, gamma=0.3, terms=2, at=at)
    assert total > 0.1
    assert loss(net, x, y, ball).item() == pytest.approx(expected, rel=1e-6)


# worst cases


def interval_margins(layers: list[Any], reach: Reach, label: int) -> np.ndarray:
    low, high = reach.low, reach.high
    for k, layer in enumerate(layers):
        weight, bias = layer if k + 1 < len(layers) else margin_layer(layer, label)
        positive, negative = np.maximum(weight, 0), np.minimum(weight, 0)
        low, high = positive @ low + negative @ high + bias, positive @ high + negative @ low + bias
        if k + 1 < len(layers):
            low, high = np.maximum(low, 0), np.maximum(high, 0)
    return low


def crown_ibp_margins(layers: list[Any], reach: Reach, label: int) -> np.ndarray:
    low, high, lines = reach.low, reach.high, []
    for weight, bias in layers[:-1]:
        positive, negative = np.maximum(weight, 0), np.minimum(weight, 0)
        low, high = positive @ low + negative @ high + bias, positive @ high + negative @ low + bias
        lines.append(relu_lines(low, high))
        low, high = np.maximum(low, 0), np.maximum(high, 0)
    slope, offset = pulled(layers[:-1], lines, *margin_layer(layers[-1], label))
    return reach.minimum(slope) + offset


def crown_margins(layers: list[Any], reach: Reach, label: int) -> np.ndarray:
    slope, offset = crown_envelope(layers, reach, label)
    return reach.minimum(slope) + offset


def mixed_margins(layers: list[Any], reach: Reach, label: int) -> np.ndarray:
    return 0.3 * crown_ibp_margins(layers, reach, label) + 0.7 * interval_margins(layers, reach, label)


@pytest.mark.parametrize(
    ("loss", "kappa", "script"),
    [
        (KW(), 0.0, crown_margins),
        (IBP(kappa=0.4), 0.4, interval_margins),
        (IBP(kappa=0.0), 0.0, interval_margins),
        (CrownIBP(kappa=0.4, beta=0.3), 0.4, mixed_margins),
        (CrownIBP(kappa=0.0, beta=1.0), 0.0, crown_ibp_margins),
        (CrownIBP(kappa=0.0, beta=0.0), 0.0, interval_margins),
    ],
)
def test_the_worst_case_is_that_of_numpy(loss: Any, kappa: float, script: Any) -> None:
    (module, net), (x, y) = network("relu"), batch()
    pairs = zip(x.numpy(), y.tolist(), strict=True)
    margins = [script(arrays(module), Reach(one, 0.1, math.inf), label) for one, label in pairs]
    worst = np.mean([math.log(1 + np.exp(-m).sum()) for m in margins])
    expected = kappa * F.cross_entropy(module(x), y).item() + (1 - kappa) * worst
    assert loss(net, x, y, box_ball(eps=0.1)).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("mixture", "alone"), [(MTLIBP, IBP(kappa=0)), (MTLKW, KW())])
def test_the_mixture_with_the_adversarial_loss(mixture: Any, alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (module, net), (x, y), ball = network("relu"), batch(), box_ball()
    points = ball.at(x).project(x + 0.05)
    monkeypatch.setattr("polycert.losses.worst_case.attacked", lambda *_: points)
    expected = 0.7 * F.cross_entropy(module(points), y) + 0.3 * alone(net, x, y, ball)
    assert mixture(mix=0.3)(net, x, y, ball).item() == pytest.approx(expected.item(), rel=1e-12)


# MMR


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_mmr_distances_are_those_of_the_jacobian(norm: float) -> None:
    (module, net), (x, y) = network("relu"), batch()
    region, decision = boundaries(net.bind(), x, y, norm)
    dual = {1: math.inf, 2: 2, math.inf: 1}[norm]
    for k, one in enumerate(x):
        values = [module[:1](one), module[:3](one), module(one)]
        rows = [torch.autograd.functional.jacobian(module[:depth], one) for depth in (1, 3)]
        hidden = [v.abs() / torch.linalg.vector_norm(j, dual, dim=1) for v, j in zip(values, rows, strict=False)]
        assert torch.allclose(region[k], torch.cat(hidden), rtol=1e-9)
        jacobian = torch.autograd.functional.jacobian(module, one)
        others = [i for i in range(4) if i != int(y[k])]
        slope = jacobian[y[k]] - jacobian[others]
        margins = values[2][y[k]] - values[2][others]
        assert torch.allclose(decision[k], margins / torch.linalg.vector_norm(slope, dual, dim=1), rtol=1e-9)


def test_mmr_adds_means_of_the_smallest_hinges() -> None:
    (module, net), (x, y) = network("relu"), batch()
    loss = MMR(weight=0.4, gamma_boundary=0.5, gamma_decision=0.8, boundary_share=3 / 11, decisions=2)
    region, decision = boundaries(net.bind(), x, y, 2)
    first = (1 - region.sort(1).values[:, :3] / 0.5).clamp(min=0).mean(1)
    second = (1 - decision.sort(1).values[:, :2] / 0.8).clamp(min=0).mean(1)
    expected = F.cross_entropy(module(x), y) + 0.4 * (first + second).mean()
    assert loss(net, x, y, pc.Ball(2, 0.1)).item() == pytest.approx(expected.item(), rel=1e-9)


# attacks in training


@pytest.mark.parametrize("norm", [1.5, 2, math.inf])
def test_attacked_points_stay_in_the_set_and_depend_on_the_sample_alone(norm: float) -> None:
    from polycert.losses.loss import attacked

    (_, net), (x, y), ball = network("tanh"), batch(), box_ball(norm, 0.2)
    points = attacked(net.bind(), ball.at(x), y, keyed([5, 6, 7, 8, 9, 10]), 4)
    moved = torch.linalg.vector_norm((points - x), ord=norm, dim=1)
    assert float(moved.max()) <= 0.2 * (1 + 1e-9)
    assert 0 <= float(points.min()) <= float(points.max()) <= 1
    assert F.cross_entropy(net(points), y).item() > F.cross_entropy(net(x), y).item()
    alone = attacked(net.bind(), ball.at(x[[4, 1]]), y[[4, 1]], keyed([9, 6]), 4)
    assert torch.allclose(alone, points[[4, 1]], atol=1e-12)


@pytest.mark.parametrize("norm", [2, math.inf])
def test_the_attack_starts_at_random_points_and_takes_steps_of_a_fifth(
    norm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polycert.losses.loss import attacked

    (_, net), (x, y), ball, seen = network("relu"), batch(), box_ball(norm, 0.2), []

    def descend(graph: Any, region: Any, label: Tensor, start: Tensor, **settings: Any) -> Tensor:
        seen.append((start, settings))
        return start

    monkeypatch.setattr("polycert.losses.loss.pgd_attack", descend)
    for epoch in (0, 0, 1):
        attacked(net.bind(), ball.at(x), y, keyed([5, 6, 7, 8, 9, 10], epoch=epoch), 7)
    (first, settings), (again, _), (later, _) = seen
    assert settings == {"steps": 7, "step": 0.2, "fixed": True}
    assert torch.equal(first, again)
    away = torch.linalg.vector_norm(first - x, ord=norm, dim=1)
    assert 0.02 < float(away.min()) < float(away.max()) <= 0.2 * (1 + 1e-9)
    assert float((first - later).abs().amax(1).min()) > 1e-3


@pytest.mark.parametrize(
    "kind",
    [AT, partial(PER, at=True), partial(MMR, at=True), MTLIBP, MTLKW],
    ids=["at", "per", "mmr", "mtl-ibp", "mtl-kw"],
)
def test_a_loss_attacks_with_its_own_steps(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (_, net), (x, y), seen = network("relu"), batch(), []
    monkeypatch.setattr("polycert.losses.loss.pgd_attack", lambda *given, **settings: seen.append(settings) or given[3])
    kind(attack_steps=3, attack_step=0.7)(net, x, y, box_ball())
    assert [(each["steps"], each["step"]) for each in seen] == [(3, 0.7)]


def test_a_fixed_step_of_the_attack_is_so_long() -> None:
    from polycert.attacks.pgd import pgd_attack

    (_, net), (x, y) = network("relu"), batch()
    x = 0.3 + 0.4 * x  # away from the box
    moved = pgd_attack(net.bind(), box_ball(eps=0.1).at(x), y, x, steps=3, step=0.2, fixed=True)
    assert float((moved - x).abs().max()) == pytest.approx(0.06)


def test_adversarial_training_is_half_clean_half_attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    (module, net), (x, y), ball = network("relu"), batch(), box_ball()
    points = ball.at(x).project(x + 0.05)
    monkeypatch.setattr("polycert.losses.loss.attacked", lambda *_: points)
    expected = (F.cross_entropy(module(x), y) + F.cross_entropy(module(points), y)) / 2
    assert AT()(net, x, y, ball).item() == pytest.approx(expected.item(), rel=1e-12)


def test_mmr_with_attacks_moves_half_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    (_, net), (x, y), ball, draws = network("relu"), batch(), box_ball(), keyed([3, 1, 4, 15, 9, 2])
    monkeypatch.setattr("polycert.losses.mmr.attacked", lambda _, region, *__: region.project(region.x + 0.05))
    half = draws.choose(x, 3, "half").positions
    assert len(half) == 3
    mixed = x.clone()
    mixed[half] = ball.at(x[half]).project(x[half] + 0.05)
    values = {"gamma_boundary": 0.7, "gamma_decision": 0.9}
    expected = MMR(**values)(net, mixed, y, ball, draws)
    assert MMR(at=True, **values)(net, x, y, ball, draws).item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("name", ATTACKING)
def test_an_attack_inside_a_loss_leaves_gradients_alone(name: str) -> None:
    (module, net), (x, y) = network("relu"), batch()
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    LOSSES[name](net, x, y, box_ball())
    assert all(bool((parameter.grad == 1).all()) for parameter in module.parameters())


def test_attacks_and_certification_leave_gradients_alone() -> None:
    (module, net), (x, y) = network("relu"), batch()
    module.zero_grad(set_to_none=True)
    net(x).sum().backward()
    before = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    state = torch.random.get_rng_state()
    pc.attack(net, x, y, box_ball(), steps=5, restarts=2)
    pc.certify(net, x, y, box_ball())
    pc.largest_radius(net, x, y, upper=0.3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(p.grad, old) for p, old in zip(module.parameters(), before, strict=True))


@pytest.mark.parametrize("norm", [1, 1.5, 2, math.inf])
def test_an_attack_stays_in_its_set_and_finds_what_is_there(norm: float) -> None:
    (_, net), (x, _), eps = network("relu"), batch(), 0.8
    y = net(x).argmax(1)
    hits = pc.attack(net, x, y, box_ball(norm, eps), steps=40, restarts=3)
    moved = torch.linalg.vector_norm((hits.inputs - x).flatten(1), ord=norm, dim=1)
    assert float(moved.max()) <= eps * (1 + 1e-9)
    assert float(hits.inputs.min()) >= 0
    assert float(hits.inputs.max()) <= 1
    assert bool((hits.success == (hits.margin <= 0)).all())
    again = pc.attack(net, x[2:3], y[2:3], box_ball(norm, eps), steps=40, restarts=1)
    first = pc.attack(net, x, y, box_ball(norm, eps), steps=40, restarts=1)
    assert torch.allclose(again.margin, first.margin[2:3])


# draws


@pytest.mark.parametrize("name", LOSSES)
def test_the_mean_of_two_processes_is_the_loss_of_one(name: str) -> None:
    """Uneven shares, a sub-sample of the whole batch: means are weighted by true counts."""
    (_, net), (x, y), ball = network("relu"), batch(), box_ball()
    loss = LOSSES[name]
    if hasattr(loss, "subsample"):
        loss = type(loss)(**{**settings(loss), "subsample": 3})
    index = [31, 2, 77, 8, 50, 4]
    whole = loss(net, x, y, ball, keyed(index)).item()
    halves = [
        loss(net, x[part], y[part], ball, keyed([index[k] for k in part], index, 2)).item()
        for part in ([0, 1, 2, 3], [4, 5])
    ]
    assert sum(halves) / 2 == pytest.approx(whole, rel=1e-9)


def settings(loss: Any) -> dict[str, Any]:
    return {key: value for key, value in vars(loss).items() if not key.startswith("_") and key != "training"}


@pytest.mark.parametrize("keys", [True, False])
def test_the_subsample_is_uniform(keys: bool) -> None:
    """Each pair of 6 samples is equally likely: 15 pairs, 4500 draws, chi-square with 14 degrees of freedom."""
    from polycert.losses import TorchDraws

    x, counts = torch.zeros(6, 1), np.zeros((6, 6))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for epoch in range(4500):
            draws = keyed([10, 21, 3, 44, 5, 60], epoch=epoch) if keys else TorchDraws()
            one, two = sorted(draws.choose(x, 2, "subsample").positions.tolist())
            counts[one, two] += 1
    found = counts[np.triu_indices(6, 1)]
    assert ((found - 300) ** 2 / 300).sum() < 36.1  # passed with probability 0.999


def test_the_regulariser_sees_the_subsample_only() -> None:
    (_, net), (x, y), ball = network("relu"), batch(), box_ball()
    draws = keyed([3, 1, 4, 15, 9, 2])
    part = draws.choose(x, 2, "subsample").positions
    whole, own = PER(alpha=0.4, gamma=1.0, subsample=2), PER(alpha=0.4, gamma=1.0)
    term = own(net, x[part], y[part], ball) - Plain()(net, x[part], y[part], ball)
    expected = Plain()(net, x, y, ball) + term
    assert whole(net, x, y, ball, draws).item() == pytest.approx(expected.item(), rel=1e-9)


# terms and refusals


def test_extras_add_their_terms() -> None:
    (module, net), (x, y), ball = network("relu"), batch(), box_ball()
    weights = sum(layer.weight.abs().sum().item() for layer in module if isinstance(layer, nn.Linear))
    assert L1(0.5)(net, x, y, ball).item() == pytest.approx(0.5 * weights)
    lower, upper = (x - 0.07).clamp(min=0).detach(), (x + 0.07).clamp(max=1).detach()
    total = 0.0
    for layer in (module[0], module[2]):
        centre, half = layer((lower + upper) / 2), (upper - lower) / 2 @ layer.weight.abs().T
        total += (1 + (centre - half) * (centre + half)).tanh().sum().item()
        lower, upper = (centre - half).relu(), (centre + half).relu()
    assert Stability(0.5)(net, x, y, ball).item() == pytest.approx(-0.5 * total / len(x), rel=1e-6)
    both = Sum(Plain(), L1(0.5), Stability(0.5))(net, x, y, ball).item()
    assert both == pytest.approx(F.cross_entropy(module(x), y).item() + 0.5 * weights - 0.5 * total / len(x), rel=1e-6)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: PER(method="ibp"), "crown or forward"),
        (lambda: PER(alpha=0.0), "alpha"),
        (lambda: PER(gamma=-1.0), "gamma"),
        (lambda: PER(terms=0), "terms"),
        (lambda: PER(subsample=0), "subsample"),
        (lambda: AT(attack_steps=0), "attack_steps"),
        (lambda: AT(attack_step=0.0), "attack_step"),
        (lambda: KW(method="nothing"), "unknown method"),
        (lambda: KW(relaxation="best"), "one relaxation"),
        (lambda: PER(relaxation="best"), "one relaxation"),
        (lambda: IBP(kappa=1.5), "kappa"),
        (lambda: CrownIBP(beta=-0.1), "beta"),
        (lambda: MTLIBP(mix=2), "mix"),
        (lambda: MMR(boundary_share=0), "boundary_share"),
        (lambda: MMR(gamma_boundary=0), "gamma_boundary"),
        (lambda: L1(-1), "weight"),
        (lambda: Stability(1, method="nothing"), "unknown method"),
        (lambda: Sum(), "at least one"),
    ],
)
def test_senseless_settings_are_refused(make: Any, word: str) -> None:
    with pytest.raises(pc.PolycertError, match=word):
        make()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda module, net, x, y: (module, x, y), "capture the module"),
        (lambda module, net, x, y: (net, x[:, :3], y), "shape"),
        (lambda module, net, x, y: (net, x[:0], y[:0]), "at least one sample"),
        (lambda module, net, x, y: (net, x, y + 3), "labels must be in"),
        (lambda module, net, x, y: (net, x, y.double()), "integers"),
        (lambda module, net, x, y: (net, x, None), "labels are needed"),
        (lambda module, net, x, y: (net, x * math.nan, y), "NaN"),
    ],
)
def test_bad_samples_in_a_loop_of_one_s_own_are_refused(change: Any, word: str) -> None:
    given = change(*network("relu"), *batch())
    with pytest.raises(pc.PolycertError, match=word):
        Plain()(*given, box_ball())


def test_a_loop_of_one_s_own_may_give_arrays_of_any_float() -> None:
    (_, net), (x, y), ball = network("relu"), batch(), box_ball()
    expected = KW()(net, x.float().double(), y, ball).item()
    assert KW()(net, x.float().numpy(), y.numpy(), ball).item() == pytest.approx(expected, rel=1e-12)
