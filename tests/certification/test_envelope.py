"""Distances to the envelope against closed forms and linear programs; the corners of `certify`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import polycert as pc
from polycert.certification.envelope import Envelope
from polycert.forms import Dense
from tests.helpers.solvers import norm_of

F64 = torch.float64
NORMS = [1, 1.5, 2, 3, math.inf]
DUAL = {1: math.inf, 1.5: 3.0, 2: 2.0, 3: 1.5, math.inf: 1.0}


def half_spaces(
    slope: object, offset: object, x: object, norm: float, low: object = None, high: object = None, eps: float = 0.5
) -> Envelope:
    """An envelope written down by hand: rows `slope . x + offset` around one sample."""
    slope = torch.as_tensor(np.asarray(slope, dtype=float)).unsqueeze(0)
    offset = torch.as_tensor(np.asarray(offset, dtype=float)).unsqueeze(0)
    x = torch.as_tensor(np.asarray(x, dtype=float)).unsqueeze(0)
    classes = torch.arange(1, slope.shape[1] + 1).unsqueeze(0)
    return Envelope(slope, offset, classes, pc.Ball(norm, eps, low, high).at(x))


def random_rows(seed: int, rows: int = 6, size: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, size)
    slope = rng.normal(size=(rows, size))
    slope[0, 0] = 0.0
    return slope, rng.uniform(-0.5, 1.5, rows) - slope @ x, x


# --- distances -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", NORMS)
def test_without_a_box_the_distance_is_lemma_1(norm: float) -> None:
    slope, offset, x = random_rows(0)
    gap = slope @ x + offset
    expected = gap / np.linalg.norm(slope, DUAL[norm], axis=1)
    env = half_spaces(slope, offset, x, norm)
    assert env.distances()[0].tolist() == pytest.approx(np.maximum(expected, 0).tolist(), rel=1e-9)
    assert env.distances(signed=True)[0].tolist() == pytest.approx(expected.tolist(), rel=1e-9)
    assert bool((gap < 0).any())
    assert bool((gap > 0).any())


def rooms(slope: np.ndarray, x: np.ndarray, low: float, high: float, falling: bool = True) -> np.ndarray:
    return np.where((slope > 0) == falling, x - low, high - x)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("seed", range(4))
def test_in_a_box_the_distance_is_that_of_an_independent_solver(norm: float, seed: int) -> None:
    slope, offset, x = random_rows(seed)
    gap = slope @ x + offset
    env = half_spaces(slope, offset, x, norm, 0.0, 1.0)
    for row, (a, b) in enumerate(zip(slope, gap, strict=True)):
        expected = norm_of(np.abs(a), rooms(a, x, 0, 1), b, norm)
        assert float(env.distances()[0, row]) == pytest.approx(expected, rel=1e-8)
        if b > 0 and math.isfinite(expected):
            assert float(env.distances(signed=True)[0, row]) == pytest.approx(expected, rel=1e-8)
        if b < 0:
            back = norm_of(np.abs(a), rooms(a, x, 0, 1, falling=False), -b, norm)
            back = -b / np.linalg.norm(a, DUAL[norm]) if math.isinf(back) else back
            assert float(env.distances(signed=True)[0, row]) == pytest.approx(-back, rel=1e-8)


@pytest.mark.parametrize("norm", NORMS)
def test_margins_are_the_minimum_over_ball_and_box(norm: float) -> None:
    """The distance d to a row solves margin(d) = 0."""
    slope, offset, x = random_rows(5)
    env = half_spaces(slope, offset, x, norm, 0.0, 1.0)
    for row, distance in enumerate(env.distances()[0].tolist()):
        if distance == 0 or math.isinf(distance):
            continue
        touching = half_spaces(slope, offset, x, norm, 0.0, 1.0, eps=distance).margins()[0, row]
        assert float(touching) == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("norm", NORMS)
def test_a_hyperplane_that_misses_the_box_is_infinitely_far(norm: float) -> None:
    env = half_spaces([[1.0, 1.0], [1.0, -1.0]], [0.5, 5.0], [0.3, 0.6], norm, 0.0, 1.0)
    assert all(math.isinf(d) for d in env.distances()[0].tolist())
    signed = env.distances(signed=True)[0]
    assert bool(torch.isfinite(signed).all())
    assert bool((signed > 1e3).all())


@pytest.mark.parametrize("norm", NORMS)
def test_a_box_that_lies_outside_the_half_space(norm: float) -> None:
    """No point of the box is inside: the signed distance falls back to Lemma 1."""
    slope, gap = np.array([[1.0, 2.0]]), np.array([-9.0])
    env = half_spaces(slope, gap - slope @ [0.3, 0.6], [0.3, 0.6], norm, 0.0, 1.0)
    assert env.distances()[0].tolist() == [0.0]
    assert float(env.distances(signed=True)[0, 0]) == pytest.approx(-9.0 / np.linalg.norm(slope[0], DUAL[norm]))


@pytest.mark.parametrize("box", [(None, None), (0.0, 1.0)])
@pytest.mark.parametrize("norm", NORMS)
def test_a_row_of_zeros(norm: float, box: tuple) -> None:
    env = half_spaces(np.zeros((3, 2)), [0.7, -0.7, 0.0], [0.3, 0.6], norm, *box)
    assert env.distances()[0].tolist() == [math.inf, 0.0, 0.0]
    signed = env.distances(signed=True)[0].tolist()
    assert all(math.isfinite(d) for d in signed)
    assert signed[0] > 1e3
    assert signed[1] < -1e3
    assert env.margins()[0].tolist() == [0.7, -0.7, 0.0]


@pytest.mark.parametrize("norm", NORMS)
def test_a_box_without_width_and_zero_coefficients(norm: float) -> None:
    """The second coordinate cannot move, the third does not matter."""
    env = half_spaces([[1.0, 5.0, 0.0]], [0.1], [0.3, 0.5, 0.2], norm, [0.0, 0.5, 0.0], [1.0, 0.5, 1.0])
    gap = 0.3 + 2.5 + 0.1
    assert math.isinf(float(env.distances()[0, 0]))
    env = half_spaces([[10.0, 5.0, 0.0]], [-3.3], [0.3, 0.5, 0.2], norm, [0.0, 0.5, 0.0], [1.0, 0.5, 1.0])
    assert float(env.distances()[0, 0]) == pytest.approx((3.0 + 2.5 - 3.3) / 10)
    point = half_spaces([[1.0, 5.0, 0.0]], [0.1], [0.3, 0.5, 0.2], norm, [0.3, 0.5, 0.2], [0.3, 0.5, 0.2])
    assert math.isinf(float(point.distances()[0, 0]))
    assert float(point.margins()[0, 0]) == pytest.approx(gap)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("box", [(None, None), (0.0, 1.0), (0.3, 0.3), (0.0, None)])
def test_signed_distances_have_finite_gradients_everywhere(norm: float, box: tuple) -> None:
    slope = torch.tensor([[[1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [-2.0, 3.0], [1e-9, 0.0]]], dtype=F64)
    for gap in (9.0, 0.4, 0.0, -0.4, -9.0):
        at = slope.clone().requires_grad_()
        x = torch.full((1, 2), 0.3, dtype=F64)
        offset = (gap - (slope @ x[0])).requires_grad_()
        env = Envelope(at, offset, torch.arange(6)[None], pc.Ball(norm, 0.5, *box).at(x))
        signed = env.distances(signed=True)
        assert bool(torch.isfinite(signed).all())
        assert bool(((signed.sign() - math.copysign(float(gap != 0), gap)).abs() < 2).all())
        signed.clamp(max=100.0).sum().backward()
        assert bool(torch.isfinite(at.grad).all())
        assert bool(torch.isfinite(offset.grad).all())


def test_distances_from_another_point() -> None:
    slope, offset, x = random_rows(2)
    env = half_spaces(slope, offset, x, 2, 0.0, 1.0)
    other = np.clip(x + 0.1, 0, 1)
    moved = half_spaces(slope, offset, other, 2, 0.0, 1.0)
    found = env.distances_from(torch.as_tensor(other)[None])
    assert torch.equal(found, moved.distances(signed=True))


# --- certify -------------------------------------------------------------------------------------------------------


def linear(weight: object, bias: object) -> nn.Linear:
    """A linear classifier, for which every distance has a closed form."""
    weight = torch.as_tensor(np.asarray(weight, dtype=float))
    layer = nn.Linear(weight.shape[1], weight.shape[0]).double()
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(torch.as_tensor(np.asarray(bias, dtype=float)))
    return layer


def fifty() -> tuple[nn.Linear, Tensor]:
    rng = np.random.default_rng(4)
    return linear(rng.normal(size=(50, 6)), rng.normal(size=50)), torch.as_tensor(rng.uniform(0, 1, (5, 6)))


@cache
def hidden_fifty() -> tuple[nn.Sequential, pc.Network, Tensor]:
    last, x = fifty()
    first = linear(np.random.default_rng(5).normal(size=(6, 6)), np.zeros(6))
    module = nn.Sequential(first, nn.Tanh(), last)
    return module, pc.capture(module, (6,)), x


@pytest.mark.parametrize("norm", NORMS)
def test_a_linear_classifier_with_50_classes(norm: float) -> None:
    net, x = fifty()
    weight, values = net.weight.detach().numpy(), net(x).detach().numpy()
    certs = pc.certify(net, x, None, pc.Ball(norm, 10.0, 0.0, 1.0))
    for k in range(len(x)):
        y = int(values[k].argmax())
        distances = {
            c: norm_of(
                np.abs(weight[y] - weight[c]),
                rooms(weight[y] - weight[c], x[k].numpy(), 0, 1),
                float(values[k, y] - values[k, c]),
                norm,
            )
            for c in range(50)
            if c != y
        }
        nearest = min(distances, key=distances.__getitem__)
        assert float(certs.radius[k]) == pytest.approx(distances[nearest], rel=1e-8)
        assert int(certs.nearest[k]) == nearest
        assert float(certs.radius[k]) <= distances[nearest] * (1 + 1e-9)


@pytest.mark.parametrize("method", ["ibp", "forward", "crown", "crown-ibp"])
def test_two_classes_and_ties(method: str) -> None:
    """x is class 0 right of the line, class 1 left of it, neither on it."""
    net = linear([[1.0, 0.0], [-1.0, 0.0]], [-0.5, 0.5])
    x = torch.tensor([[0.8, 0.1], [0.2, 0.9], [0.5, 0.5]], dtype=F64)
    label = torch.tensor([0, 1, 0])
    certs = pc.certify(net, x, label, pc.Ball(math.inf, 0.2, 0.0, 1.0), method=method)
    assert certs.certified.tolist() == [True, True, False]
    assert certs.radius.tolist() == pytest.approx([0.2, 0.2, 0.0])
    wide = pc.certify(net, x, label, pc.Ball(math.inf, 0.4, 0.0, 1.0), method=method)
    assert wide.certified.tolist() == [False, False, False]
    assert wide.radius.tolist() == pytest.approx([0.3, 0.3, 0.0], rel=1e-6)
    assert bool((wide.radius[:2] <= 0.3).all())
    on_the_line = pc.certify(net, x[2:], None, pc.Ball(2, 0.0), method=method)
    assert on_the_line.certified.tolist() == [False]
    assert on_the_line.radius.tolist() == [0.0]


def test_a_distance_that_equals_eps_is_not_certified() -> None:
    """At distance eps there is a tie, and ties fail."""
    net = linear([[1.0], [-1.0]], [-0.5, 0.5])
    x = torch.tensor([[0.75]], dtype=F64)
    for rigorous in (False, True):
        certs = pc.certify(net, x, torch.tensor([0]), pc.Ball(math.inf, 0.25), rigorous=rigorous)
        assert certs.certified.tolist() == [False]


@pytest.mark.parametrize("norm", NORMS)
def test_a_misclassified_sample_has_radius_0(norm: float) -> None:
    net, x = fifty()
    wrong = (net(x).argmax(1) + 1) % 50
    certs = pc.certify(net, x, wrong, pc.Ball(norm, 0.1, 0.0, 1.0))
    assert certs.radius.tolist() == [0.0] * 5
    assert not bool(certs.certified.any())
    assert bool((certs.margin < 0).all())
    assert certs.to_frame()["status"].tolist() == ["misclassified"] * 5


def test_no_label_means_the_prediction() -> None:
    net, x = fifty()
    own = net(x).argmax(1)
    first = pc.certify(net, x, None, pc.Ball(2, 0.3, 0.0, 1.0))
    second = pc.certify(net, x.numpy(), own.numpy(), pc.Ball(2, 0.3, 0.0, 1.0))
    assert torch.equal(first.label, own)
    assert torch.equal(first.radius, second.radius)
    env = pc.envelope(net, x, None, pc.Ball(2, 0.3, 0.0, 1.0))
    assert not bool((env.classes == own[:, None]).any())
    assert env.slope.shape == (5, 49, 6)


@pytest.mark.parametrize("norm", NORMS)
def test_one_eps_per_sample(norm: float) -> None:
    _, module, x = hidden_fifty()
    eps = torch.tensor([0.0, 0.05, 0.1, 0.2, 1.0], dtype=F64)
    together = pc.certify(module, x, None, pc.Ball(norm, eps, 0.0, 1.0), batch_size=2)
    assert torch.equal(together.eps, eps)
    for k in range(5):
        alone = pc.certify(module, x[k : k + 1], None, pc.Ball(norm, float(eps[k]), 0.0, 1.0))
        assert float(together.radius[k]) == pytest.approx(float(alone.radius[0]), rel=1e-12)
        assert float(together.margin[k]) == pytest.approx(float(alone.margin[0]), rel=1e-12)
    with pytest.raises(pc.PolycertError, match="one per sample"):
        pc.certify(module, x, None, pc.Ball(norm, eps[:3], 0.0, 1.0))


@pytest.mark.parametrize("norm", NORMS)
def test_a_box_per_pixel(norm: float) -> None:
    """Normalised inputs: each channel has its own range; the same as the raw picture behind a normalising layer."""
    mean, std = torch.tensor([0.4, 0.6], dtype=F64), torch.tensor([0.25, 0.25], dtype=F64)
    body = nn.Sequential(nn.Conv2d(2, 2, 2).double(), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3).double())
    raw = nn.Sequential(Normal(mean, std), body)
    x = torch.rand(3, 2, 3, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    x[0, :, 0] = 0.0
    inner = pc.certify(raw, x, None, pc.Ball(norm, 0.1, 0.0, 1.0), rigorous=False)
    shape = (2, 1, 1)
    low, high = ((v - mean.reshape(shape)) / std.reshape(shape) for v in (0.0, 1.0))
    scaled = ((x - mean.reshape(shape)) / std.reshape(shape)).clamp(low, high)
    set_ = pc.Ball(norm, 0.4, low.expand(2, 3, 3), high.numpy())
    outer = pc.certify(body, scaled, None, set_, rigorous=False)
    torch.testing.assert_close(outer.radius * 0.25, inner.radius, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(outer.margin, inner.margin, rtol=1e-9, atol=1e-9)


def test_arrays_of_all_kinds() -> None:
    """Reversed, of another byte order, with unsigned labels: the same numbers, the same answers."""
    net, x, y = nn.Linear(3, 4), np.random.default_rng(0).random((5, 3), dtype=np.float32), np.array([0, 3, 1, 2, 0])
    ball = pc.Ball(eps=0.1)
    expected = pc.certify(net, x, y, ball).radius
    assert torch.equal(pc.certify(net, x[::-1], y[::-1], ball).radius, expected.flip(0))
    assert torch.equal(pc.certify(net, x.astype(">f4"), y.astype(np.uint16), ball).radius, expected)
    with pytest.raises(pc.PolycertError, match="real"):
        pc.certify(net, x.astype(complex), y, ball)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pc.Ball(norm="inf"), "norm must be"),  # type: ignore[arg-type]
        (lambda: pc.Ball(low=torch.zeros(3), high=torch.ones(4)), "differ in shape"),
        (lambda: pc.attack(nn.Linear(2, 2), torch.rand(1, 2), None, pc.Ball(eps=0.1), steps=0), "at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(pc.PolycertError, match=words):
        make()


def test_balls_of_norms_near_1_mind_the_box() -> None:
    """A smaller ball has tighter bounds, and coordinates without room do not count, down to p = 1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(20, 30, dtype=F64, generator=generator).mul_(3).sub_(1).clamp_(0, 1)
    form = Dense(torch.randn(1, 40, 30, dtype=F64, generator=generator))
    before = torch.full((20, 40), -math.inf, dtype=F64)
    for norm in (1.3, 1.05, 1.02, 1 + 1e-9, 1):
        joint, boxed, either = (
            pc.Ball(norm, 0.4, 0.0, 1.0, minimum=minimum).at(x).concretise(form)[0]
            for minimum in ("joint", "open", "either")
        )
        assert bool((joint >= boxed - 1e-9).all())
        assert bool((boxed >= either - 1e-9).all())
        assert bool((boxed >= before - 1e-9).all())
        assert float((boxed > either + 1e-3).double().mean()) > 0.2  # a largest entry without room
        before = boxed


