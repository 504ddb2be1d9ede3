"""Rigour: what `rigorous=True` claims is true of the real-valued network, checked in exact or longer arithmetic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polycert as pc
from polycert.bounding.relaxations import RELAXATIONS
from polycert.forms import Dense
from polycert.rules import Activation, Lines
from polycert.rules.piecewise_linear import LeakyRelu, Relu
from polycert.rules.s_shaped import Arctan, Tanh
from polycert.sets.interval import LIBRARY_ULPS, Interval, Rounding, difference_up, number_up, round_down, round_up
from tests.helpers.cases import CASES, EPS, NAMED, NORMS, PAIRS, Case, ball, fresh, in_double, inputs, ready, seed_of
from tests.helpers.solvers import exact_values

F32, F64 = torch.float32, torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- the library's functions ---------------------------------------------------------------------------------------

FUNCTIONS = {
    "tanh": (torch.tanh, np.tanh, mpmath.tanh),
    "atan": (torch.atan, np.arctan, mpmath.atan),
    "asinh": (torch.asinh, np.arcsinh, mpmath.asinh),
    "exp": (torch.exp, np.exp, mpmath.exp),
}


def ulps(got: Tensor, exact: np.ndarray) -> float:
    """The largest error in units in the last place."""
    values = got.numpy()
    return float(np.max(np.abs(values.astype(exact.dtype) - exact) / np.spacing(np.abs(values))))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_library_functions_are_as_accurate_as_assumed(name: str) -> None:
    ours, numpy, _ = FUNCTIONS[name]
    size = 10 ** (torch.rand(20_000, generator=generator()) * 8 - 6)
    points = torch.cat([size, -size]).clamp(-80, 80)
    exact = numpy(points.double().numpy())
    assert ulps(ours(points), exact) <= LIBRARY_ULPS
    singles = torch.stack([ours(p) for p in points[:200]])  # the path without vector instructions
    assert ulps(singles, exact[:200]) <= LIBRARY_ULPS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_library_functions_in_float64(name: str) -> None:
    ours, _, exact = FUNCTIONS[name]
    size = 10 ** (torch.rand(300, dtype=F64, generator=generator()) * 8 - 6)
    points = torch.cat([size, -size]).clamp(-80, 80)
    with mpmath.workdps(40):
        for point, got in zip(points.tolist(), ours(points).tolist(), strict=True):
            assert abs(mpmath.mpf(got) - exact(point)) <= LIBRARY_ULPS * float(np.spacing(abs(got)))


def test_powers_in_float64() -> None:
    base = torch.rand(200, dtype=F64, generator=generator())
    for power in (0.05, 0.5, 1.5, 3.0, 20.0):
        with mpmath.workdps(40):
            for point, got in zip(base.tolist(), (base**power).tolist(), strict=True):
                exact = mpmath.power(point, power)
                assert abs(mpmath.mpf(got) - exact) <= LIBRARY_ULPS * float(np.spacing(abs(got)))


# --- the lines around an activation --------------------------------------------------------------------------------


def leaky(leak: float) -> tuple[Activation, Callable, Callable]:
    """The rule, and the same function of arrays and of long numbers."""
    return (
        LeakyRelu((), leak),
        lambda z: np.where(z > 0, z, leak * z),
        lambda z: z if z > 0 else mpmath.mpf(leak) * z,
    )


ACTIVATIONS: dict[str, tuple[Activation, Callable, Callable]] = {
    "relu": (Relu(()), lambda z: np.maximum(z, 0), lambda z: max(z, 0)),
    "leaky 0": leaky(0.0),
    "leaky 0.1": leaky(0.1),
    "leaky -0.3": leaky(-0.3),
    "leaky 1.7": leaky(1.7),
    "tanh": (Tanh(()), np.tanh, mpmath.tanh),
    "sigmoid": (Tanh((), 0.5, 0.5, 0.5), lambda z: 0.5 + 0.5 * np.tanh(z / 2), lambda z: 1 / (1 + mpmath.exp(-z))),
    "arctan": (Arctan(()), np.arctan, mpmath.atan),
}


def intervals(dtype: torch.dtype, count: int) -> Interval:
    """Wide and narrow, near 0 and far away, on both sides and on one, some without width."""
    draw = generator(1)
    centre = 10 ** (torch.rand(count, generator=draw, dtype=dtype) * 6 - 4)
    centre = centre * torch.randint(-1, 2, (count,), generator=draw)
    width = 10 ** (torch.rand(count, generator=draw, dtype=dtype) * 9 - 7)
    width = torch.where(torch.rand(count, generator=draw) < 0.1, 0, width)
    lower, upper = centre - width, centre + width
    lower[:20], upper[20:40] = 0, torch.maximum(torch.zeros(20, dtype=dtype), lower[20:40])
    return Interval(torch.minimum(lower, upper), torch.maximum(lower, upper))


def with_error(lines: Lines) -> tuple[Tensor, Tensor]:
    """The offsets that are claimed: the rounding term taken off and added."""
    error = 0 if lines.error is None else lines.error
    return lines.lower_offset.double() - error, lines.upper_offset.double() + error


@pytest.mark.parametrize("relaxation", RELAXATIONS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_float32_lines_hold_at_every_point(name: str, relaxation: str) -> None:
    activation, function, _ = ACTIVATIONS[name]
    given = intervals(F32, 2000)
    lines = RELAXATIONS[relaxation](activation, given, Rounding(F32, 20))
    below, above = with_error(lines)
    for share in np.linspace(0, 1, 41):
        z = given.lower.double() + share * (given.upper.double() - given.lower.double())
        value = torch.as_tensor(function(z.numpy()))
        assert bool((lines.lower_slope.double() * z + below <= value).all())
        assert bool((value <= lines.upper_slope.double() * z + above).all())
    span = activation.interval(given, rounding=Rounding(F32, 20))
    for end in given:
        value = torch.as_tensor(function(end.double().numpy()))
        assert bool((span.lower.double() <= value).all())
        assert bool((value <= span.upper.double()).all())


@pytest.mark.parametrize("relaxation", RELAXATIONS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_float64_lines_hold_in_forty_digits(name: str, relaxation: str) -> None:
    activation, _, function = ACTIVATIONS[name]
    given = intervals(F64, 80)
    lines = RELAXATIONS[relaxation](activation, given, Rounding(F64, 20))
    with mpmath.workdps(40):
        for row in zip(*(values.tolist() for values in (*given, *lines)), strict=True):
            low, high, low_slope, low_offset, high_slope, high_offset, error = map(mpmath.mpf, row)
            for share in (0, mpmath.mpf("0.1"), mpmath.mpf("0.5"), mpmath.mpf("0.83"), 1):
                z = low + share * (high - low)
                assert low_slope * z + low_offset - error <= function(z) <= high_slope * z + high_offset + error


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_any_slope_is_sound(name: str) -> None:
    """`offset_range` makes the offsets of whatever slope a search comes up with."""
    activation, function, _ = ACTIVATIONS[name]
    given = intervals(F64, 3000)
    slope = torch.rand(3000, dtype=F64, generator=generator(2)) * 1.2 * getattr(activation, "outer", 1.0)
    slope = slope * getattr(activation, "inner", 1.0)
    found = activation.offset_range(slope, *given)
    for share in np.linspace(0, 1, 61):
        z = given.lower + share * (given.upper - given.lower)
        value = torch.as_tensor(function(z.numpy())) - slope * z
        slack = 1e-12 * (1 + (slope * z).abs())
        assert bool((found.lower <= value + slack).all())
        assert bool((value <= found.upper + slack).all())


def test_relu_is_leaky_with_leak_0() -> None:
    """Lines, intervals and gradients of the short way against those of the long one."""
    given = intervals(F64, 2000)
    ends = [end.clone().requires_grad_() for end in given]
    found = []
    for activation in (Relu(()), LeakyRelu(())):
        lines = RELAXATIONS["parallel"](activation, Interval(*ends), Rounding(F64, 20))
        weights = torch.randn(3, 2000, dtype=F64, generator=generator(3))
        total = sum((w * v).sum() for w, v in zip(weights, lines[:2] + lines[3:4], strict=True))
        slopes = torch.autograd.grad(total, ends)
        values = (*lines, *slopes, *activation.interval(given), activation.peak(*given))
        found.append([value.detach() for value in values])
    apart = (given.lower != 0) & (given.upper != 0)  # an end at the kink may have any slope
    for short, long in zip(*found, strict=True):
        assert torch.allclose(short[apart], long[apart], rtol=1e-9, atol=1e-9 * float(long.abs().max()))
    straight = (given.lower >= 0) | (given.upper <= 0)
    assert bool((found[0][3][straight] == 0).all())  # to the bit: such units leave the sums


@pytest.mark.parametrize("name", ["relu", "leaky 0", "leaky 0.1"])
@pytest.mark.parametrize("relaxation", RELAXATIONS)
@pytest.mark.parametrize("dtype", [F32, F64])
def test_lines_hold_for_ends_of_all_sizes(dtype: torch.dtype, relaxation: str, name: str) -> None:
    """Also where the width of the interval overflows, or the slope underflows: in exact arithmetic."""
    activation = ACTIVATIONS[name][0]
    assert isinstance(activation, LeakyRelu)
    most = math.log10(torch.finfo(dtype).max)
    powers = torch.rand(2, 2000, dtype=F64, generator=generator(5)) * 2 * most - most
    lower, upper = (-(10 ** powers[0])).to(dtype), (10 ** powers[1]).to(dtype)
    lines = RELAXATIONS[relaxation](activation, Interval(lower, upper), Rounding(dtype, 20))
    leak = Fraction(activation.leak)
    for row in zip(*(values.tolist() for values in (lower, upper, *lines)), strict=True):
        if not all(map(math.isfinite, row)):
            continue  # not a bound, and never taken for one
        low, high, low_slope, low_offset, high_slope, high_offset, error = map(Fraction, row)
        for z, value in ((low, leak * low), (Fraction(0), Fraction(0)), (high, high)):
            assert low_slope * z + low_offset - error <= value <= high_slope * z + high_offset + error


@pytest.mark.parametrize("ends", [(-1.0, math.inf), (-math.inf, 1.0), (math.nan, 1.0), (-1.0, math.nan)])
def test_ends_that_are_no_numbers_never_become_a_bound(ends: tuple[float, float]) -> None:
    slope, (low, high) = Relu(()).parallel(*(torch.tensor([end]) for end in ends))
    assert not bool(torch.isfinite(slope + low + high).any())


def test_relu_has_finite_gradients_where_the_ends_meet() -> None:
    ends = torch.tensor([0.0, 1.0, -1.0, 1e-40]).requires_grad_()
    slope, (_, high) = Relu(()).parallel(ends, ends)
    slopes = torch.autograd.grad((slope + high).sum(), ends)[0]
    assert torch.equal(slopes, torch.zeros(4))


# --- the input set -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, F64])
def test_the_box_holds_the_exact_ball(dtype: torch.dtype) -> None:
    x = torch.rand(4, 6, generator=generator(), dtype=dtype)
    x[0] = torch.tensor([0.0, 1.0, 1e-30, 0.1, 0.3, 1 - 1e-7], dtype=dtype)
    low, high = 0.1 - 1e-12, 1 + 1e-9
    x = x.clamp(min=0.1)
    for eps in (0.0, 1e-20, 1e-9, 0.1, 0.3, 1 / 3):
        region = pc.Ball(math.inf, eps, low, high).at(x)
        down, up = region.caps()
        for k, value in enumerate(x.flatten().tolist()):
            exact = Fraction(value)
            lowest = max(exact - Fraction(eps), Fraction(low))
            highest = min(exact + Fraction(eps), Fraction(high))
            assert Fraction(float(region.box.lower.flatten()[k])) <= lowest
            assert Fraction(float(region.box.upper.flatten()[k])) >= highest
            assert exact - Fraction(float(down.flatten()[k])) <= lowest
            assert exact + Fraction(float(up.flatten()[k])) >= highest
        assert Fraction(float(region.radius[0])) >= Fraction(eps)


def test_rounding_to_a_shorter_type_goes_one_way() -> None:
    values = torch.randn(1000, dtype=F64, generator=generator()) * 10 ** torch.randn(1000, dtype=F64)
    assert bool((round_down(values, F32).double() <= values).all())
    assert bool((round_up(values, F32).double() >= values).all())
    kept = values.float()
    assert torch.equal(round_down(kept.double(), F32), kept)
    assert [number_up(value, F32) for value in values.tolist()] == round_up(values, F32).tolist()


@pytest.mark.parametrize("dtype", [F32, F64])
def test_differences_are_rounded_up(dtype: torch.dtype) -> None:
    draw = generator(4)
    small = torch.finfo(dtype).tiny
    scale = torch.tensor([1.0, 1e-3, 1e-20, small, 4 * small, small * torch.finfo(dtype).eps]).to(dtype)
    pair = torch.rand(2, 300, len(scale), generator=draw, dtype=dtype) * scale
    pair[:, ::3] = pair[:, ::3].sort(0).values  # some close together, some equal
    pair[0, ::5] = pair[1, ::5]
    more, less = torch.maximum(*pair), torch.minimum(*pair)
    found = difference_up(more - less)
    for a, b, up in zip(more.flatten().tolist(), less.flatten().tolist(), found.flatten().tolist(), strict=True):
        assert Fraction(up) >= Fraction(a) - Fraction(b)
        assert (up == 0) == (a == b)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("minimum", ["open", "joint", "either"])
def test_concretised_rows_are_rounded_outward(norm: float, minimum: str) -> None:
    """One linear layer in float32 over ball and box, against float64."""
    net = nn.Linear(30, 8, bias=False)
    with torch.no_grad():
        net.weight.copy_(10 ** (torch.rand(8, 30, generator=generator(1)) * 6 - 3))
        net.weight.mul_(torch.randint(0, 2, (8, 30), generator=generator(2)) * 2 - 1)
    x = torch.rand(4, 30, generator=generator(3))
    for boxed in (False, True):
        set_ = ball(norm, boxed, minimum=minimum)
        with torch.no_grad():
            rough = pc.bounds(net, x, set_, rigorous=True)
            fine = pc.bounds(in_double(net), x.double(), set_)
        assert bool((rough.lower.double() < fine.lower).all())
        assert bool((rough.upper.double() > fine.upper).all())


# --- networks that cancel ------------------------------------------------------------------------------------------


@cache
def cancelling(seed: int, dtype: torch.dtype = F32) -> tuple[nn.Sequential, pc.Network, Tensor]:
    """Weights of 1e4 and -1e4 whose sum is next to nothing, so that rounding decides the class."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(dtype)
        x = torch.rand(1, 3, dtype=dtype)
    with torch.no_grad():
        module[0].weight.mul_(1e4)
        module[2].weight.mul_(1e4)
        margin = exact_margin(module, fractions(x[0]), 0)
        scale = 8 * torch.finfo(dtype).eps * float(module[2].weight.abs().sum()) * float(module[0].weight.abs().max())
        wanted = (seed % 7 - 3) / 3 * scale
        module[2].bias.copy_(torch.tensor([wanted - float(margin), 0.0], dtype=dtype) + module[2].bias)
    return module, pc.capture(module, (3,)), x


