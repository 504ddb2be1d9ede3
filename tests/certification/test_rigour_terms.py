"""The error terms one by one: the assumptions about the arithmetic, underflow, and what sends a pass to float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

import polycert as pc
from polycert.bounding.backward import LOWER, Pass
from polycert.bounding.methods import error_model, get_method, longest_sum, passes
from polycert.certification.certify import SECOND_LOOK, Certifier, verdict_of
from polycert.certification.envelope import Envelope
from polycert.exact import Specification
from polycert.forms import Dense
from polycert.graph import Graph
from polycert.rules.affine import MatMul
from polycert.runtime.execution import full_precision, plain_products
from polycert.sets.ball import Region
from polycert.sets.interval import LIBRARY_ULPS, Interval, Rounding
from polycert.verification.beta_crown import OFF, ON, DualObjective, multipliers, proved_bound
from polycert.verification.journal import JournalEntry
from polycert.verification.reduced_problem import reduce
from tests.helpers.solvers import exact_values

F32, F64 = torch.float32, torch.float64
METHODS = ("ibp", "forward", "crown", "crown-ibp", "alpha-crown")
CPU = torch.device("cpu")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def wild(*shape: int, seed: int) -> Tensor:
    """Numbers of both signs over six orders of magnitude."""
    draw = generator(seed)
    signs = torch.randint(0, 2, shape, generator=draw) * 2 - 1
    return signs * 10 ** (torch.rand(shape, generator=draw) * 6 - 3)


# --- assumptions ---------------------------------------------------------------------------------------------------

SUMS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...], int]] = {
    "sum": (lambda a, b: (a * b).sum(-1), (64, 999), (64, 999), 999),
    "linear": (F.linear, (33, 700), (50, 700), 700),
    "one row": (F.linear, (1, 3000), (7, 3000), 3000),
    "batched": (lambda a, b: a.unsqueeze(1) @ b.transpose(1, 2), (9, 400), (9, 30, 400), 400),
    "convolution": (lambda a, b: F.conv2d(a, b, padding=1), (8, 64, 16, 16), (64, 64, 3, 3), 576),
    "one image": (lambda a, b: F.conv2d(a, b, padding=1), (1, 64, 32, 32), (64, 64, 3, 3), 576),
    "strided": (lambda a, b: F.conv2d(a, b, stride=2), (4, 16, 20, 20), (32, 16, 4, 4), 256),
    "transposed": (lambda a, b: F.conv_transpose2d(a, b), (4, 32, 10, 10), (32, 16, 3, 3), 288),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_are_as_accurate_as_assumed(name: str) -> None:
    """`gamma(n)` times the sizes of what is added, without the room that a pass takes for itself."""
    compute, first, second, terms = SUMS[name]
    a, b = wild(*first, seed=1), wild(*second, seed=2)
    with plain_products(CPU):
        found = compute(a, b).double()
    exact, size = compute(a.double(), b.double()), compute(a.double().abs(), b.double().abs())
    unit = 2.0**-24
    assert bool(((found - exact).abs() <= terms * unit / (1 - terms * unit) * size).all())


@pytest.mark.parametrize("dtype", [F32, F64])
def test_gamma_is_that_of_the_sum_and_of_the_pass(dtype: torch.dtype) -> None:
    unit = Fraction(torch.finfo(dtype).eps) / 2
    for depth in (0, 24, 400):
        rounding = Rounding(dtype, depth)
        for terms in (0, 1, 10, 10_000):
            product = (terms + depth) * unit
            assert Fraction(rounding.gamma(terms)) >= product / (1 - product)
            assert rounding.usable(terms) == (product < Fraction(1, 100))


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any], tuple[float, float], bool]] = {
    "erf": (torch.erf, mpmath.erf, (-8, 1), True),
    "erfc": (torch.erfc, mpmath.erfc, (-8, 0.9), True),
    "sigmoid": (torch.sigmoid, lambda z: 1 / (1 + mpmath.exp(-z)), (-8, 1.9), True),
    "expm1": (torch.expm1, mpmath.expm1, (-8, 1.9), True),
    "cosh": (torch.cosh, mpmath.cosh, (-8, 1.6), True),
    "log1p": (torch.log1p, mpmath.log1p, (-30, 1), False),
    "log": (torch.log, mpmath.log, (-30, 30), False),
    "sqrt": (torch.sqrt, mpmath.sqrt, (-30, 30), False),
    "rsqrt": (torch.rsqrt, lambda z: 1 / mpmath.sqrt(z), (-30, 30), False),
}


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_other_library_functions_are_as_accurate_as_assumed(name: str, dtype: torch.dtype) -> None:
    """With vector instructions and without, as far as results are normal numbers."""
    ours, exact, (low, high), both = FUNCTIONS[name]
    points = 10 ** (torch.rand(300, dtype=F64, generator=generator()) * (high - low) + low)
    points = (torch.cat([points, -points]) if both else points).to(dtype)
    kind = np.float32 if dtype == F32 else np.float64
    for values in (ours(points), torch.stack([ours(point) for point in points])):
        with mpmath.workdps(40):
            for point, got in zip(points.tolist(), values.tolist(), strict=True):
                truth = exact(mpmath.mpf(point))
                if abs(truth) >= torch.finfo(dtype).tiny:
                    assert abs(mpmath.mpf(got) - truth) <= LIBRARY_ULPS * float(np.spacing(kind(abs(got))))


# --- what sends a pass to float64 ----------------------------------------------------------------------------------


def test_a_type_that_cannot_carry_a_proof_is_left() -> None:
    """Processors of other kinds, and sums so long that their term is not small."""
    assert full_precision(CPU)
    assert not full_precision(torch.device("cuda"))
    net = pc.capture(nn.Sequential(nn.Flatten(), nn.Linear(170_000, 2)), (170_000,))
    assert not error_model(net.bind()).usable(longest_sum(net.bind()))
    found = pc.certify(net, torch.zeros(1, 170_000), None, pc.Ball(math.inf, 0.0))
    assert found.dtype == ("float64",)


@pytest.mark.parametrize("place", ["matmul", "conv"])
def test_lowered_precision_of_the_library_is_not_trusted(place: str) -> None:
    switch = getattr(torch.backends.mkldnn, place, None)
    if not hasattr(switch, "fp32_precision"):
        pytest.skip("this torch has no such switch")
    before = switch.fp32_precision
    switch.fp32_precision = "bf16"
    try:
        assert not full_precision(CPU)
    finally:
        switch.fp32_precision = before


def test_autocast_is_switched_off() -> None:
    """Inside of it, products are in bfloat16; a rigorous call gives what it gives outside."""
    net, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), torch.rand(4, 8, generator=generator())
    with torch.no_grad():
        for k, values in enumerate(net.parameters()):
            values.copy_(torch.randn(values.shape, generator=generator(k)))
    label, set_ = torch.zeros(4, dtype=torch.long), pc.Ball(math.inf, 0.01)
    network = pc.capture(net, (8,))

    def answers() -> tuple[Tensor, ...]:
        certs = pc.certify(network, x, label, set_)
        radii = pc.largest_radius(network, x, label)
        low, high = pc.bounds(network, x, set_, rigorous=True)
        return certs.margin, certs.radius, radii.radius, low.detach(), high.detach()

    outside = answers()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = answers()
    for one, other in zip(outside, inside, strict=True):
        assert torch.equal(one, other)


def test_a_second_look_is_for_what_rounding_or_overflow_may_have_cost() -> None:
    """A sample whose rows would all be proved with so many times their slack back."""
    assert SECOND_LOOK == 5  # as the documentation says
    region = pc.Ball(eps=0.1).at(torch.zeros(5, 1))
    slack = torch.full((5, 2), 1e-3)
    near, far = -0.99 * SECOND_LOOK * 1e-3, -1.01 * SECOND_LOOK * 1e-3
    offset = torch.tensor([[near, 1.0], [far, 1.0], [near, far], [math.nan, near], [math.inf, far]])
    env = Envelope(torch.zeros(5, 2, 1), offset, torch.zeros(5, 2, dtype=torch.long), region, slack, Rounding(F32, 8))
    assert verdict_of(env).inconclusive.tolist() == [True, False, False, True, False]
    assert not bool(verdict_of(env).certified.any())


def shallow() -> tuple[pc.Network, Tensor]:
    """A network whose margins are small beside what its layers add up, and samples."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        module = nn.Sequential(nn.Linear(300, 600), nn.ReLU(), nn.Linear(600, 4))
        return pc.capture(module, (300,)), torch.rand(60, 300)


