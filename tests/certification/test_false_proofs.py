"""Ways to a false proof that were found from outside: each of these tests fails on the code before it was mended."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import polycert as pc
from polycert.bounding.relaxations import parallel
from polycert.certification.certify import verdict_of
from polycert.certification.envelope import Envelope
from polycert.exact import Specification, Verdict, decide
from polycert.forms import Dense
from polycert.rules.piecewise_linear import LeakyRelu
from polycert.sets.ball import Region
from polycert.sets.geometry import least_norm
from polycert.sets.interval import Interval, Rounding
from polycert.verification.beta_crown import Ascent, Nodes
from polycert.verification.branch_and_bound import BranchAndBound
from polycert.verification.budget import Budget
from polycert.verification.counterexample import CounterexampleCheck
from polycert.verification.pre_activation import _without, relax
from polycert.verification.programs import by_highs, solve_clauses, solve_leaf
from polycert.verification.reduced_problem import AffineMaps, Reduced, ReductionSource, reduce
from polycert.verification.snapshot import NetworkSnapshot
from polycert.verification.vnnlib.reader import parse_property

METHODS = ("ibp", "forward", "crown", "crown-ibp", "alpha-crown")


class SoftmaxInside(nn.Module):
    """`p / 6.3e-16 + (x + 1) / 2 - 0.7` with p the smaller of two probabilities, whose logits are 35 to 45 apart."""

    def __init__(self) -> None:
        super().__init__()
        self.logits, self.aside, self.last = nn.Linear(1, 2), nn.Linear(1, 2), nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.logits.weight.copy_(torch.tensor([[0.0], [5.0]]))
            self.logits.bias.copy_(torch.tensor([0.0, 40.0]))
            self.aside.weight.copy_(torch.tensor([[0.5], [0.0]]))
            self.aside.bias.copy_(torch.tensor([-0.2, 0.0]))
            self.last.weight.copy_(torch.tensor([[1.586e15, 0.0], [0.0, 0.0]]))

    def forward(self, x: Tensor) -> Tensor:
        """Two classes, the second at 0."""
        found: Tensor = self.last(self.logits(x).softmax(1)) + self.aside(x)
        return found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softmax_inside_with_logits_far_apart(method: str, dtype: torch.dtype) -> None:
    """At x = -0.4 the margin is -0.35: no ball around -1 that reaches it is certified."""
    net = SoftmaxInside().to(dtype)
    x = torch.full((1, 1), -1.0, dtype=dtype)
    assert float(net(x + 0.6).detach()[0, 0]) < -0.3
    for relaxation in ("parallel",) if method == "forward" else ("parallel", "adaptive"):
        found = pc.certify(net, x, torch.tensor([0]), pc.Ball(eps=2.0), method=method, relaxation=relaxation)
        assert not bool(found.certified[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lines_around_a_reciprocal_of_huge_numbers(dtype: torch.dtype) -> None:
    """The line below touches where it should, however small its slope is."""
    from polycert.rules.convex import Reciprocal

    lower, upper = torch.tensor([1e15], dtype=dtype), torch.tensor([1e20], dtype=dtype)
    slope = -1 / (lower * upper)
    least = Reciprocal((1,)).offset_range(slope, lower, upper).lower
    points = torch.logspace(15, 20, 2001, dtype=torch.float64)
    assert float(least) <= float((1 / points - slope.double() * points).min()) * (1 + 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lines_around_tanh_over_a_huge_interval(dtype: torch.dtype) -> None:
    """A chord whose slope is below the smallest normal number touches all the same."""
    from polycert.rules.s_shaped import Tanh

    upper = torch.tensor([torch.finfo(dtype).max], dtype=dtype)
    slope = 1 / upper
    assert float(Tanh((1,)).offset_range(slope, torch.zeros_like(upper), upper).upper) > 0.99


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_offset_that_overflowed_certifies_nothing(dtype: torch.dtype, value: float) -> None:
    """Partial sums of rows times bias may overflow to +inf though the sum is small, or negative."""
    region = pc.Ball(eps=0.1).at(torch.zeros(1, 2, dtype=dtype))
    slope, offset = torch.ones(1, 1, 2, dtype=dtype), torch.tensor([[value]], dtype=dtype)
    slack = torch.full_like(offset, 1e-3)
    env = Envelope(slope, offset, torch.ones(1, 1, dtype=torch.long), region, slack, Rounding(dtype, 8))
    found = verdict_of(env)
    assert not bool(found.certified)
    assert float(found.radius) == 0
    assert bool(found.inconclusive)  # float64 may know better


@pytest.mark.parametrize("rigorous", [True, False])
def test_bounds_that_overflow_are_infinite(rigorous: bool) -> None:
    """Whatever overflows on the way: no lower bound is +inf, no upper one -inf, none is NaN."""
    top = torch.finfo(torch.float32).max
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part in net.parameters():
            signs = torch.randint(0, 2, part.shape, generator=generator) * 2.0 - 1
            part.copy_(signs * top / (1 if part.dim() == 1 else 4))
    network = pc.capture(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), (4,))
    with torch.no_grad():
        for own, new in zip(network.parameters(), net.parameters(), strict=True):
            own.copy_(new)
    for method in METHODS:
        low, high = pc.bounds(network, torch.zeros(2, 4), pc.Ball(eps=1.0), method=method, rigorous=rigorous)
        assert bool((low < math.inf).all())
        assert bool((high > -math.inf).all())


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, math.inf])
def test_a_huge_eps_with_one_side_of_a_box(norm: float) -> None:
    """An open side of the box lets a coordinate move without limit, not by 1e30."""
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1e-30, 0.0], [0.0, 0.0]]))
        net.bias.copy_(torch.tensor([2.0, 0.0]))
    x = torch.zeros(1, 2)
    found = pc.certify(net, x, torch.tensor([0]), pc.Ball(norm, 1e31, high=1.0))
    assert not bool(found.certified[0])
    assert float(found.radius[0]) <= 2e30 * (1 + 1e-6)


def _small(seed: int, hidden: tuple[int, ...]) -> pc.Network:
    """A ReLU net with two inputs and two classes, all of its weights eighths."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (2, *hidden, 2)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layer = nn.Linear(before, after).double()
        with torch.no_grad():
            for part in layer.parameters():
                part.copy_(torch.randint(-16, 17, part.shape, generator=generator) / 8)
        layers += [layer, nn.ReLU()]
    return pc.capture(nn.Sequential(*layers[:-1]), (2,))


