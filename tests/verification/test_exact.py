"""The exact certifier against enumeration of all activation patterns, and the parts that it is made of."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor, nn

import polycert as pc
from polycert.exact import Specification, decide
from polycert.forms import Dense
from polycert.graph import Graph, Node
from polycert.rules import Pieces
from polycert.rules.affine import MatMul
from polycert.rules.piecewise_linear import LeakyRelu
from polycert.sets.interval import Interval
from polycert.verification.beta_crown import (
    OFF,
    ON,
    DualObjective,
    DualPoint,
    Nodes,
    ascend,
    dual_point,
    multipliers,
    proved_bound,
)
from polycert.verification.branch_and_bound import BranchAndBound, score_candidates
from polycert.verification.budget import Budget
from polycert.verification.counterexample import CounterexampleCheck
from polycert.verification.pre_activation import refine, relax
from polycert.verification.programs import SOLVERS, solve_clauses
from polycert.verification.reduced_problem import LOCAL, Coefficients, Reduced, piecewise_linear, reduce
from polycert.verification.snapshot import NetworkSnapshot
from tests.helpers.cases import CASES, Case, ball, ready, seed_of
from tests.helpers.solvers import Piecewise, exact_values

F64 = torch.float64
PIECEWISE = [case for case in CASES if piecewise_linear(ready(case).net.bind())]
BOX = (0.0, 1.0)


def network(seed: int, hidden: tuple[int, ...], inputs: int, classes: int, dtype: torch.dtype) -> nn.Sequential:
    """A ReLU net with weights large enough for many unstable units."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = [inputs, *hidden, classes]
        layers = [[nn.Linear(a, b), nn.ReLU()] for a, b in itertools.pairwise(sizes)]
        module = nn.Sequential(*itertools.chain(*layers))[:-1].to(dtype)
        for parameter in module.parameters():
            parameter.data.mul_(3)
    return module


def sample(seed: int, inputs: int) -> Tensor:
    """One input in the box, of float32 numbers."""
    return torch.rand(1, inputs, generator=torch.Generator().manual_seed(seed)).to(F64)


def label_of(net: pc.Network, x: Tensor) -> int:
    with torch.no_grad():
        return int(net.bind(F64).forward(x).argmax())


def problem_of(
    net: pc.Network, x: Tensor, set_: pc.Ball, spec: Specification | None = None
) -> tuple[Reduced, Specification]:
    """The reduction of a network at one input."""
    graph, region = net.bind(F64), set_.at(x.to(F64))
    spec = spec or Specification.margins(label_of(net, x.to(F64)), graph.output_shape[0])
    intervals: dict[int, Interval] = {}
    for kind in (("ibp", "parallel"), ("crown", "parallel")):
        intervals = relax(graph, region, Dense(spec.rows.unsqueeze(0)), *kind, given=intervals).intervals
    with torch.no_grad():
        return reduce(graph, region, intervals, spec), spec


# --- never a wrong answer ------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    hidden=st.sampled_from([(3,), (6,), (3, 3), (4, 2), (2, 2, 2)]),
    inputs=st.integers(1, 4),
    classes=st.integers(2, 3),
    norm=st.sampled_from([1, math.inf]),
    factor=st.sampled_from([0.6, 0.95, 1 - 1e-5, 1 + 1e-5, 1.05]),
    dtype=st.sampled_from([torch.float32, F64]),
)
def test_agrees_with_the_enumeration_of_all_patterns(
    seed: int, hidden: tuple[int, ...], inputs: int, classes: int, norm: float, factor: float, dtype: torch.dtype
) -> None:
    module = network(seed, hidden, inputs, classes, dtype)
    net, x = pc.capture(module, (inputs,)), sample(seed, inputs)
    label = label_of(net, x)
    others = [k for k in range(classes) if k != label]
    radius = Piecewise(module).radius(x[0].numpy(), label, others, norm, BOX)
    eps = factor * radius if math.isfinite(radius) else 2.0
    region = pc.Ball(norm, eps, *BOX).at(x)
    found = decide(net, region, Specification.margins(label, classes), timeout=60)
    assert found.status == ("robust" if factor < 1 or math.isinf(radius) else "falsified")
    if found.status == "robust":
        assert found.proof == "rigorous"
    else:
        assert_counterexample(module, x, label, norm, eps, found.counterexample.input)


