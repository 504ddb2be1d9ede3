"""Adaptive lines of smooth activations: sound on nasty intervals, and nearer than any other sound line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import mpmath
import pytest
import torch
from torch import Tensor, nn

import polycert as pc
from polycert.bounding.relaxations import adaptive
from polycert.rules import Activation, activation
from polycert.rules.bump import Gelu, Silu, TanhGelu
from polycert.rules.convex import Elu, Exp, Reciprocal, Softplus, Square
from polycert.rules.s_shaped import Arctan, Erf, Tanh
from polycert.sets.interval import Interval, Rounding
from tests.rules.test_smooth import EXACT

F32, F64 = torch.float32, torch.float64
Exact = Callable[[mpmath.mpf], mpmath.mpf]

CURVES: dict[str, tuple[Activation, Exact]] = {
    "tanh": (Tanh(()), mpmath.tanh),
    "sigmoid": (Tanh((), shift=0.5, outer=0.5, inner=0.5), lambda z: 1 / (1 + mpmath.exp(-z))),
    "arctan": (Arctan(()), mpmath.atan),
    "erf": (Erf((), outer=2 / math.sqrt(math.pi)), mpmath.erf),
    **{kind.__name__: (kind(()), EXACT[kind]) for kind in (Gelu, TanhGelu, Silu)},
    **{kind.__name__: (kind(()), EXACT[kind]) for kind in (Exp, Softplus, Square, Elu, Reciprocal)},
}
NEAR_0 = (1e-30, 1e-7, 1e-3)
BENDS = (1.0, math.sqrt(2), 2.4)
FAR = (5.0, 20.0, 1e4, 1e30)


def nasty(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """All pairs of ends around the bends, tiny and huge ones, and intervals one unit wide."""
    ends = torch.tensor([0.0, *(sign * size for size in NEAR_0 + BENDS + FAR for sign in (-1, 1))], dtype=dtype)
    pairs = [(low, high) for low, high in itertools.product(ends.tolist(), repeat=2) if low <= high]
    lower, upper = torch.tensor(pairs, dtype=dtype).T
    beside = torch.nextafter(ends, torch.full_like(ends, math.inf))
    return torch.cat([lower, ends]), torch.cat([upper, beside])


def inside(lower: float, upper: float) -> list[mpmath.mpf]:
    """The ends, points between them on a straight and on a logarithmic scale, and where functions bend."""
    low, high = mpmath.mpf(lower), mpmath.mpf(upper)
    points = [low + (high - low) * share / 16 for share in range(17)]
    points += [mpmath.mpf(sign * 10.0**power) for sign in (-1, 1) for power in (-20, -5, -2, -0.5, 0, 0.3, 0.7, 1.2)]
    points += [mpmath.mpf(0), mpmath.mpf(1)]
    return [z for z in points if low <= z <= high]


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CURVES)
def test_adaptive_lines_are_sound_on_nasty_intervals(name: str, dtype: torch.dtype) -> None:
    """In sixty digits, without any tolerance."""
    op, exact = CURVES[name]
    lower, upper = nasty(dtype)
    if isinstance(op, Reciprocal):
        lower, upper = (end[upper >= 1] for end in (lower.clamp(min=1), upper))
    lines = adaptive(op, Interval(lower, upper), Rounding(dtype, 16))
    checked = 0
    with mpmath.workdps(60):
        for row in zip(*(values.expand_as(lower).tolist() for values in (lower, upper, *lines)), strict=True):
            if not all(map(math.isfinite, row)):
                continue  # an overflow, which never counts as a bound
            low_slope, low, high_slope, high, error = map(mpmath.mpf, row[2:])
            for z in inside(*row[:2]):
                assert low_slope * z + low - error <= exact(z) <= high_slope * z + high + error, (row, z)
                checked += 1
    assert checked > 20 * len(lower) / 4


def intervals(count: int = 300) -> tuple[Tensor, Tensor]:
    """Narrow and wide intervals, left, right and across 0."""
    generator = torch.Generator().manual_seed(3)
    centre = torch.randn(count, generator=generator, dtype=F64) * 3
    width = 10 ** (torch.rand(count, generator=generator, dtype=F64) * 3 - 1.5)
    return centre - width, centre + width


@pytest.mark.parametrize("lean", [0.0, activation.LEAN], ids=["area", "weighted"])
@pytest.mark.parametrize("name", CURVES)
def test_no_sound_line_is_nearer(name: str, lean: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The areas, weighted or not, are the least of all slopes: of chord, tangents and a fine grid."""
    monkeypatch.setattr(activation, "LEAN", lean)
    op, _ = CURVES[name]
    lower, upper = intervals()
    if isinstance(op, Reciprocal):
        lower, upper = (end[upper > 1.1] for end in (lower.clamp(min=1), upper))
    chord = op.chord(lower, upper)
    below, above = activation.nearest_at(lower, upper, chord.sign())
    at = lower + torch.linspace(0, 1, 101, dtype=F64)[:, None] * (upper - lower)
    rise = (op.forward(at + 1e-6) - op.forward(at - 1e-6)) / 2e-6  # tangents at the ends, the middle and between
    steps = torch.linspace(-1, 1, 201, dtype=F64)[:, None] * (rise.amax(0) - rise.amin(0)) + chord
    slopes = torch.cat([chord[None], rise, steps])
    others = op.offset_range(slopes, lower.expand_as(slopes), upper.expand_as(slopes))
    low_slope, high_slope = op.adaptive(lower, upper)
    low = low_slope * below + op.offset_range(low_slope, lower, upper).lower
    high = high_slope * above + op.offset_range(high_slope, lower, upper).upper
    room = 1e-6 * (others.upper - others.lower)[0] + 1e-12 * (1 + op.peak(lower, upper))
    assert bool((low >= (slopes * below + others.lower).amax(0) - room).all())
    assert bool((high <= (slopes * above + others.upper).amin(0) + room).all())


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", ["tanh", "sigmoid", "arctan", "erf"])
def test_the_search_for_a_tangent_arrives(name: str, dtype: torch.dtype) -> None:
    """Also over huge intervals: the upper line is as near as the best chord from the lower end, of many thousands."""
    op, _ = CURVES[name]
    sizes = 10 ** torch.linspace(-2, 20, 45)
    lower, upper = (end.flatten().to(dtype) for end in torch.meshgrid(-sizes, sizes, indexing="ij"))
    low, high = lower.double(), upper.double()
    above = activation.nearest_at(low, high, 1.0)[1]
    ends = 10 ** torch.linspace(-4, 14, 4001, dtype=F64)[:, None]
    ends = torch.minimum(torch.maximum(ends, above), high)
    value = op.forward(low)
    best = (value + (op.forward(ends) - value) * ((above - low) / (ends - low))).amax(0)
    found = op.adaptive(lower, upper)[1].double()
    reached = found * above + op.offset_range(found, low, high).upper
    assert float((reached - best).abs().max()) < 1e-5


