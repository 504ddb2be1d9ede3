"""Maxima and minima of two nodes: exact intervals, and planes that hold at every corner."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor, nn

import polycert as pc
from polycert.bounding.backward import LOWER, Pass
from polycert.bounding.methods import error_model, get_method, passes
from polycert.bounding.relaxations import adaptive
from polycert.forms import Dense
from polycert.graph import Graph
from polycert.graph.graph import Topology
from polycert.rules.affine import Add
from polycert.rules.examples import Fn
from polycert.rules.maximum import Extremum, Plane, Planes
from polycert.rules.piecewise_linear import Relu
from polycert.sets.interval import Interval, Rounding

F32, F64 = torch.float32, torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def filled(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module with random weights of the size that keeps activations about as large as the inputs."""
    draws = generator(seed)
    with torch.no_grad():
        for weight in module.parameters():
            fan_in = weight[0].numel() if weight.dim() > 1 else 16
            weight.copy_(torch.randn(weight.shape, generator=draws, dtype=weight.dtype) / fan_in**0.5)
    return module


def pooled(channels: tuple[int, ...], size: int, last: int = 10) -> nn.Sequential:
    """Blocks of convolution, ReLU and max pool, and a linear layer."""
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        size //= 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * size * size, last))


def without_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interval of a maximum be that of the sum `b + relu(a - b)`, and let rows be fused through it."""
    monkeypatch.setattr(
        Extremum, "interval", lambda op, *given, rounding=None: Add.interval(op, *given[:2], rounding=rounding)
    )
    monkeypatch.setattr(Topology, "fusion_ends", property(lambda layout: layout.curved, lambda *_: None), raising=False)


# --- intervals -----------------------------------------------------------------------------------------------------


def extremes_over_corners(pool: nn.Module, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest value of each window `[batch, windows]` over all corners of its box."""
    size = pool.kernel_size
    windows = [nn.functional.unfold(end, size, stride=pool.stride, padding=pool.padding) for end in (low, high)]
    # What lies beyond the border is never the largest.
    inside = nn.functional.unfold(torch.ones_like(low), size, stride=pool.stride, padding=pool.padding) > 0
    least, most = (end.masked_fill(~inside, -torch.inf) for end in windows)
    corners = torch.tensor(list(product((False, True), repeat=size * size)))
    values = torch.where(corners[:, None, :, None], most, least).amax(2)
    return values.amin(0), values.amax(0)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, stride=2, padding=1)], ids=["2x2", "3x3-overlap"])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_the_interval_of_a_pool_is_exact(pool: nn.MaxPool2d, dtype: torch.dtype) -> None:
    """The bounds by intervals are the extreme values over the corners of each window's box."""
    x = torch.rand(3, 1, 6, 6, generator=generator(), dtype=dtype)
    module = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), pool, nn.Flatten()).to(dtype)
    nn.init.ones_(module[0].weight)
    net, set_ = pc.capture(module, (1, 6, 6)), pc.Ball(math.inf, 0.3, 0.0, 1.0)
    low, high = (end.flatten(1) for end in extremes_over_corners(pool, (x - 0.3).clamp(0, 1), (x + 0.3).clamp(0, 1)))
    for rigorous in (False, True):
        tolerance = (1e-4 if rigorous else 1e-6) if dtype == F32 else 1e-12
        with torch.no_grad():
            found = pc.bounds(net, x, set_, method="ibp", rigorous=rigorous)
        torch.testing.assert_close(found.lower, low, rtol=0, atol=tolerance)
        torch.testing.assert_close(found.upper, high, rtol=0, atol=tolerance)