def _at_the_boundary(net: pc.Network, norm: float) -> Iterator[Verdict]:
    """Decisions at radii around the smallest one that fails, which a bisection finds."""
    x = torch.zeros(1, 2, dtype=torch.float64)
    spec = Specification.margins(int(net(x).argmax()), 2)

    def at(eps: float) -> Verdict:
        return decide(net, pc.Ball(norm, eps).at(x), spec, timeout=5)

    low, high = 0.0, 8.0
    if at(high).status != "falsified":
        return
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        found = at(middle)
        yield found
        if found.status == "falsified":
            high = middle
        else:
            low = middle
        if middle in (low, high) and high == math.nextafter(low, math.inf):
            break


@pytest.mark.parametrize("norm", [2.0, math.inf])
@pytest.mark.parametrize("hidden", [(4,), (4, 4)])
def test_robust_is_always_a_proof(norm: float, hidden: tuple[int, ...]) -> None:
    """At the very boundary leaves are too close to call: then a solver may believe, and nothing is proved by that."""
    for seed in range(6):
        for found in _at_the_boundary(_small(seed, hidden), norm):
            assert (found.status == "robust") == (found.proof == "rigorous")
            assert found.proof != "solver" or (found.status == "unknown" and found.trusting().status == "robust")


def test_a_program_over_no_clause_proves_nothing() -> None:
    """The mixed-integer program was asked about no clause, and said that all of them hold."""
    net, x = _small(0, (4,)), torch.zeros(1, 2, dtype=torch.float64)
    region, spec = pc.Ball(eps=1.0).at(x), Specification.margins(0, 2)
    frozen = NetworkSnapshot.of(net)
    found = solve_clauses(
        _reduced(frozen, region, spec), torch.arange(0), CounterexampleCheck(frozen, region, spec), Budget(5), by_highs
    )
    assert found.status == "unknown"