class Entrywise(nn.Module):
    """A function of each entry as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


F = nn.functional
FUNCTIONS = (torch.sigmoid, torch.tanh, torch.arctan, torch.erf, F.gelu, F.silu, F.softplus, F.elu)


def margins(net: pc.Network, x: Tensor, y: Tensor, ball: pc.Ball) -> tuple[float, float]:
    """The mean worst margins by `parallel` and by `adaptive`."""
    found = [pc.certify(net, x, y, ball, relaxation=name, rigorous=False).margin for name in ("parallel", "adaptive")]
    return float(found[0].double().mean()), float(found[1].double().mean())


@pytest.mark.parametrize("eps", [0.03, 0.1])
@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_adaptive_lines_are_no_looser_than_parallel_ones(function, depth: int, eps: float) -> None:
    """In the mean over samples of random networks, whose lines depend on one another."""
    torch.manual_seed(depth)
    layers: list[nn.Module] = []
    for wide in [12, *[30] * (depth - 1)]:
        layers += [nn.Linear(wide, 30), Entrywise(function)]
    with torch.no_grad():
        for layer in layers[::2]:
            layer.weight.mul_(1.5)
    net = pc.capture(nn.Sequential(*layers, nn.Linear(30, 5)), (12,))
    x = torch.randn(20, 12)
    with torch.no_grad():
        y = net(x).argmax(1)
    plain, found = margins(net, x, y, pc.Ball(math.inf, eps))
    assert found >= plain - 1e-5 * (1 + abs(plain))


def test_a_deep_sigmoid_network_of_a_competition(shared: Path) -> None:
    """The tangents through the far ends alone would be looser than `parallel` by more than 50."""
    net = pc.load(shared / "vnn" / "eran_2021" / "onnx" / "ffnnSIGMOID__Point_6x200.onnx")
    sample = pc.data.load("mnist-sample")
    x, y = sample.x[:6].reshape(6, *net.input_shape), sample.y[:6]
    ball = pc.Ball(math.inf, 0.012, 0.0, 1.0)
    plain, found = margins(net, x, y, ball)
    assert found > plain + 5