def assert_counterexample(module: nn.Sequential, x: Tensor, label: int, norm: float, eps: float, at: Tensor) -> None:
    """Inside ball and box and of another class, in rational arithmetic alone."""
    point, centre = ([Fraction(v) for v in values.flatten().tolist()] for values in (at, x))
    moved = [abs(a - b) for a, b in zip(point, centre, strict=True)]
    assert all(0 <= a <= 1 for a in point)
    assert (max(moved) if math.isinf(norm) else sum(moved)) <= Fraction(eps)
    outputs = exact_values(module, point)
    rest = max(v for k, v in enumerate(outputs) if k != label)
    assert float(outputs[label] - rest) <= 1e-12


def leaky_as_relu(module: nn.Sequential, leak: float) -> nn.Sequential:
    """The same function with two ReLUs a unit: leaky(z) = relu(z) - leak relu(-z)."""
    linear = [layer for layer in module if isinstance(layer, nn.Linear)]
    layers: list[nn.Module] = []
    for k, layer in enumerate(linear):
        weight, bias = layer.weight.data, layer.bias.data
        if k:
            weight = torch.cat([weight, -leak * weight], 1)
        if k + 1 < len(linear):
            weight, bias = torch.cat([weight, -weight]), torch.cat([bias, -bias])
        copy = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
        copy.weight.data, copy.bias.data = weight, bias
        layers += [copy, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("leak", [0.3, -0.5, 1.6])
@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_leaky_units_of_any_leak(leak: float, factor: float) -> None:
    for seed in range(4):
        base = network(seed, (3,), 3, 3, F64)
        leaky = nn.Sequential(*(nn.LeakyReLU(leak) if isinstance(m, nn.ReLU) else m for m in base))
        net, x = pc.capture(leaky, (3,)), sample(seed, 3)
        label = label_of(net, x)
        radius = Piecewise(leaky_as_relu(base, leak)).radius(
            x[0].numpy(), label, [k for k in range(3) if k != label], math.inf, BOX
        )
        eps = factor * radius if math.isfinite(radius) else 2.0
        found = decide(net, pc.Ball(math.inf, eps, *BOX).at(x), Specification.margins(label, 3), timeout=60)
        assert found.status == ("robust" if factor < 1 or math.isinf(radius) else "falsified")


def reaches(module: nn.Sequential, x: np.ndarray, eps: float, rows: np.ndarray, limits: np.ndarray) -> float:
    """The least t for which some point of the l_inf ball in the box has rows . z <= limits + t, by all patterns."""
    layers = [
        (m.weight.detach().double().numpy(), m.bias.detach().double().numpy()) for m in module if hasattr(m, "bias")
    ]
    units = sum(len(bias) for _, bias in layers[:-1])
    bounds = [*((max(0, v - eps), min(1, v + eps)) for v in x), (None, None)]
    best = math.inf
    for pattern in itertools.product((0.0, 1.0), repeat=units):
        slope, offset, used, held = np.eye(len(x)), np.zeros(len(x)), 0, []
        for k, (weight, bias) in enumerate(layers):
            slope, offset = weight @ slope, weight @ offset + bias
            if k + 1 < len(layers):
                on = np.array(pattern[used : used + len(bias)])
                used += len(bias)
                side = np.where(on == 1, -1.0, 1.0)
                held.append((side[:, None] * slope, -side * offset))
                slope, offset = on[:, None] * slope, on * offset
        above = np.vstack([np.c_[a, np.zeros(len(a))] for a, _ in held] + [np.c_[rows @ slope, -np.ones(len(rows))]])
        right = np.concatenate([b for _, b in held] + [limits - rows @ offset])
        found = linprog([*np.zeros(len(x)), 1.0], A_ub=above, b_ub=right, bounds=bounds)
        best = min(best, float(found.fun)) if found.status == 0 else best
    return best


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), hidden=st.sampled_from([(4,), (3, 2)]), close=st.sampled_from([1e-4, 0.1]))
def test_unsafe_sets_of_several_rows(seed: int, hidden: tuple[int, ...], close: float) -> None:
    """Conjunctions: two unsafe sets, each of two rows, moved so close that they are just reached or just missed."""
    module, x = network(seed, hidden, 3, 3, F64), sample(seed, 3)
    rng = np.random.default_rng(seed)
    sets = [(rng.normal(size=(2, 3)), np.zeros(2)) for _ in range(2)]
    away = [reaches(module, x[0].numpy(), 0.2, *one) for one in sets]
    region = pc.Ball(math.inf, 0.2, *BOX).at(x)
    for shift, status in ((-close, "robust"), (close, "falsified")):
        unsafe = [(rows, limits + t + shift) for (rows, limits), t in zip(sets, away, strict=True)]
        found = decide(pc.capture(module, (3,)), region, Specification.never(unsafe), timeout=60)
        assert found.status == status
        if found.counterexample is not None:
            z = module(found.counterexample.input[None])[0].detach().numpy()
            assert any((rows @ z <= limits + 1e-12).all() for rows, limits in unsafe)