def _reduced(frozen: NetworkSnapshot, region: Region, spec: Specification) -> Reduced:
    with torch.no_grad():
        intervals = relax(frozen.double, region, Dense(spec.rows.unsqueeze(0)), "crown", "parallel").intervals
        return reduce(frozen.double, region, intervals, spec)


def test_inputs_with_one_decimal_as_both_bounds_are_points() -> None:
    """0.1 is no double: its enclosure is one step wide, and yet it is not free."""
    (box,) = parse_property("(declare-const X_0 Real)(declare-const Y_0 Real)(assert (= X_0 0.1))").boxes
    assert box.lower[0] < box.upper[0]
    assert box.free == 0


class Believing(BranchAndBound):
    """Nothing is bounded; the first branching believes the solver in clause 0 and proves all other nodes."""

    def bound(self, nodes: Nodes, steps: int) -> Ascent:
        return Ascent(nodes, torch.zeros(len(nodes), 2), torch.zeros(len(nodes), self.problem.count))

    def _branch(self, open_: Ascent) -> Ascent:
        self.believed.add(0)
        return Ascent(open_.nodes[:0], open_.inputs[:0], open_.gaps[:0])


def test_a_clause_that_a_solver_believes_stays_open() -> None:
    """It was forgotten when another clause went on to the next search, which then called all of it robust."""
    frozen, region = NetworkSnapshot.of(_small(0, (4, 4))), pc.Ball(eps=1.0).at(torch.zeros(1, 2, dtype=torch.float64))
    spec = Specification(torch.eye(2, dtype=torch.float64), double(100.0, 100.0), torch.arange(2))
    search = Believing(_reduced(frozen, region, spec), CounterexampleCheck(frozen, region, spec), Budget(5), 5)
    found = search.run()
    assert (found.status, found.proof) == ("unknown", "solver")
    assert search.open_clauses.tolist() == [0]