@pytest.mark.parametrize("function", [torch.maximum, torch.minimum], ids=["maximum", "minimum"])
def test_the_interval_of_the_larger_and_of_the_smaller_node_is_exact(function: object) -> None:
    """Its ends are the larger or the smaller ends of both nodes, to the last bit, also if they are infinite."""
    net = pc.capture(Fn(lambda m, x: function(x, x.flip(1))), (4,))
    graph = net.bind()
    (index,) = graph.layout.extrema
    one, rise, other = (Interval(*torch.randn(2, 50, 4, generator=generator(k)).sort(0).values) for k in range(3))
    one.lower[0], other.upper[1] = -torch.inf, torch.inf
    op = graph.nodes[index].op
    assert isinstance(op, Extremum)
    rise = Relu((4,)).interval(Interval(other.lower - one.upper, other.upper - one.lower))
    if op.signs[1] < 0:
        rise = Relu((4,)).interval(Interval(one.lower - other.upper, one.upper - other.lower))
    found = op.interval(one, rise, other, rounding=error_model(graph))
    assert torch.equal(found.lower, function(one.lower, other.lower))
    assert torch.equal(found.upper, function(one.upper, other.upper))


def test_intervals_stay_narrow_behind_many_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """After five pools they are more than fifty times as narrow as those of the sums."""
    net = pc.capture(filled(pooled((3, 8, 16, 16, 32, 32), 32)), (3, 32, 32))
    x, set_ = torch.rand(2, 3, 32, 32, generator=generator()), pc.Ball(math.inf, 2 / 255, 0.0, 1.0)
    with torch.no_grad():
        exact = pc.bounds(net, x, set_, method="ibp", rigorous=True)
        without_ends(monkeypatch)
        sums = pc.bounds(net, x, set_, method="ibp", rigorous=True)
    assert float((sums.upper - sums.lower).mean()) > 50 * float((exact.upper - exact.lower).mean())


def test_a_relaxed_interval_of_a_maximum_is_that_of_its_nodes() -> None:
    """It is never wider than the larger ends of both nodes, also in a pass with backward bounds."""
    graph = pc.capture(filled(pooled((1, 4, 4), 8)), (1, 8, 8)).bind()
    region = pc.Ball(math.inf, 0.1, 0.0, 1.0).at(torch.rand(2, 1, 8, 8, generator=generator()))
    for relaxation in ("parallel", "adaptive"):
        (run,) = passes(graph, region, "crown", relaxation, error_model(graph))
        run.prepare(graph.output)
        assert graph.layout.extrema
        for index in graph.layout.extrema:
            one, _, other = (run.relaxed_interval(k) for k in graph.nodes[index].inputs)
            found = run.relaxed_interval(index)
            assert bool((found.lower >= torch.maximum(one.lower, other.lower)).all())
            assert bool((found.upper <= torch.maximum(one.upper, other.upper)).all())


# --- planes --------------------------------------------------------------------------------------------------------