@pytest.mark.parametrize("norm", [1.5, 2, 3])
def test_balls_against_a_fine_grid(norm: float) -> None:
    """Two inputs: with the radius just below and just above what the grid says, the verdicts are the two answers."""
    line = np.linspace(0, 1, 501)
    grid = torch.from_numpy(np.stack(np.meshgrid(line, line), -1).reshape(-1, 2))
    searched = 0
    for seed in range(30):
        module = network(seed, (5, 4) if seed % 2 else (8,), 2, 3, F64)
        net, x = pc.capture(module, (2,)), sample(seed, 2)
        spec = Specification.margins(label_of(net, x), 3)
        with torch.no_grad():
            margin = spec.worst(module(grid))
        if bool((margin > 0).all()):
            continue
        far = float(((grid - x).abs() ** norm).sum(1)[margin <= 0].min()) ** (1 / norm)
        # Between the points of the grid a margin may fall below 0 by a step of it earlier.
        for eps, status in ((far - 2 * line[1], "robust"), (far + 1e-9, "falsified")):
            found = decide(net, pc.Ball(norm, max(eps, 0.0), *BOX).at(x), spec, timeout=60)
            assert found.status == status, seed
            searched += found.stage in ("slopes", "branch")
            if found.counterexample is not None:
                moved = np.abs((found.counterexample.input - x[0]).numpy())
                assert (moved**norm).sum() <= eps**norm
    assert searched >= 5


def test_a_tie_is_falsified_and_a_hair_above_it_is_robust() -> None:
    """`z_0 - z_1 = relu(x) + gap` at least gap, reached at x <= 0: exact in every type."""
    for gap, status in ((0.0, "falsified"), (2.0**-40, "robust"), (-(2.0**-40), "falsified")):
        module = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).to(F64)
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), ([[1.0]], [0.0], [[1.0], [0.0]], [gap, 0.0]), strict=True):
                parameter.copy_(torch.tensor(value, dtype=F64))
        region = pc.Ball(math.inf, 1.0).at(torch.tensor([[0.25]], dtype=F64))
        found = decide(pc.capture(module, (1,)), region, Specification.margins(0, 2), timeout=10)
        assert found.status == status


def test_smooth_activations_are_unknown_where_bounds_fail() -> None:
    module = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2)).to(F64)
    net, x = pc.capture(module, (2,)), sample(0, 2)
    spec = Specification.margins(label_of(net, x), 2)
    assert decide(net, pc.Ball(eps=1e-6).at(x), spec, timeout=5).status == "robust"
    wide = decide(net, pc.Ball(eps=50.0).at(x), spec, timeout=5)
    assert wide.status in ("unknown", "falsified")