def fractions(x: Tensor) -> list[Fraction]:
    return [Fraction(v) for v in x.tolist()]


def exact_margin(module: nn.Sequential, x: list[Fraction], label: int) -> Fraction:
    values = exact_values(module, x)
    return values[label] - max(v for k, v in enumerate(values) if k != label)


@pytest.mark.parametrize("norm", [1, 1.3, 2, 2.0098, 5, 100])
@pytest.mark.parametrize(("dtype", "smallest"), [(F32, -30), (F64, -250)])
def test_rounded_exponents_are_covered(dtype: torch.dtype, smallest: int, norm: float) -> None:
    """The largest coefficient cannot move; the root of a tiny power of the other is off by its logarithm."""
    ratio = torch.tensor([10.0**k for k in range(smallest, 0, 3)], dtype=dtype)
    form = Dense(torch.stack([torch.ones_like(ratio), ratio], 1)[None])
    low, high = torch.tensor([0.0, -2.0]), torch.tensor([0.0, 2.0])
    region = pc.Ball(norm, 1.0, low, high).at(torch.zeros(1, 2, dtype=dtype))
    lower, upper = region.concretise(form, Rounding(dtype, 28))
    assert bool((upper >= ratio).all())
    assert bool((lower <= -ratio).all())


def test_fast_mode_can_be_wrong_and_rigorous_mode_is_not() -> None:
    wrong = certified = 0
    for seed in range(40):
        module, net, x = cancelling(seed)
        for label in (0, 1):
            truth = exact_margin(module, fractions(x[0]), label) > 0
            y = torch.tensor([label])
            fast = pc.certify(net, x, y, pc.Ball(math.inf, 0.0), rigorous=False)
            sure = pc.certify(net, x, y, pc.Ball(math.inf, 0.0), rigorous=True)
            wrong += bool(fast.certified[0]) and not truth
            certified += bool(sure.certified[0])
            assert truth or not bool(sure.certified[0])
    assert wrong > 0, "the networks do not cancel enough to show anything"
    assert certified > 20, "float64 decides nearly all of them"


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("dtype", [F32, F64])
def test_rigorous_bounds_hold_the_exact_value(pair: tuple[str, str], dtype: torch.dtype) -> None:
    fast_misses = 0
    for seed in range(8):
        module, net, x = cancelling(seed, dtype)
        for eps in (0.0, 1e-3):
            set_ = pc.Ball(math.inf, eps)
            with torch.no_grad():
                sure = pc.bounds(net, x, set_, method=pair[0], relaxation=pair[1], rigorous=True)
                fast = pc.bounds(net, x, set_, method=pair[0], relaxation=pair[1])
            for signs in itertools.product((-1, 1), repeat=3):
                point = [v + s * Fraction(eps) for v, s in zip(fractions(x[0]), signs, strict=True)]
                for k, value in enumerate(exact_values(module, point)):
                    assert Fraction(float(sure.lower[0, k])) <= value <= Fraction(float(sure.upper[0, k]))
                    fast_misses += not Fraction(float(fast.lower[0, k])) <= value <= Fraction(float(fast.upper[0, k]))
    assert fast_misses > 0