def test_partial_radii_lose_next_to_nothing_to_rounding() -> None:
    net, x = shallow()
    set_ = pc.Ball(math.inf, 0.01, 0.0, 1.0)
    fast = pc.certify(net, x, None, set_, rigorous=False)
    partial = (fast.radius > 0) & ~fast.certified
    assert int(partial.sum()) > 10
    once, _ = Certifier(net, "crown", "parallel", rigorous=True).decide(set_.at(x), fast.label)
    before, after = (
        1 - (radius / fast.radius)[partial] for radius in (once.radius, pc.certify(net, x, None, set_).radius)
    )
    assert float(before.max()) > 0.02  # in float32 alone
    assert float(after.max()) < 0.01
    assert float(after.median()) < 0.001


@pytest.mark.parametrize("held", [True, False])
def test_bounds_in_float32_are_used_only_for_samples_that_it_holds(held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = shallow()
    runs: list[Pass] = []
    made = Certifier.passes

    def noted(self: Certifier, graph: Graph, region: Region) -> list[Pass]:
        runs.extend(found := made(self, graph, region))
        return found

    monkeypatch.setattr(Certifier, "passes", noted)
    pc.certify(net, x.double() if held else x.double() + 1e-12, None, pc.Ball(math.inf, 0.01))
    assert {run.region.x.dtype for run in runs} == {F32, torch.float64}
    for run in runs:
        assert bool(run.given) == (held and run.region.x.dtype == torch.float64)


# --- the steps of a backward pass ----------------------------------------------------------------------------------


def test_the_slack_of_a_pass_has_a_term_for_every_step() -> None:
    """Rows over two layers and a ReLU: the sum of the terms, computed by hand, and hardly more."""
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    graph, x = pc.capture(module, (3,)).bind(), torch.rand(1, 3, generator=generator())
    rows = torch.tensor([[0.7, -1.3], [0.4, 0.9]])
    with torch.no_grad():
        for k, values in enumerate(module.parameters()):
            values.copy_(torch.randn(values.shape, generator=generator(k)))
        rounding = error_model(graph)
        (run,) = passes(graph, pc.Ball(math.inf, 0.5).at(x), "crown", "parallel", rounding)
        found = get_method("crown").final(run, Dense(rows.unsqueeze(0)), LOWER).slack
        (index,) = graph.activations
        given, lines = run.interval(graph.nodes[index].inputs[0]), run.lines(index)
    assert found is not None
    assert lines.error is not None
    assert float(lines.upper_offset.max()) > 0
    (w1, b1, w2, b2), gamma, size = (
        (part.detach() for part in module.parameters()),
        rounding.gamma,
        run.region.magnitude,
    )
    after = rows @ w2
    before = after * lines.lower_slope
    lined = gamma(1) * lines.lower_slope * given.magnitude + 2 * gamma(4) * lines.upper_offset + lines.error
    terms = [
        rows.abs() @ (gamma(2) * (w2.abs() @ given.upper.relu().T) + gamma(2) * b2.abs()[:, None]),
        after.abs() @ lined.T,
        before.abs() @ (gamma(4) * (w1.abs() @ size.T) + gamma(4) * b1.abs()[:, None]),
        2 * (before @ w1).abs() @ (gamma(3) * size.T),
    ]
    total = torch.stack(terms).sum(0).squeeze(1)
    assert all(bool((term.squeeze(1) > 0.02 * total).all()) for term in terms)
    assert bool((found[0] >= total).all())
    assert bool((found[0] <= 1.02 * total).all())


def test_coefficients_that_underflow_are_covered() -> None:
    """Two weights of 1e-25 make a coefficient of 0, and 1e38 times 1e-50 is more than all other terms."""
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        for values in module.parameters():
            values.fill_(1e-25)
    x = torch.full((1, 1), 1e38)
    truth = Fraction(float(x)) * Fraction(float(module[0].weight.detach())) * Fraction(float(module[1].weight.detach()))
    for method in METHODS:
        low, high = pc.bounds(module, x, pc.Ball(math.inf, 0.0), method=method, rigorous=True)
        assert Fraction(float(low.detach())) <= truth <= Fraction(float(high.detach()))


def test_intervals_cover_the_rounding_of_a_layer() -> None:
    """At a point the interval has the width of its rounding terms."""
    missed = 0
    for seed in range(20):
        weight, x = wild(1, 400, seed=seed), wild(1, 400, seed=seed + 100)
        offset = torch.tensor([-float((weight.double() * x.double()).sum())], dtype=F64).float()
        op = MatMul(weight, offset, (400,), (1,))
        exact = sum((a * b for a, b in zip(fractions(weight), fractions(x), strict=True)), start=fractions(offset)[0])
        sure, fast = (op.interval(Interval(x, x), rounding=some) for some in (Rounding(F32, 24), None))
        assert Fraction(float(sure.lower)) <= exact <= Fraction(float(sure.upper))
        missed += not Fraction(float(fast.lower)) <= exact <= Fraction(float(fast.upper))
    assert missed > 0, "rounding never mattered"


# --- underflow -----------------------------------------------------------------------------------------------------


def fractions(values: Tensor) -> list[Fraction]:
    return [Fraction(v) for v in values.flatten().tolist()]


def cancelling(dtype: torch.dtype, seed: int) -> tuple[list[nn.Linear], Fraction]:
    """Two layers, the first with the smallest numbers there are, the second with the largest; and their product."""
    smallest, largest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps, torch.finfo(dtype).max / 2
    first, second = nn.Linear(1, 8, bias=False).to(dtype), nn.Linear(8, 1, bias=False).to(dtype)
    draw = generator(seed)
    with torch.no_grad():
        first.weight.copy_(torch.randint(8, 16, (8, 1), generator=draw).to(dtype) * smallest)
        second.weight.copy_(torch.rand(1, 8, generator=draw, dtype=dtype) * largest)
        second.weight[0, 1::2] *= -1
        rest = sum(a * b for a, b in zip(fractions(first.weight)[:-1], fractions(second.weight)[:-1], strict=True))
        last = -rest / Fraction(float(first.weight[-1, 0]))
        second.weight[0, -1] = float(max(min(last, Fraction(largest)), -Fraction(largest)))
    return [first, second], sum(
        (a * b for a, b in zip(fractions(first.weight), fractions(second.weight), strict=True)), start=Fraction(0)
    )


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("method", METHODS)
def test_no_term_underflows_before_it_meets_a_large_coefficient(method: str, dtype: torch.dtype) -> None:
    for seed in range(6):
        layers, truth = cancelling(dtype, seed)
        net, x = nn.Sequential(*layers), torch.ones(1, 1, dtype=dtype)
        low, high = pc.bounds(net, x, pc.Ball(math.inf, 0.0), method=method, rigorous=True)
        assert Fraction(float(low.detach())) <= truth <= Fraction(float(high.detach()))


def test_no_verdict_rests_on_a_term_that_underflowed() -> None:
    """The margin is -1/2 of what the cancelling layers give, times 1e25."""
    seen = 0
    for seed in range(16):
        layers, truth = cancelling(F32, seed)
        if truth <= 0:
            continue
        seen += 1
        last = nn.Linear(1, 2)
        with torch.no_grad():
            last.weight.copy_(torch.tensor([[0.0], [1e25]]))
            last.bias.copy_(torch.tensor([float(truth) * 1e25 / 2, 0.0]))
        net, x, label = nn.Sequential(*layers, nn.ReLU(), last), torch.ones(1, 1), torch.tensor([0])
        assert not bool(pc.certify(net, x, label, pc.Ball(math.inf, 0.0)).certified)
        assert pc.verify(net, x, label, pc.Ball(math.inf, 0.0), timeout=2).status != ("robust",)
    assert seen > 3


@pytest.mark.parametrize("dtype", [F32, F64])
def test_intervals_of_the_smallest_numbers(dtype: torch.dtype) -> None:
    """The centre of such an interval is rounded by as much as it is wide."""
    smallest, largest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps, torch.finfo(dtype).max / 2
    op = MatMul(torch.tensor([[largest]], dtype=dtype), None, (1,), (1,))
    for low, high in ((1, 2), (3, 4), (0, 1), (5, 8)):
        ends = (torch.tensor([[end * smallest]], dtype=dtype) for end in (low, high))
        found = op.interval(Interval(*ends), rounding=Rounding(dtype, 24))
        exact = [Fraction(end) * Fraction(smallest) * Fraction(largest) for end in (low, high)]
        assert Fraction(float(found.lower)) <= exact[0]
        assert exact[1] <= Fraction(float(found.upper))


class Written(nn.Module):
    """A function of the input, written in the model's code."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def norm(weight: float, variance: float, mean: float = 0.0) -> nn.BatchNorm1d:
    made = nn.BatchNorm1d(1, eps=0.0).eval()
    with torch.no_grad():
        made.weight.fill_(weight)
        made.running_var.fill_(variance)
        made.running_mean.fill_(mean)
    return made


SMALL: dict[str, tuple[Callable[[], nn.Module], Fraction]] = {
    "factor": (lambda: Written(lambda x: x * 1e-46), Fraction(1e-46)),
    "coarse factor": (lambda: Written(lambda x: x * 3e-45), Fraction(3e-45)),
    "divisor": (lambda: Written(lambda x: x / 1e40), 1 / Fraction(1e40)),
    "shift": (lambda: Written(lambda x: (x + 1e-46) - x), Fraction(1e-46)),
    "norm": (lambda: norm(1.5 * 2.0**-100, 2.0**98), Fraction(3, 2**150)),
    "norm of a large mean": (lambda: norm(1.5 * 2.0**-100, 2.0**98, 1 - 2.0**60), Fraction(3 * 2**60, 2**150)),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SMALL)
def test_computed_coefficients_that_underflow_prove_nothing_false(name: str, method: str) -> None:
    """Each number, times 2^127, beside thresholds on both sides of the truth."""
    build, value = SMALL[name]
    x = torch.ones(1, 1)
    for share in (0.5, 0.95, 1.05, 2.0):
        last = nn.Linear(1, 2)
        with torch.no_grad():
            last.weight.copy_(torch.tensor([[2.0**127], [0.0]]))
            last.bias.copy_(torch.tensor([-float(value) * 2.0**127 * share, 0.0]))
        truth = value * 2**127 + Fraction(float(last.bias[0].detach()))
        for label, margin in ((0, truth), (1, -truth)):
            net = nn.Sequential(build(), last).eval()
            found = pc.certify(net, x, torch.tensor([label]), pc.Ball(math.inf, 0.0), method=method)
            assert Fraction(float(found.margin)) <= margin
            assert margin > 0 or not bool(found.certified)


# --- exact verdicts ------------------------------------------------------------------------------------------------


def test_a_dual_bound_covers_its_own_rounding() -> None:
    """With every unit held on its own side, the bound at a point is the network's value there, but for rounding."""
    without_slack = 0
    for seed in range(30):
        draw = generator(seed)
        layers = [nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)]
        module = nn.Sequential(*layers).double()
        with torch.no_grad():
            for values in module.parameters():
                values.copy_(torch.randn(values.shape, generator=draw, dtype=F64) * 1e4)
        x = torch.rand(1, 3, generator=draw, dtype=F64)
        net, spec = pc.capture(module, (3,)), Specification.margins(0, 2)
        before = fractions(exact_first(module, x))
        wide = Interval(torch.full((1, 6), -1e6, dtype=F64), torch.full((1, 6), 1e6, dtype=F64))
        graph = net.bind()
        with torch.no_grad():
            bounds = {graph.nodes[graph.activations[0]].inputs[0]: wide}
            problem = reduce(graph, pc.Ball(math.inf, 0.0).at(x), bounds, spec)
            split = torch.tensor([[ON if value > 0 else OFF for value in before]], dtype=torch.int8)
            weight = torch.ones(1, 1, dtype=F64)
            nothing = torch.zeros(1, 6, dtype=F64)
            at = multipliers(problem, split, nothing, nothing, DualObjective.of(problem, weight))
            found = Fraction(float(proved_bound(problem, split, at.nu, weight)))
            taken = Fraction(float(at.nu.abs() @ problem.slack[0] + weight @ problem.slack[1]) * 1.01)
        values = exact_values(module, fractions(x))
        assert found < values[0] - values[1]
        without_slack += found + taken > values[0] - values[1]
    assert without_slack > 0, "rounding never mattered"


def exact_first(module: nn.Sequential, x: Tensor) -> Tensor:
    """The first layer's values; far enough from 0 that float64 knows their signs."""
    with torch.no_grad():
        found: Tensor = module[0](x)
    assert float(found.abs().min()) > 1e-6
    return found


@pytest.mark.parametrize(("status", "proof"), [("robust", "solver"), ("robust", None), ("falsified", "rigorous")])
def test_a_journal_takes_no_word_for_a_proof(status: str, proof: str | None) -> None:
    """Robust is a rigorous proof, falsified a counterexample."""
    fields: dict[str, Any] = {
        "sample": "",
        "stage": "",
        "evaluations": 0,
        "nodes": 0,
        "seconds": 0.0,
        "counterexample": None,
    }
    assert JournalEntry(status="robust", proof="rigorous", **fields).status == "robust"
    with pytest.raises(ValidationError):
        JournalEntry(status=status, proof=proof, **fields)