# --- the reduction -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", PIECEWISE, ids=str)
def test_a_reduction_is_the_network(case: Case) -> None:
    """Rows and units at random points of the set are the network's, within the errors that the reduction carries."""
    _, net, x, _ = ready(case, torch.float32)
    set_ = ball(math.inf, eps=0.3)
    for k in range(len(x)):
        problem, spec = problem_of(net, x[k : k + 1], set_)
        points = set_.at(x[k : k + 1].to(F64)).sample(20, torch.Generator().manual_seed(0))[:, 0]
        with torch.no_grad():
            outputs = net.bind(F64).forward(points)
        expected = outputs @ spec.rows.T
        z, rows = problem.values(points.flatten(1))
        slack = problem.slack[1] + z.relu().abs() @ problem.rows.through.abs().T * 1e-13
        assert bool(((rows - expected).abs() <= slack + 1e-12 * expected.abs().amax()).all())
        assert bool((z >= problem.lower - 1e-12).all() and (z <= problem.upper + 1e-12).all())
        assert float(problem.slack[1].max()) < 1e-9


@pytest.mark.parametrize("case", PIECEWISE, ids=str)
@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_any_multipliers_give_a_valid_bound(case: Case, norm: float) -> None:
    """Random multipliers, slopes and splits: no point of the node is below the bound."""
    _, net, x, _ = ready(case)
    set_ = ball(norm, eps={1: 1.0, 2: 0.7, math.inf: 0.3}[norm])
    problem, spec = problem_of(net, x[:1], set_)
    generator = torch.Generator().manual_seed(seed_of(case))
    points = set_.at(x[:1]).sample(200, generator)[:, 0].flatten(1)
    z, rows = problem.values(points)
    nodes = 30
    split = torch.randint(-1, 2, (nodes, problem.count), generator=generator, dtype=torch.int8)
    split = split * (torch.rand(split.shape, generator=generator) < 0.3)
    weight = torch.rand(nodes, len(spec.rows), generator=generator, dtype=F64)
    alpha, beta = (torch.rand(nodes, problem.count, generator=generator, dtype=F64) for _ in range(2))
    for nu in (
        multipliers(problem, split, alpha, beta, DualObjective.of(problem, weight)).nu,
        torch.randn(alpha.shape, generator=generator, dtype=F64),
    ):
        bound = proved_bound(problem, split, nu, weight)
        fits = ((z[None] * split[:, None]) >= 0).all(2)  # [nodes, points]
        values = weight @ rows.T
        assert bool((values >= bound[:, None])[fits].all())


@pytest.mark.parametrize("size", [1.0, 1e-30])
def test_a_dual_bound_covers_what_underflow_takes_from_coefficients(size: float) -> None:
    """The product of multiplier and weight has few digits left, and the input is huge; against fractions."""
    x, split = 1e300, torch.tensor([[ON]], dtype=torch.int8)
    weight, beta = torch.full((1, 1), size, dtype=F64), torch.zeros(1, 1, dtype=F64)
    for seed in range(30):
        module = network(seed, (1,), 1, 2, F64)
        gain, fall = (1 + torch.rand(2, generator=torch.Generator().manual_seed(seed), dtype=F64)).tolist()
        with torch.no_grad():
            module[0].weight.fill_(gain * 1e-290)
            module[0].bias.copy_(-module[0].weight[0] * x)
            module[2].weight.copy_(torch.tensor([[-fall], [0.0]], dtype=F64))
            module[2].bias.zero_()
        net, point = pc.capture(module, (1,)), torch.tensor([[x]], dtype=F64)
        problem, _ = problem_of(net, point, pc.Ball(math.inf, x / 2), Specification.margins(0, 2))
        at = multipliers(problem, split, beta, beta, DualObjective.of(problem, weight))
        bound = Fraction(float(proved_bound(problem, split, at.nu, weight)))
        slope, shift, out = (
            Fraction(float(number.detach())) for number in (module[0].weight, module[0].bias, module[2].weight[0])
        )
        assert bound <= Fraction(size) * out * (slope * (Fraction(x) + Fraction(x / 2)) + shift)