DIRECTIONS = {
    1: [(1, 0, 0), (0, -1, 0), (0, 0, 1), (Fraction(1, 2), Fraction(-1, 2), 0)],
    2: [(1, 0, 0), (Fraction(3, 5), Fraction(-4, 5), 0), (Fraction(2, 3), Fraction(1, 3), Fraction(-2, 3)), (0, 0, -1)],
    math.inf: list(itertools.product((-1, 1), repeat=3)),
}


@pytest.mark.parametrize("norm", DIRECTIONS)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_certified_radii_hold_in_exact_arithmetic(norm: float, pair: tuple[str, str]) -> None:
    """Points at exactly the certified radius, along rational directions of length 1."""
    seen = 0
    for seed in range(6):
        module, net, x = cancelling(seed)
        for scale in (1e-8, 1e-5):
            certs = pc.certify(net, x, None, pc.Ball(norm, scale), method=pair[0], relaxation=pair[1])
            radius = Fraction(float(certs.radius[0]))
            if radius == 0:
                continue
            seen += 1
            for direction in DIRECTIONS[norm]:
                point = [v + radius * d for v, d in zip(fractions(x[0]), direction, strict=True)]
                assert exact_margin(module, point, int(certs.label[0])) > 0
    assert seen > 0


@pytest.mark.parametrize("norm", [1, 2, 3, math.inf])
def test_the_radius_of_a_linear_net_is_just_below_the_truth(norm: float) -> None:
    """In one dimension every norm is the absolute value, and the border is a rational number."""
    for seed in range(6):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module, x = nn.Sequential(nn.Linear(1, 2)), torch.rand(1, 1)
        net = pc.capture(module, (1,))
        for box in ((None, None), (0.0, 1.0)):
            certs = pc.certify(net, x, None, pc.Ball(norm, 5.0, *box))
            label = int(certs.label[0])
            weight = [Fraction(v) for v in module[0].weight.flatten().tolist()]
            gap = exact_margin(module, fractions(x[0]), label)
            truth = gap / abs(weight[label] - weight[1 - label])
            assert Fraction(float(certs.radius[0])) < truth or bool(certs.certified[0])
            if not bool(certs.certified[0]):
                assert float(certs.radius[0]) == pytest.approx(float(truth), rel=1e-3)