def double(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_the_error_of_a_unit_reaches_what_is_composed_of_it() -> None:
    """Three layers of one unit each, all of them on: what the first may be wrong by is in the row at the end."""
    net = NetworkSnapshot.of(pc.capture(nn.Sequential(*(nn.Linear(1, 1), nn.ReLU()) * 3).double(), (1,)))
    region = pc.Ball(eps=1.0).at(double(0.0)[None])
    spec = Specification(double(1.0)[None], double(0.0), torch.tensor([0]))
    through = torch.diag(double(1.0, 1.0), -1)  # each unit is the one before it
    units = AffineMaps(torch.zeros(3, 1).double(), through, torch.zeros(3).double(), double(1e-7, 0.0, 0.0))
    rows = AffineMaps(double(0.0)[None], double(0.0, 0.0, 1.0)[None], double(0.0), double(0.0))
    sides = {k: torch.zeros(1, 1, dtype=torch.bool) for k in net.double.activations}
    origin = ReductionSource(net.double, spec, sides, torch.tensor([[k, 0, 0] for k in net.double.activations]))
    layers = (slice(0, 1), slice(1, 2), slice(2, 3))
    problem = Reduced(origin, region, units, rows, double(0.1, 0.1, 0.1), double(0.9, 0.9, 0.9), layers, spec.members)
    left = _without(problem, torch.ones(3, dtype=torch.bool))
    assert left.count == 0
    assert float(left.rows.error) >= 1e-7
    assert all(bool(side.all()) for side in left.origin.sides.values())


@pytest.mark.parametrize("field", ["norm", "eps", "low", "high"])
@pytest.mark.parametrize("value", [-(10**400), "1", 1j, [[1.0], [2.0, 3.0]], math.nan], ids=str)
def test_what_is_no_number_is_refused_with_a_sentence(field: str, value: object) -> None:
    with pytest.raises(pc.PolycertError):
        pc.Ball(**{field: value})


def test_sides_and_radii_are_compared_in_float64() -> None:
    """In float32, -1e-50 is not negative, 1e40 is infinite, and 1 + 1e-9 is 1."""
    assert float(pc.Ball(eps=1e40).at(torch.zeros(1, 1).double()).eps) == 1e40
    for wrong in ({"eps": -1e-50}, {"low": 1 + 1e-9, "high": 1.0}):
        with pytest.raises(pc.PolycertError):
            pc.Ball(**wrong)


def test_more_labels_than_samples_are_refused() -> None:
    net = pc.capture(nn.Linear(2, 2), (2,))
    with pytest.raises(pc.PolycertError, match="labels must be 2"):
        pc.largest_radius(net, torch.zeros(2, 2), torch.zeros(4, dtype=torch.long), upper=1.0)


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot take subnormal numbers for 0")
def test_nothing_is_proved_while_subnormal_numbers_count_as_0() -> None:
    """A weight of 1e38 makes 0.1 of an input of 1e-39, which the processor would take for 0."""
    net = nn.Linear(1, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.0], [1e38]]))
        net.bias.copy_(torch.tensor([0.05, 0.0]))
    asked = (net, torch.tensor([[1e-39]]), torch.tensor([0]), pc.Ball())
    assert not bool(pc.certify(*asked).certified)
    torch.set_flush_denormal(True)
    try:
        for call in (pc.certify, pc.verify):
            with pytest.raises(pc.PolycertError, match="set_flush_denormal"):
                call(*asked)
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("end", [-3.4e38, -4.6e24])
def test_a_leak_below_the_range_of_the_type(end: float) -> None:
    """In float32 the leak 1e-46 is 0, and times the input it is not."""
    op, given = LeakyRelu((1,), 1e-46), Interval(torch.tensor([[end]]), torch.tensor([[-1.0]]))
    truth = Fraction(1e-46) * Fraction(float(given.lower))
    rounding = Rounding(torch.float32, 64)
    assert Fraction(float(op.interval(given, rounding=rounding).lower)) <= truth
    lines = parallel(op, given, rounding)
    assert lines.error is not None
    lowest = Fraction(float(lines.lower_slope)) * Fraction(end) + Fraction(float(lines.lower_offset))
    assert lowest - Fraction(float(lines.error)) <= truth


def test_a_distance_below_the_normal_numbers_is_0() -> None:
    """One subnormal number times `1 - 1e-13` is itself."""
    small = 5e-324
    found = least_norm(double(1.0, 1.0)[None], None, double(small), 2.0, 1e-14)
    assert float(found) == 0.0


def test_weights_that_overflow_leave_a_search_undecided() -> None:
    """The solvers refuse infinite coefficients with an exception."""
    frozen, region = NetworkSnapshot.of(_small(0, (4,))), pc.Ball(eps=1.0).at(torch.zeros(1, 2, dtype=torch.float64))
    spec = Specification.margins(0, 2)
    problem = _reduced(frozen, region, spec)
    problem = replace(problem, units=problem.units._replace(direct=problem.units.direct * math.inf))
    nodes = Nodes.roots(problem)
    assert solve_leaf(problem, replace(nodes, split=torch.ones_like(nodes.split))) is None
    assert (
        solve_clauses(problem, torch.arange(1), CounterexampleCheck(frozen, region, spec), Budget(5), by_highs).status
        == "unknown"
    )


@pytest.mark.parametrize(
    "x", ["text", None, [["a"]], [[{}]], torch.eye(2).to_sparse(), torch.eye(2).to_mkldnn()], ids=repr
)
def test_inputs_that_are_no_numbers(x: object) -> None:
    with pytest.raises(pc.PolycertError):
        pc.certify(nn.Linear(2, 2), x, torch.tensor([0]), pc.Ball())