def test_a_leaf_that_comes_too_late_stays_open() -> None:
    """Many leaves may be waiting when the time is up: none of them is settled any more."""
    net, x = pc.capture(network(0, (), 2, 2, F64), (2,)), sample(0, 2)
    problem, spec = problem_of(net, x, pc.Ball(eps=1e-6))
    frozen = NetworkSnapshot.of(net)
    check = CounterexampleCheck(frozen, pc.Ball(eps=1e-6).at(x), spec)
    for seconds, left in ((60.0, set()), (0.0, {0})):
        search = BranchAndBound(problem, check, Budget(60), seconds)
        search._leaf(Nodes.roots(problem))
        assert search.stuck == left


@pytest.mark.parametrize("case", PIECEWISE, ids=str)
def test_refined_units_hold_their_values(case: Case) -> None:
    """Tighter intervals still hold every unit, and the rows are the same functions with fewer units."""
    _, net, x, _ = ready(case)
    set_ = ball(math.inf, eps=0.4)
    problem, _ = problem_of(net, x[:1], set_)
    with torch.no_grad():
        refined = refine(problem, Budget(60))
    points = set_.at(x[:1]).sample(300, torch.Generator().manual_seed(2))[:, 0].flatten(1)
    rows, (z, found) = problem.values(points)[1], refined.values(points)
    assert refined.count <= problem.count
    assert bool((z >= refined.lower).all() and (z <= refined.upper).all())
    assert found == pytest.approx(rows.numpy(), abs=1e-11)
    assert bool((refined.rows.error >= problem.rows.error).all())


def test_refining_makes_units_stable() -> None:
    counts = [(p.count, refine(p, Budget(60)).count) for p in (hard_problem(seed, (6, 6, 4)) for seed in range(8))]
    assert sum(after for _, after in counts) < sum(before for before, _ in counts)


@dataclass(frozen=True, eq=False)
class Clip(LeakyRelu):
    """`min(max(z, -0.5), 0.7)`: two bends, neither at 0."""

    @property
    def pieces(self) -> Pieces:
        return Pieces(-0.5, (0.0, 1.0, 0.0), (-0.5, 0.7))

    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0].clamp(-0.5, 0.7)


def test_units_with_several_bends_are_reduced() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(*shape, generator=generator, dtype=F64) for shape in ((6, 3), (2, 6)))
    nodes = (
        Node("input", None, (), (3,)),
        Node("first", MatMul(first, None, (3,), (6,)), (0,), (6,)),
        Node("clip", Clip((6,)), (1,), (6,)),
        Node("second", MatMul(second, None, (6,), (2,)), (2,), (2,)),
    )
    graph, region = Graph(nodes, F64, torch.device("cpu")), pc.Ball(math.inf, 0.6).at(torch.zeros(1, 3, dtype=F64))
    reach = 0.6 * first.abs().sum(1)[None]
    spec = Specification.margins(0, 2)
    problem = reduce(graph, region, {1: Interval(-reach, reach)}, spec)
    assert problem.count > 6  # both bends of some units
    points = region.sample(100, generator)[:, 0]
    expected = graph.forward(points) @ spec.rows.T
    assert problem.values(points)[1] == pytest.approx(expected.numpy(), abs=1e-12)


# --- optimised slopes ----------------------------------------------------------------------------------------------


def hard_problem(seed: int, hidden: tuple[int, ...], norm: float = math.inf) -> Reduced:
    module = network(seed, hidden, 5, 3, F64)
    return problem_of(pc.capture(module, (5,)), sample(seed, 5), pc.Ball(norm, 0.4, *BOX))[0]


def triangle_program(problem: Reduced, row: int) -> float:
    """The least value of a row over the triangles around all units, by a linear program."""
    units = problem.count
    a, b, c = (part.numpy() for part in problem.units[:3])
    low, high = problem.lower.numpy(), problem.upper.numpy()
    eye, chord = np.eye(units), (high / (high - low))[:, None]
    above = np.block([[a, b - eye], [-chord * a, eye - chord * b]])
    right = np.concatenate([-c, chord[:, 0] * (c - low)])
    lower, upper = (end.flatten().numpy() for end in problem.region.box)
    cost = np.concatenate([problem.rows.direct[row].numpy(), problem.rows.through[row].numpy()])
    found = linprog(cost, A_ub=above, b_ub=right, bounds=[*zip(lower, upper, strict=True), *[(0, None)] * units])
    assert found.status == 0
    return float(found.fun) + float(problem.rows.offset[row])