class Branches(nn.Module):
    """a x + b x + c x, where the first two sum to large numbers that the third takes away."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 3, bias=False) for _ in range(3))
        with torch.no_grad():
            for layer, seed in ((self.a, 1), (self.b, 2)):
                layer.weight.copy_(torch.rand(3, 4, generator=generator(seed)) * 1e4 + 1e4)
            self.c.weight.copy_(-(self.a.weight + self.b.weight))

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x) + self.c(x)


class Composed(Branches):
    """The same function, its weights added up before they are used."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.a.weight + self.b.weight + self.c.weight)


@pytest.mark.parametrize("method", ["ibp", "forward", "crown", "crown-ibp"])
@pytest.mark.parametrize("make", [Branches, Composed])
def test_weights_that_cancel_in_the_network_itself(make: type[nn.Module], method: str) -> None:
    """Weights that the program computes may be refused; a bound that is given must hold."""
    module, x = make(), torch.rand(5, 4, generator=generator())
    with torch.no_grad():
        exact = in_double(module)(x.double())
        try:
            found = pc.bounds(module, x, pc.Ball(math.inf, 0.0), method=method, rigorous=True)
        except pc.PolycertError:
            assert make is Composed
            return
    assert bool((found.lower.double() <= exact).all())
    assert bool((exact <= found.upper.double()).all())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rigorous_bounds_hold_for_wild_weights(case: Case) -> None:
    """Every op with weights over six orders of magnitude; float64 is the judge."""
    module = fresh(case, F32)
    sizes = generator(seed_of(case))
    with torch.no_grad():
        for name, values in [*module.named_parameters(), *module.named_buffers()]:
            if values.is_floating_point() and "var" not in name and "std" not in name:
                values.mul_(10 ** float(torch.rand(1, generator=sizes) * 5.5 - 2))
    net, x, exact = pc.capture(module, case.shape), inputs(case, F32), in_double(module)
    for k, (method, relaxation) in enumerate(PAIRS[CASES.index(case) % 2 :: 2]):
        norm = NORMS[(CASES.index(case) + k) % len(NORMS)]
        for eps in (0.0, EPS[norm] * 1e-3):
            set_ = ball(norm, eps=eps)
            region = set_.at(x.double())
            points = torch.stack([region.x, *(region.x + (region.sample(4, generator()) - region.x) * (1 - 1e-12))])
            with torch.no_grad():
                found = pc.bounds(net, x, set_, method=method, relaxation=relaxation, rigorous=True)
                outputs = exact(points.flatten(0, 1)).unflatten(0, points.shape[:2])
            assert bool((outputs >= found.lower.double()).all())
            assert bool((outputs <= found.upper.double()).all())