def boxes(count: int, dtype: torch.dtype) -> tuple[Interval, Interval]:
    """Pairs of intervals of many sizes; some are a point, some have an end in common, and some are disjoint."""
    draws = generator()
    ends = torch.randn(2, 2, count, generator=draws, dtype=dtype)
    ends *= 10 ** torch.randint(-30, 30, (count,), generator=draws).to(dtype).clamp(-8, 8)
    ends[:, 1, : count // 8] = ends[:, 0, : count // 8]
    ends[1, 1, count // 4 : count // 2] = ends[0, 1, count // 4 : count // 2]
    first, second = (pair.sort(0).values for pair in ends)
    return Interval(*first), Interval(*second)


def winners(planes: Planes, sign: int = 1) -> tuple[Plane, Tensor]:
    """The plane on the side of the rise's upper line, and where it is a line over one of the nodes alone."""
    plane = planes.upper if sign > 0 else planes.lower
    return plane, (plane.one == 0) | (plane.other == 0)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("sign", [1, -1], ids=["larger", "smaller"])
def test_planes_hold_at_every_corner(dtype: torch.dtype, sign: int) -> None:
    """In exact arithmetic, up to their error and that of `1 - slope`, wherever the planes can be farthest off."""
    one, other = boxes(600, dtype)
    rounding = Rounding(dtype, 16)
    share = torch.tensor([1.0, 0.25], dtype=dtype).repeat(300)  # nodes that depend on each other have a smaller gap
    gap = Interval(share * (other.lower - one.upper), share * (other.upper - one.lower))
    given = gap if sign > 0 else Interval(-gap.upper, -gap.lower)
    planes = Extremum((600,), (1, sign)).planes(one, other, adaptive(Relu((600,)), given, rounding), rounding)
    assert planes.error is not None
    line = winners(planes, sign)[1]
    missed = points = 0
    for k in range(600):
        ends = [tuple(Fraction(float(end[k])) for end in interval) for interval in (one, other, gap)]
        size = max(abs(end) for end in (*ends[0], *ends[1]))
        allowed = Fraction(float(planes.error[k])) + Fraction(rounding.unit) * size
        for a, b in extreme_points(*ends):
            value = max(a, b) if sign > 0 else min(a, b)
            points += 1
            for side, plane in ((-1, planes.lower), (1, planes.upper)):
                first, second, offset = (Fraction(float(part[k])) for part in plane)
                room = side * (first * a + second * b + offset - value)
                assert room >= -allowed
                missed += room < 0
    assert points > 1000
    assert min(int(line.sum()), int((~line).sum())) > 50
    assert missed > 10


Ends = tuple[Fraction, ...]


def extreme_points(one: Ends, other: Ends, gap: Ends) -> list[tuple[Fraction, Fraction]]:
    """The corners of all pairs in two intervals whose difference is in a third, and of their diagonal."""
    found = [*product(one, other)]
    for step in (*gap, Fraction(0)):
        found += [(a, a + step) for a in one] + [(b - step, b) for b in other]
    spans = [lambda a, b: a, lambda a, b: b, lambda a, b: b - a]
    limits = list(zip(spans, (one, other, gap), strict=True))
    return [point for point in found if all(low <= span(*point) <= high for span, (low, high) in limits)]


def test_a_plane_is_tight_at_the_upper_end() -> None:
    """The greatest value of a line over the box is the larger upper end, where the upper line of the rise has more."""
    one, other = boxes(600, F64)
    gap = Interval(other.lower - one.upper, other.upper - one.lower)
    lines = adaptive(Relu((600,)), gap, None)
    plane, line = winners(Extremum((600,), (1, 1)).planes(one, other, lines, None))
    line &= lines.upper_offset > 0
    peak = plane.one * one.upper + plane.other * other.upper + plane.offset
    torch.testing.assert_close(peak[line], torch.maximum(one.upper, other.upper)[line], rtol=1e-9, atol=1e-9)
    assert int(line.sum()) > 200


def extreme_net(dtype: torch.dtype) -> tuple[nn.Module, pc.Network]:
    """A maximum and a minimum of two layers that read different inputs."""
    module = Fn(
        lambda m, x: torch.cat([f(m.a(x[:, :2]), m.b(x[:, 2:])) for f in (torch.maximum, torch.minimum)], 1),
        nn.Linear(2, 3, bias=False),
        nn.Linear(2, 3, bias=False),
    ).to(dtype)
    return module, pc.capture(filled(module), (4,))


def exact_outputs(module: nn.Module) -> list[list[Fraction]]:
    """The outputs of `extreme_net` at all corners of the unit cube, in exact arithmetic."""
    first, second = (
        [[sum((w * v for w, v in zip(row, point, strict=True)), Fraction(0)) for row in weights] for point in SQUARE]
        for weights in (
            [[Fraction(float(w)) for w in row] for row in layer.weight.detach()] for layer in (module.a, module.b)
        )
    )
    return [[f(*pair) for f in (max, min) for pair in zip(a, b, strict=True)] for a, b in product(first, second)]


SQUARE = list(product((0, 1), repeat=2))


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("method", ["crown", "crown-ibp", "alpha-crown"])
def test_rigorous_bounds_by_planes_hold_in_exact_arithmetic(method: str, dtype: torch.dtype) -> None:
    """At all corners of the unit cube; the bounds are so tight that those without error terms miss some values."""
    missed, lines = 0, 0
    x, set_ = torch.full((1, 4), 0.5, dtype=dtype), pc.Ball(math.inf, 1.0, 0.0, 1.0)
    module, net = extreme_net(dtype)
    for seed in range(12 if method == "alpha-crown" else 30):
        outputs = exact_outputs(filled(module, seed))
        for rigorous in (True, False):
            with torch.no_grad():
                found = pc.bounds(net, x, set_, method=method, relaxation="adaptive", rigorous=rigorous)
            low, high = ([Fraction(v) for v in end[0].tolist()] for end in found[:2])
            for values in outputs:
                holds = [a <= value <= b for a, value, b in zip(low, values, high, strict=True)]
                assert all(holds) or not rigorous
                missed += not all(holds)
        with torch.no_grad():
            (run,) = passes(net.bind(), set_.at(x), method, "adaptive")
            run.prepare(run.graph.output)
            for k in run.graph.layout.extrema:
                planes = run.planes(k)
                assert planes is not None
                plane, line = winners(planes, run.graph.extremum(k).signs[1])
                lines += int((line & (plane.offset != 0)).sum())
    assert lines > 20
    assert missed > 0


def plane_slack(graph: Graph, run: Pass, rows: Tensor) -> Tensor:
    """The slack of the lower bounds of rows over the output."""
    slack = get_method("crown").final(run, Dense(rows), LOWER).slack
    assert slack is not None
    return slack


def test_the_slack_of_a_pass_has_the_terms_of_planes() -> None:
    """The sum of the terms of both nodes, the factors, the offsets and the planes, by hand, and hardly more."""
    _, net = extreme_net(F32)
    graph = net.bind()
    region = pc.Ball(math.inf, 0.5).at(torch.rand(1, 4, generator=generator()))
    rows = torch.stack([torch.eye(6), -2 * torch.eye(6)]).flatten(0, 1).unsqueeze(0)
    rounding = error_model(graph)
    with torch.no_grad():
        (run,) = passes(graph, region, "crown", "adaptive", rounding)
        run.prepare(graph.output)
        before = plane_slack(graph, run, rows)
        terms = []
        for k in sorted(graph.layout.extrema):
            planes, (one, _, other) = run.planes(k), graph.nodes[k].inputs
            assert planes is not None
            assert planes.error is not None
            first, second, offset = (torch.maximum(a.abs(), b.abs()) for a, b in zip(*planes[:2], strict=True))
            products = rounding.gamma(2) * (first * run.size(one) + second * run.size(other))
            terms.append(products + 2 * rounding.gamma(3) * offset + planes.error)
            run._planes[k] = Planes(*(Plane(a, b, 0 * c) for a, b, c in planes[:2]), -products)
        lost = before - plane_slack(graph, run, rows)
    expected = torch.cat(terms, 1)[0]
    assert float(expected.min()) > 0
    torch.testing.assert_close(lost[0], 1.01 * torch.cat([expected, 2 * expected]), rtol=1e-3, atol=1e-9)


def test_planes_make_bounds_tighter(monkeypatch: pytest.MonkeyPatch) -> None:
    """CROWN's bounds of networks with pools, in the mean: by planes and exact intervals, and by sums alone."""
    widths: dict[bool, list[Tensor]] = {True: [], False: []}
    for planes in (True, False):
        if not planes:
            without_ends(monkeypatch)
            monkeypatch.setattr(Pass, "_find_planes", lambda run, index: None)
        for seed in range(3):
            net = pc.capture(filled(pooled((1, 4, 6), 8), seed), (1, 8, 8))
            x = torch.rand(4, 1, 8, 8, generator=generator(seed))
            for eps in (0.02, 0.1):
                with torch.no_grad():
                    found = pc.bounds(net, x, pc.Ball(math.inf, eps, 0.0, 1.0), method="crown", relaxation="adaptive")
                widths[planes].append((found.upper - found.lower).mean())
    ratios = torch.stack(widths[True]) / torch.stack(widths[False])
    assert bool((ratios <= 1).all())
    assert float(ratios.mean()) < 0.95