@pytest.mark.parametrize("hidden", [(8,), (6, 5), (4, 4, 3)])
def test_ascent_reaches_the_linear_program(hidden: tuple[int, ...]) -> None:
    problem = hard_problem(3, hidden)
    roots = Nodes.roots(problem)
    first, last = (ascend(problem, roots, steps=steps).nodes.bound for steps in (1, 300))
    for row in range(2):
        best = triangle_program(problem, row)
        assert float(last[row]) <= best + 1e-9
        assert best - float(last[row]) <= 0.05 * (best - float(first[row])) + 1e-6


@pytest.mark.parametrize("hidden", [(30,), (20, 16), (16, 16, 16)])
@pytest.mark.parametrize("norm", [2, math.inf])
def test_a_trial_bounds_the_halves_as_if_they_were_nodes(hidden: tuple[int, ...], norm: float) -> None:
    problem = hard_problem(5, hidden, norm)
    assert problem.count >= 6
    assert len(problem.layers) == len(hidden)
    generator = torch.Generator().manual_seed(1)
    nodes = ascend(problem, Nodes.roots(problem), steps=4).nodes
    for _ in range(2):  # the second time with units held and paid for
        free = [(row == 0).nonzero().flatten() for row in nodes.split]
        unit = torch.stack([row[torch.randperm(len(row), generator=generator)[:3]] for row in free])
        tried = score_candidates(problem, nodes, unit)
        assert len(tried) == 2 * unit.numel()
        plain = ascend(problem, tried, steps=1).nodes
        torch.testing.assert_close(tried.bound, plain.bound)
        for side, half in zip((ON, OFF), tried.split.chunk(2), strict=True):
            assert bool((half.gather(1, unit.reshape(-1, 1)) == side).all())
        nodes = ascend(problem, tried[torch.arange(2) * unit.numel()], steps=4).nodes


@pytest.mark.parametrize("by_rows", [True, False])
def test_local_coefficients_multiply_like_the_matrix(by_rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    convolutions = (nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 3, stride=2), nn.ReLU())
    module = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(108, 9), nn.ReLU(), nn.Linear(9, 3)).double()
    net, x = pc.capture(module, (1, 16, 16)), torch.rand(1, 1, 16, 16, dtype=F64)
    problem, _ = problem_of(net, x, pc.Ball(math.inf, 0.05))
    assert len(problem.layers) == 3
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: by_rows)
    found = Coefficients.of(problem.units.direct, problem.layers)
    dense = problem.units.direct[problem.layers[2]]
    assert len(found.rest) == (len(dense) if by_rows else problem.count)
    assert float((dense != 0).double().mean()) > LOCAL
    weights, inputs = torch.randn(7, problem.count, dtype=F64), torch.rand(7, 256, dtype=F64)
    torch.testing.assert_close(found.back(weights), weights @ problem.units.direct)
    torch.testing.assert_close(found.at(inputs), inputs @ problem.units.direct.T)


@pytest.mark.parametrize("hidden", [(8,), (6, 5), (4, 4, 3)])
@pytest.mark.parametrize("norm", [2, math.inf])
def test_derivatives_are_those_of_the_bound(hidden: tuple[int, ...], norm: float) -> None:
    problem = hard_problem(5, hidden, norm)
    generator = torch.Generator().manual_seed(1)
    count = problem.count
    split = torch.randint(-1, 2, (6, count), generator=generator, dtype=torch.int8)
    weight = torch.rand(6, 2, generator=generator, dtype=F64)
    alpha, beta = (torch.rand(6, count, generator=generator, dtype=F64) for _ in range(2))

    def at(alpha: Tensor, beta: Tensor, weight: Tensor) -> DualPoint:
        return dual_point(problem, split, alpha, beta, DualObjective.of(problem, weight))

    here = at(alpha, beta, weight)
    derivatives = {"alpha": here.alpha, "beta": here.beta, "weight": here.by_rows(problem)}
    step = 1e-7
    for name, part in (("alpha", alpha), ("beta", beta), ("weight", weight)):
        for entry in range(part.shape[1]):
            there = part.clone()
            there[:, entry] += step
            moved = {"alpha": alpha, "beta": beta, "weight": weight} | {name: there}
            slope = (at(**moved).value - here.value) / step
            # At a kink the two one-sided slopes differ; elsewhere they agree.
            there[:, entry] -= 2 * step
            back = (here.value - at(**moved).value) / step
            smooth = (slope - back).abs() < 1e-4
            got = derivatives[name][:, entry]
            assert bool(((got - slope).abs()[smooth] < 1e-4).all()), name
            assert int(smooth.sum()) >= 3