def test_inputs_longer_than_the_network_are_not_rounded_away() -> None:
    """The claim is about the x that was given, not about its nearest float32."""
    net = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[7.0, -1.0], [0.0, 0.0]]))
    x = torch.tensor([[0.1, 0.7 + 1e-8]], dtype=F64)  # the margin is -1e-8, but 2e-8 at the nearest float32
    certs = pc.certify(net, x, torch.tensor([0]), pc.Ball(math.inf, 0.0))
    assert not bool(certs.certified[0])


@pytest.mark.parametrize("norm", [300.0, 1000.0])
def test_a_large_norm_does_not_certify_by_underflow(norm: float) -> None:
    """eps ** norm leaves the range of float64 long before eps is small."""
    module = nn.Linear(4, 2).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, -0.5, 0.3, 0.2], [-1.0, 0.5, 0.1, 0.0]], dtype=F64))
        module.bias.zero_()
    net, x = pc.capture(module, (4,)), torch.tensor([[0.3, 0.5, 0.5, 0.5]], dtype=F64)
    for exponent in np.linspace(-324, -300, 25):
        eps = 10 ** (exponent / norm)
        certs = pc.certify(net, x, torch.tensor([0]), pc.Ball(norm, eps, 0.0, 1.0))
        truth = pc.certify(net, x, torch.tensor([0]), pc.Ball(math.inf, eps * 4 ** (-1 / norm), 0.0, 1.0))
        assert float(certs.margin[0]) <= float(truth.margin[0]) + 1e-9
        assert float(certs.radius[0]) <= float(truth.radius[0]) * 4 ** (1 / norm) + 1e-9