@pytest.mark.parametrize("norm", [1, 1.02, 1.05, 1.1])
def test_gradients_stay_finite_where_the_largest_coefficient_cannot_move(norm: float) -> None:
    """Powers of the others nearly underflow, and the root of almost nothing is steep."""
    x, low, high = torch.zeros(1, 3), torch.tensor([0.0, -5.0, -5.0]), torch.tensor([0.0, 5.0, 5.0])
    for scale in (1.0, 1e4, 1e6, 1e12):
        coef = (torch.tensor([[[1.0, 0.012, 0.012]]]) * scale).requires_grad_()
        lower, upper = pc.Ball(norm, 1.0, low, high).at(x).concretise(Dense(coef))
        (upper - lower).sum().backward()
        assert bool(torch.isfinite(coef.grad).all())


class Normal(nn.Module):
    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean.reshape(-1, 1, 1)) / self.std.reshape(-1, 1, 1)


@pytest.mark.parametrize("minimum", ["open", "joint", "either"])
@pytest.mark.parametrize("box", [(0.0, None), (None, 1.0), (-math.inf, 1.0), (0.0, math.inf)])
@pytest.mark.parametrize("norm", NORMS)
def test_half_open_boxes(norm: float, box: tuple, minimum: str) -> None:
    """Open on one side: never better than closed, never worse than no box, and sound."""
    module, net, x = hidden_fifty()
    half, closed, none = (
        pc.certify(net, x, None, pc.Ball(norm, 0.1, *sides, minimum=minimum))
        for sides in (box, (0.0, 1.0), (None, None))
    )
    assert bool((half.radius >= 0).all())
    assert bool(torch.isfinite(half.margin).all())
    points = pc.Ball(norm, 0.1, *box).at(x).sample(40, torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs = module(points.flatten(0, 1)).unflatten(0, points.shape[:2])
    own = outputs.gather(2, half.label.expand(40, -1)[..., None])
    rest = outputs.scatter(2, half.label.expand(40, -1)[..., None], -math.inf).amax(2)
    assert bool((own.squeeze(2) - rest >= half.margin - 1e-9).all())
    assert bool((half.margin <= closed.margin + 0.05).all())
    assert bool((half.margin >= none.margin - 0.05).all())


def test_bad_requests_are_refused_in_a_sentence() -> None:
    net, x = fifty()
    ball = pc.Ball(2, 0.1, 0.0, 1.0)
    with pytest.raises(pc.PolycertError, match="outside the box"):
        pc.certify(net, x + 1, None, ball)
    with pytest.raises(pc.PolycertError, match="integers"):
        pc.certify(net, x, torch.zeros(5), ball)
    with pytest.raises(pc.PolycertError, match="labels must be in"):
        pc.certify(net, x, torch.full((5,), 50), ball)
    with pytest.raises(pc.PolycertError, match="NaN"):
        pc.certify(net, x * math.nan, None, pc.Ball(2, 0.1))
    with pytest.raises(pc.PolycertError, match="takes"):
        pc.certify(pc.capture(net, (6,)), x[:, :3], None, ball)
    with pytest.raises(pc.PolycertError, match="shape"):
        pc.certify(net, x, None, pc.Ball(2, 0.1, torch.zeros(4), 1.0))
    with pytest.raises(pc.PolycertError, match="at least 2"):
        pc.certify(nn.Linear(6, 1).double(), x, None, ball)
    for bad in ({"norm": 0.5}, {"norm": math.nan}, {"eps": -1.0}, {"eps": math.inf}, {"low": 1.0, "high": 0.0}):
        with pytest.raises(pc.PolycertError):
            pc.Ball(**{"norm": 2, "eps": 0.1, **bad})
    for options in ({"method": "magic"}, {"relaxation": "magic"}, {"method": "forward", "relaxation": "adaptive"}):
        with pytest.raises(pc.PolycertError):
            pc.certify(net, x, None, ball, **options)