@pytest.mark.parametrize("hidden", [(8,), (4, 4, 3)])
def test_gaps_add_up_to_what_a_bound_misses(hidden: tuple[int, ...]) -> None:
    problem = hard_problem(7, hidden)
    found = ascend(problem, Nodes.roots(problem), steps=1)
    true = (problem.values(found.inputs)[1] * found.nodes.weight).sum(1)
    assert bool((found.gaps >= -1e-9).all())
    assert found.gaps.sum(1) == pytest.approx((true - found.nodes.bound).numpy(), abs=1e-9)


# --- the mixed-integer program -------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["highs", "scip"])
@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_the_mixed_integer_program_decides_alone(solver: str, norm: float) -> None:
    """The last stage on the whole problem, against the search before it."""
    if solver == "scip":
        pytest.importorskip("pyscipopt")
    met = set()
    for seed in range(6):
        module, x = network(seed, (5, 3), 3, 3, F64), sample(seed, 3)
        net = pc.capture(module, (3,))
        for eps in (0.1, 0.3, 0.6):
            region = pc.Ball(norm, eps, *BOX).at(x)
            problem, spec = problem_of(net, x, pc.Ball(norm, eps, *BOX))
            replay = CounterexampleCheck(NetworkSnapshot.of(net), region, spec)
            clauses = torch.arange(spec.clauses)
            found = solve_clauses(problem, clauses, replay, Budget(60), SOLVERS[solver])
            expected = decide(net, region, spec, timeout=60)
            assert found.status == {"robust": "unknown"}.get(expected.status, expected.status)
            assert (found.proof == "solver") == (found.status == "unknown")  # its word, and no proof
            met.add(found.status)
    assert met == {"unknown", "falsified"}


# --- counterexamples -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [1, 1.5, 2, 3, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_points_are_moved_into_the_exact_set(norm: float, dtype: torch.dtype) -> None:
    module = network(0, (3,), 6, 2, dtype)
    x = torch.rand(1, 6, generator=torch.Generator().manual_seed(0)).to(F64)
    x[0, 0], x[0, 1] = 0.0, 1.0
    eps = 0.1
    region = pc.Ball(norm, eps, *BOX).at(x)
    replay = CounterexampleCheck(NetworkSnapshot.of(pc.capture(module, (6,))), region, Specification.margins(0, 2))
    far = x + torch.randn(200, 6, generator=torch.Generator().manual_seed(1), dtype=F64)
    points = replay.inward(far, dtype)
    assert bool((points.to(dtype).to(F64) == points).all())
    for point in points:
        moved = [abs(Fraction(a) - Fraction(b)) for a, b in zip(point.tolist(), x[0].tolist(), strict=True)]
        assert all(0 <= a <= 1 for a in point.tolist())
        if math.isinf(norm):
            assert max(moved) <= Fraction(eps)
        elif norm != 1.5:
            assert sum(m ** int(norm) for m in moved) <= Fraction(eps) ** int(norm)
        assert replay.inside(point)
    size = (points - x).abs()
    reached = size.amax(1) if math.isinf(norm) else (size**norm).sum(1) ** (1 / norm)
    assert float(reached.min()) > 0.9 * eps  # moved to the border, not away from it
    assert not replay.inside(far[0])