# --- rigour against speed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(F32, 1e-4), (F64, 1e-11)], ids=["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rigorous_results_are_a_little_below_the_fast_ones(case: Case, dtype: torch.dtype, tolerance: float) -> None:
    net, x = ready(case, dtype).net, inputs(case, dtype, 4)
    norm = NORMS[CASES.index(case) % len(NORMS)]
    sure, fast = (pc.certify(net, x, None, ball(norm), rigorous=flag) for flag in (True, False))
    assert bool((sure.radius <= fast.radius + tolerance).all())
    assert bool((sure.margin <= fast.margin + tolerance).all())
    torch.testing.assert_close(sure.margin, fast.margin, rtol=10 * tolerance, atol=10 * tolerance)
    if dtype == F64:  # the order is strict where both come from the same arithmetic
        assert bool((sure.margin <= fast.margin).all())


def test_near_ties_are_decided_in_float64() -> None:
    """A margin of a few units in the last place: inside the float32 term, far outside that of float64."""
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.copy_(torch.eye(2))
        net.bias.zero_()
    near = torch.nextafter(torch.tensor(0.5), torch.tensor(1.0))
    x = torch.tensor([[near, 0.5], [0.9, 0.1], [0.5, near], [0.5, 0.5]])
    certs = pc.certify(net, x, torch.zeros(4, dtype=torch.long), pc.Ball(math.inf, 0.0))
    assert certs.dtype[:2] == ("float64", "float32")
    assert certs.certified.tolist() == [True, True, False, False]
    assert certs.to_frame()["dtype"].tolist() == list(certs.dtype)
    fast = pc.certify(net, x, None, pc.Ball(math.inf, 0.0), rigorous=False)
    assert set(fast.dtype) == {"float32"}
    assert set(pc.certify(net.double(), x.double(), None, pc.Ball(math.inf, 0.0)).dtype) == {"float64"}


def test_short_products_are_not_trusted() -> None:
    """With reduced-precision products allowed, a rigorous run works in float64 from the start."""
    net, x = ready(NAMED["linear"], F32).net, inputs(NAMED["linear"], F32)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        certs = pc.certify(net, x, None, ball(2))
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(certs.dtype) == {"float64"}


def test_a_box_never_shrinks_in_a_shorter_type() -> None:
    """float32 rounds 0.1 up and 0.7 down: to the nearest, the box would lose points."""
    wide = pc.Ball(math.inf, 0.9, 0.1, 0.7).at(torch.full((1, 2), 0.5, dtype=F64))
    short = wide.to(F32)
    assert bool((short.low.double() <= wide.low).all())
    assert bool((short.high.double() >= wide.high).all())


def test_computed_weights_are_refused_for_inputs_of_any_type() -> None:
    module = Composed()
    for x in (torch.rand(2, 4), torch.full((2, 4), 0.1, dtype=F64)):
        with pytest.raises(pc.PolycertError, match="stored weights"):
            pc.bounds(module, x, pc.Ball(2, 0.1), rigorous=True)
