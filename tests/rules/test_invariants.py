"""What must hold for every op, method, norm and type: the registry of `cases.py` times the laws of the subject."""

from __future__ import annotations

import copy
import math
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import polycert as pc
from polycert.bounding.backward import Pass
from polycert.forms import Dense, Form, Identity, Selected
from polycert.rules import Affine, Linear
from polycert.rules.conv2d import Conv2d
from polycert.sets.ball import Region
from polycert.sets.interval import Interval
from tests.helpers.cases import (
    CASES,
    CONVOLUTIONS,
    EPS,
    METHODS,
    NAMED,
    NORMS,
    PAIRS,
    Case,
    ball,
    first_hidden,
    fresh,
    hidden,
    in_double,
    inputs,
    ready,
)
from tests.helpers.solvers import Piecewise, size

F32, F64 = torch.float32, torch.float64
TOLERANCES = pytest.mark.parametrize(("dtype", "tolerance"), [(F32, 1e-5), (F64, 1e-12)], ids=["float32", "float64"])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, dtype: torch.dtype = F64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=generator(seed))


# --- soundness on points -------------------------------------------------------------------------------------------


def gradient_points(module: nn.Module, region: Region, steps: int = 2) -> list[Tensor]:
    """Points of the set that make each output small or large: steps by sign, by size, and along one coordinate."""
    found = []
    start = region.x.clone()
    classes = module(start).shape[1]
    for output in range(min(classes, 3)):
        for sign in (-1, 1):
            points = [start, start, start]
            for _ in range(steps):
                for k, point in enumerate(points):
                    at = point.clone().requires_grad_()
                    (grad,) = torch.autograd.grad(module(at)[:, output].sum(), at)
                    points[k] = region.project(point + sign * 10 * _direction(grad, k))
            found += points
    return found


def _direction(grad: Tensor, kind: int) -> Tensor:
    if kind == 0:
        return grad.sign()
    flat = grad.flatten(1)
    if kind == 1:
        return grad / flat.norm(dim=1).clamp(min=1e-12).reshape(-1, *(1,) * (grad.dim() - 1))
    best = flat.abs().argmax(1, keepdim=True)
    return torch.zeros_like(flat).scatter(1, best, flat.gather(1, best).sign()).reshape(grad.shape)


def points_of(module: nn.Module, region: Region) -> Tensor:
    """`[points, batch, *shape]`, drawn a hair towards the sample so that rounding leaves none outside."""
    drawn = [*region.sample(16, generator()), *gradient_points(module, region)]
    return region.x + (torch.stack(drawn) - region.x) * (1 - 1e-12)


@cache
def evaluated(case: Case, dtype: torch.dtype, norm: float, boxed: bool) -> tuple[Tensor, Tensor]:
    """Points of a case's sets and its outputs there, in float64: the same for every method."""
    module, _, x, _ = ready(case, dtype)
    exact = in_double(module)
    points = points_of(exact, ball(norm, boxed).at(x.double()))
    with torch.no_grad():
        return points, exact(points.flatten(0, 1)).unflatten(0, points.shape[:2])


def assert_sound(case: Case, dtype: torch.dtype, pair: tuple[str, str], norm: float, boxed: bool) -> None:
    """No point has an output outside the bounds or a margin below the envelope."""
    _, net, x, _ = ready(case, dtype)
    method, relaxation = pair
    rigorous = dtype == F32
    tolerance = 0.0 if rigorous else 1e-9
    set_ = ball(norm, boxed)
    points, outputs = evaluated(case, dtype, norm, boxed)
    with torch.no_grad():
        options = {"method": method, "relaxation": relaxation, "rigorous": rigorous}
        found = pc.bounds(net, x, set_, **options)
        env = pc.envelope(net, x, None, set_, **options)
    assert bool((outputs >= found.lower.double() - tolerance).all())
    assert bool((outputs <= found.upper.double() + tolerance).all())
    label = net(x).argmax(1)
    margins = outputs.gather(2, label.expand(len(points), -1)[..., None]) - outputs.gather(
        2, env.classes.expand(len(points), -1, -1)
    )
    linear = torch.einsum("brn,pbn->pbr", env.slope.flatten(2).double(), points.flatten(2)) + env.offset.double()
    assert bool((margins >= linear - tolerance).all())
    assert bool((margins >= env.margins().double() - tolerance).all())


@pytest.mark.parametrize("norm", [*NORMS, 1.01, 50, 1000])
def test_points_of_a_set_lie_in_it(norm: float) -> None:
    """What is sampled or projected is a witness: in the ball by a norm that does not underflow, and in the box."""
    x = torch.rand(3, 2, 4, dtype=F64, generator=generator())
    for eps in (1e-6, 0.1, 0.7):
        region = pc.Ball(norm, eps, 0.0, 1.0).at(x)
        far = region.project(x + 5 * random(3, 2, 4))
        for points in (*region.sample(12, generator(1)), far):
            assert bool(((points >= 0) & (points <= 1)).all())
            for move in (points - x).flatten(1).numpy():
                assert size(move, norm) <= eps * (1 + 1e-7)


# Type, box and relaxation go round with case, method and norm: any two meet, at a twelfth of the price of all.
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_point_is_outside_the_bounds(case: Case, method: str, norm: float) -> None:
    turn = CASES.index(case) + NORMS.index(norm)
    fitting = [pair for pair in PAIRS if pair[0] == method]
    assert_sound(case, (F32, F64)[turn % 2], fitting[turn % len(fitting)], norm, turn // 2 % 2 == 0)


# --- the linear algebra of the ops ---------------------------------------------------------------------------------


def linear_nodes(case: Case) -> list[tuple[Linear, list[tuple[int, ...]]]]:
    graph = ready(case).net.bind()
    return [(op, [graph.nodes[i].shape for i in graph.nodes[k].inputs]) for k, op in graph.linear.items()]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pull_is_the_adjoint_of_push(case: Case) -> None:
    for op, shapes in linear_nodes(case):
        values = [random(4, *shape, seed=k) for k, shape in enumerate(shapes)]
        rows = random(4, *op.out_shape, seed=9)
        pushed = (op.push(*values) * rows).flatten(1).sum(1)
        pulled = op.pull(Dense(rows.unsqueeze(1)))
        both = zip(pulled, values, strict=True)
        back = sum(form.dense().dot(value)[:, 0] for form, value in both if form is not None)
        torch.testing.assert_close(pushed, back, rtol=1e-12, atol=1e-12)
        if isinstance(op, Affine):
            adjoint = (op.adjoint(rows) * values[0]).flatten(1).sum(1)
            torch.testing.assert_close(pushed, adjoint, rtol=1e-12, atol=1e-12)


def matrix_of(op: Affine) -> Tensor:
    """The linear part written out, `[out, in]`."""
    size = math.prod(op.in_shape)
    return op.push(torch.eye(size, dtype=F64).reshape(size, *op.in_shape)).flatten(1).T


def widened(op: Linear, shapes: list[tuple[int, ...]], values: list[Tensor]) -> Tensor:
    """The sum over an op's inputs of its absolute matrix times their values."""
    total = torch.zeros(3, *op.out_shape, dtype=F64)
    for k, shape in enumerate(shapes):
        size = math.prod(shape)
        columns = [torch.zeros(size, *other, dtype=F64) for other in shapes]
        columns[k] = torch.eye(size, dtype=F64).reshape(size, *shape)
        matrix = op.push(*columns).flatten(1).abs()
        total = total + (values[k].flatten(1) @ matrix).reshape(total.shape)
    return total


@pytest.mark.parametrize("case", CASES, ids=str)
def test_absolute_has_the_matrix_of_absolute_values(case: Case) -> None:
    for op, shapes in linear_nodes(case):
        values = [random(3, *shape, seed=k).abs() for k, shape in enumerate(shapes)]
        if not isinstance(op, Affine):
            torch.testing.assert_close(op.widen(*values), widened(op, shapes, values), rtol=1e-12, atol=1e-12)
            continue
        expected = (values[0].flatten(1) @ matrix_of(op).abs().T).reshape(-1, *op.out_shape)
        torch.testing.assert_close(op.absolute(values[0]), expected, rtol=1e-12, atol=1e-12)
        constant = op.forward(torch.zeros(1, *op.in_shape, dtype=F64))
        torch.testing.assert_close(constant, torch.zeros_like(constant) if op.bias is None else op.bias)


# --- Dense = Patches -----------------------------------------------------------------------------------------------


@st.composite
def conv_stacks(draw: st.DrawFn) -> tuple[list[Conv2d], int]:
    """A few convolutions that fit one after the other, last one first, and a seed."""
    seed = draw(st.integers(0, 10_000))
    shape = (draw(st.integers(1, 3)), draw(st.integers(3, 8)), draw(st.integers(3, 8)))
    ops: list[Conv2d] = []
    for depth in range(draw(st.integers(1, 3))):
        pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
        kernel, stride, dilation = draw(pair), draw(pair), draw(st.sampled_from([(1, 1), (2, 1), (2, 2)]))
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]  # more padding: windows of nothing
        padding = draw(st.tuples(*(st.integers(0, min(r, 2)) for r in reach)))
        groups = draw(st.sampled_from([g for g in (1, 2, 3) if shape[0] % g == 0]))
        out = groups * draw(st.integers(1, 2))
        size = [(shape[k + 1] + 2 * padding[k] - dilation[k] * (kernel[k] - 1) - 1) // stride[k] + 1 for k in (0, 1)]
        if min(size) < 1:
            break
        weight = random(out, shape[0] // groups, *kernel, seed=seed + depth)
        ops.append(Conv2d(weight, None, shape, (out, *size), stride, padding, dilation, groups))
        shape = (out, *size)
    if not ops:
        out_shape = (2, shape[1] - 1, shape[2] - 1)
        ops.append(Conv2d(random(2, shape[0], 2, 2), None, shape, out_shape, (1, 1), (0, 0), (1, 1), 1))
    return ops[::-1], seed


def pull_stack(ops: list[Conv2d], form: Form, factors: list[Tensor], split: bool) -> Form:
    """Through convolutions and, between them, the diagonals that activations leave."""
    for k, op in enumerate(ops):
        form = form.pull(op)
        if k < len(ops) - 1:
            form = form.split_scale(factors[k], factors[k] * 0.3 - 0.1) if split else form.scale(factors[k])
    return form


def as_type(ops: list[Conv2d], dtype: torch.dtype) -> list[Conv2d]:
    return [
        Conv2d(op.weight.to(dtype), None, op.in_shape, op.out_shape, op.stride, op.padding, op.dilation, op.groups)
        for op in ops
    ]


@TOLERANCES
@settings(max_examples=60, deadline=None, derandomize=True)
@given(drawn=conv_stacks(), split=st.booleans())
def test_windows_hold_what_the_dense_form_holds(
    drawn: tuple[list[Conv2d], int], split: bool, dtype: torch.dtype, tolerance: float
) -> None:
    ops, seed = as_type(drawn[0], dtype), drawn[1]
    identity = Identity(ops[0].out_shape, torch.empty(0, dtype=dtype))
    factors = [random(2, *op.in_shape, dtype=dtype, seed=seed + 7) for op in ops]
    windows = pull_stack(ops, identity, factors, split)
    dense = pull_stack(ops, identity.dense(), factors, split).dense()
    scale = float(dense.coef.abs().max()) + 1e-30
    assert dense.coef.shape[1:] == windows.dense().coef.shape[1:]
    torch.testing.assert_close(windows.dense().coef + 0 * dense.coef, dense.coef, rtol=0, atol=tolerance * scale)
    values = random(2, *ops[-1].in_shape, dtype=dtype, seed=seed + 8)
    total = float(dense.abs_dot(values.abs()).max()) + 1e-30
    torch.testing.assert_close(windows.dot(values), dense.dot(values), rtol=0, atol=tolerance * total)
    torch.testing.assert_close(
        windows.abs_dot(values.abs()), dense.abs_dot(values.abs()), rtol=0, atol=tolerance * total
    )
    index = torch.randint(math.prod(ops[0].out_shape), (2, 4), generator=generator(seed))
    some = pull_stack(ops, Selected(ops[0].out_shape, identity.like, index), factors, split)
    rows = dense.coef.expand(2, *dense.coef.shape[1:])[torch.arange(2)[:, None], index]
    torch.testing.assert_close(some.dense().coef, rows, rtol=0, atol=tolerance * scale)
    torch.testing.assert_close(some.dot(values), dense.dot(values).gather(1, index), rtol=0, atol=tolerance * total)
    expected = dense.abs_dot(values.abs()).gather(1, index)
    torch.testing.assert_close(some.abs_dot(values.abs()), expected, rtol=0, atol=tolerance * total)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(drawn=conv_stacks(), samples=st.sampled_from([1, 2]))
def test_what_rows_meet_at_an_activation_is_the_sum_of_its_parts(drawn: tuple[list[Conv2d], int], samples: int) -> None:
    """One look at the values gives what one for each would, for samples of their own and for shared values."""
    ops, seed = drawn
    shape, like = ops[0].out_shape, torch.empty(0, dtype=F64)
    factors = [random(2, *op.in_shape, seed=seed + 7) for op in ops]
    index = torch.randint(math.prod(shape), (2, 4), generator=generator(seed))
    slope, values, sizes = (random(samples, *ops[-1].in_shape, seed=seed + k) for k in (8, 9, 10))
    for start in (Identity(shape, like), Selected(shape, like, index), Identity(shape, like).dense()):
        form = pull_stack(ops, start, factors, split=False)
        scaled, middle, spread = form.relaxed(slope, values, sizes.abs())
        apart = form.scale(slope).dense().coef, form.dot(values), form.abs_dot(sizes.abs())
        for mine, theirs in zip((scaled.dense().coef, middle, spread), apart, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("boxed", [False, True], ids=["ball", "box"])
@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(drawn=conv_stacks())
def test_windows_are_concretised_as_the_dense_form(drawn: tuple[list[Conv2d], int], norm: float, boxed: bool) -> None:
    """The border of an image has no coefficients: they must not widen a bound either."""
    ops, seed = drawn
    identity = Identity(ops[0].out_shape, torch.empty(0, dtype=F64))
    factors = [random(2, *op.in_shape, seed=seed + 7) for op in ops]
    windows = pull_stack(ops, identity, factors, split=False)
    x = torch.rand(2, *ops[-1].in_shape, dtype=F64, generator=generator(seed))
    for minimum in ("open", "joint", "either"):
        region = ball(norm, boxed, minimum=minimum).at(x)
        for mine, theirs in zip(region.concretise(windows), region.concretise(windows.dense()), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(drawn=conv_stacks(), strided=st.booleans())
def test_sums_of_windows_are_sums_of_dense_forms(drawn: tuple[list[Conv2d], int], strided: bool) -> None:
    """Residual connections: a window plus the identity, or plus another convolution's window on the same grid."""
    last = drawn[0][0]
    if strided:
        other = Conv2d(
            random(last.out_shape[0], last.in_shape[0], 1, 1, seed=3),
            None,
            last.in_shape,
            last.out_shape,
            last.stride,
            (0, 0),
            (1, 1),
            1,
        )
        sizes = zip(last.in_shape[1:], last.stride, last.out_shape[1:], strict=True)
        fits = all((before - 1) // stride + 1 == after for before, stride, after in sizes)
        second = Identity(last.out_shape, torch.empty(0, dtype=F64)).pull(other) if fits else None
    else:
        second = Identity(last.in_shape, torch.empty(0, dtype=F64)) if last.in_shape == last.out_shape else None
    if second is None:
        return
    first = Identity(last.out_shape, torch.empty(0, dtype=F64)).pull(last)
    expected = first.dense().coef + second.dense().coef
    torch.testing.assert_close(first.plus(second).dense().coef, expected)
    torch.testing.assert_close(second.plus(first).dense().coef, expected)
    torch.testing.assert_close(first.negative().dense().coef, -first.dense().coef)


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_a_convolution_net_is_bounded_as_its_dense_twin(case: Case) -> None:
    """The first affine layers written out as one matrix give the same bounds as their windows."""
    _, net, x, _ = ready(case)
    graph = net.bind()
    first = first_hidden(net)
    size = math.prod(case.shape)
    zero = torch.zeros(1, *case.shape, dtype=F64)
    offset = graph.values(zero)[first]
    columns = graph.values(torch.eye(size, dtype=F64).reshape(size, *case.shape))[first] - offset
    twin = nn.Linear(size, offset.numel()).double()
    with torch.no_grad():
        twin.weight.copy_(columns.flatten(1).T)
        twin.bias.copy_(offset.flatten())
    front = pc.capture(nn.Sequential(nn.Flatten(), twin), case.shape)
    for norm in NORMS:
        set_ = ball(norm)
        windows, dense = hidden(net, x, set_, first), hidden(front, x, set_, front.bind().output)
        torch.testing.assert_close(windows.lower.flatten(1), dense.lower, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(windows.upper.flatten(1), dense.upper, rtol=1e-10, atol=1e-10)


def all_unstable(run: Pass, index: int, given: Interval) -> Tensor:
    """As `_unstable`, with every entry of a layer marked."""
    return torch.ones_like(given.lower, dtype=torch.bool).flatten(1)


def assert_skipping_changes_nothing(module: nn.Module, x: Tensor, set_: pc.Ball) -> None:
    """Envelopes and gradients without the rows of stable units, in chunks of a few rows, and of all rows at once."""
    for method in ("crown", "forward"):
        for rigorous in (False, True):
            assert_one_way_skips_nothing(module, x, set_, method, rigorous)
            assert_one_way_skips_nothing(module, x[:1], set_, method, rigorous)


def assert_one_way_skips_nothing(
    module: nn.Module, x: Tensor, set_: pc.Ball, method: str, rigorous: bool = False
) -> None:
    net = pc.capture(module, tuple(x.shape[1:]))
    results = []
    for every_row, limit in ((False, 2**20), (False, 1500), (True, 2**20), (True, 1500)):
        with pytest.MonkeyPatch.context() as change:
            change.setattr("polycert.bounding.chunking.CHUNK", limit)
            if every_row:
                change.setattr("polycert.bounding.backward._unstable", all_unstable)
            env = pc.envelope(net, x, None, set_, method=method, rigorous=rigorous)
            total = env.margins().sum() + env.distances(signed=True).sum()
            results.append((env.slope, env.offset, *torch.autograd.grad(total, list(module.parameters()))))
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("scale", [0.02, 0.3, 1.0])
def test_rows_that_make_no_difference_make_none(scale: float) -> None:
    """Few or many unstable units take different ways to the same envelope."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = [nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(3, 2, 2), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(18, 6), nn.ReLU(), nn.Linear(6, 3)]
        module, x = nn.Sequential(*layers).double(), torch.rand(3, 1, 7, 8).double()
    assert_skipping_changes_nothing(module, x, ball(math.inf, eps=EPS[math.inf] * scale))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_side_at_a_time_loses_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that one bound proves to be stable needs no other: the output's bounds stay as they are."""
    net, x = pc.capture(fresh(case), case.shape), inputs(case, F64)
    set_ = ball(math.inf)
    with torch.no_grad():
        together = pc.bounds(net, x, set_, method="crown", relaxation="adaptive", rigorous=True)
        monkeypatch.setattr("polycert.bounding.backward.MANY_COEFFICIENTS", -1)
        apart = pc.bounds(net, x, set_, method="crown", relaxation="adaptive", rigorous=True)
    torch.testing.assert_close(apart.lower, together.lower, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(apart.upper, together.upper, rtol=1e-6, atol=1e-8)


class Skips(nn.Module):
    """Two residual blocks: the second block's own window fits into the image, its sum with the skip does not."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(200, 3)
        self.blocks = nn.ModuleList(nn.Conv2d(2, 2, 3, padding=1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d = self.blocks
        x = self.stem(x).relu()
        x = (x + b(a(x).relu())).relu()
        x = (x + d(c(x).relu())).relu()
        return self.last(x.flatten(1))


@pytest.mark.parametrize("scale", [0.05, 0.5])
def test_chosen_rows_lose_nothing_across_a_skip(scale: float) -> None:
    """What a convolution and a skip both say of the same unit must be added before it is made positive."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        module, x = Skips().double(), torch.rand(2, 1, 10, 10).double()
    assert_skipping_changes_nothing(module, x, ball(math.inf, eps=EPS[math.inf] * scale))


def test_windows_that_see_only_the_border() -> None:
    """Padding beyond the kernel: some neurons see no pixel at all."""
    module = nn.Sequential(nn.Conv2d(1, 1, 1, stride=3), nn.Conv2d(1, 1, 1, stride=3, padding=1)).double()
    x = torch.rand(2, 1, 3, 3, dtype=F64, generator=generator())
    with torch.no_grad():
        for norm in NORMS:
            found = pc.bounds(module, x, ball(norm))
            assert bool((found.lower <= module(x) + 1e-12).all())
            assert bool((module(x) <= found.upper + 1e-12).all())


# --- a batch is its samples; a run is its chunks -------------------------------------------------------------------


WHOLE = [("ibp", "parallel"), ("forward", "parallel"), ("crown", "best"), ("crown-ibp", "best")]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bounds_remember_nothing_of_earlier_weights(case: Case) -> None:
    """A graph may serve several calls, and weights may change in ways that leave no trace on them."""
    module = fresh(case)
    net, x = pc.capture(module, case.shape), inputs(case, F64)
    pc.bounds(net, x, ball(math.inf))
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.data.mul_(0.8).add_(0.05)
    twin = pc.capture(copy.deepcopy(module), case.shape)
    with torch.no_grad():
        for method in ("crown", "ibp"):
            found, anew = (pc.bounds(one, x, ball(math.inf), method=method) for one in (net, twin))
            assert torch.equal(found.lower, anew.lower)
            assert torch.equal(found.upper, anew.upper)


@TOLERANCES
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_batch_is_its_samples_one_by_one(case: Case, dtype: torch.dtype, tolerance: float) -> None:
    net, x = ready(case, dtype).net, ready(case, dtype).x[:2]
    for k, (method, relaxation) in enumerate(WHOLE):
        set_ = ball(NORMS[(CASES.index(case) + k) % len(NORMS)])
        with torch.no_grad():
            whole = pc.bounds(net, x, set_, method=method, relaxation=relaxation)
            parts = [pc.bounds(net, one[None], set_, method=method, relaxation=relaxation) for one in x]
        scale = 3 * float(whole.upper.abs().max())  # which of two slopes that tie is chosen, rounding may decide
        for side in (0, 1):
            singles = torch.cat([part[side] for part in parts])
            torch.testing.assert_close(whole[side], singles, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("rigorous", [False, True], ids=["fast", "rigorous"])
@TOLERANCES
@pytest.mark.parametrize("name", ["tanh", "conv-stack", "block-strided", "residual-sub"])
def test_chunks_do_not_change_a_certificate(name: str, dtype: torch.dtype, tolerance: float, rigorous: bool) -> None:
    case = NAMED[name]
    net, x = ready(case, dtype).net, inputs(case, dtype, 5)
    norm = 2 if rigorous else math.inf
    eps = torch.linspace(0.2, 1.0, 5) * EPS[norm]
    runs = [
        pc.certify(net, x, None, ball(norm, eps=eps), batch_size=size, relaxation="best", rigorous=rigorous)
        for size in (1, 3, 5)
    ]
    for run in runs[1:]:
        torch.testing.assert_close(run.radius, runs[0].radius, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(run.margin, runs[0].margin, rtol=tolerance, atol=tolerance)
        assert run.index.tolist() == list(range(5))
        assert run.certified.tolist() == runs[0].certified.tolist()


def test_a_sample_does_not_see_its_batch_mates() -> None:
    """A huge and a tiny neighbour leave a sample's own bounds as they are."""
    net = ready(NAMED["conv-stack"], F32).net
    x = inputs(NAMED["conv-stack"], F32)
    mates = torch.stack([x[0], x[1] * 1e4, x[2] * 1e-6])
    for method, relaxation in PAIRS:
        with torch.no_grad():
            alone = pc.bounds(net, x[:1], ball(2, False), method=method, relaxation=relaxation)
            among = pc.bounds(net, mates, ball(2, False), method=method, relaxation=relaxation)
        torch.testing.assert_close(among.lower[:1], alone.lower, rtol=1e-5, atol=1e-5)


# --- gradients -----------------------------------------------------------------------------------------------------


def gradcheck_parameters(module: nn.Module, value) -> None:
    """`value()` against finite differences along a random direction of each parameter, perturbed in place."""
    parameters = tuple(module.parameters())
    assert torch.autograd.gradcheck(lambda *_: value(), parameters, eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)


GRADIENT_CASES = ["relu", "leaky--0.3", "tanh", "sigmoid", "arctan", "residual-sub", "batch-norm-1d", "scalars"]
GRADIENT_CASES += [
    "conv-left-over",
    "conv-stack",
    "linear-last-axis",
    "max-pool",
    "transposed",
    "clamp",
    "abs",
    "gelu",
    "silu",
]
GRADIENT_CASES += ["softplus", "elu", "exp", "square", "maximum", "product", "concat", "slice", "split", "pad", "mean"]
GRADIENT_CASES += ["softmax-inside", "attention", "rnn", "gru", "lstm"]


@pytest.mark.parametrize("method", ["ibp", "forward", "crown", "crown-ibp"])
@pytest.mark.parametrize("name", GRADIENT_CASES)
def test_bounds_have_the_gradient_of_finite_differences(name: str, method: str) -> None:
    case = NAMED[name]
    module = fresh(case)
    net, x = pc.capture(module, case.shape), inputs(case, F64, 2)
    norm = NORMS[(GRADIENT_CASES.index(name) + len(method)) % len(NORMS)]
    gradcheck_parameters(module, lambda: pc.bounds(net, x, ball(norm), method=method).lower.sum())


@pytest.mark.parametrize("boxed", [False, True], ids=["ball", "box"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["relu", "tanh", "residual-add"])
def test_signed_distances_have_the_gradient_of_finite_differences(name: str, norm: float, boxed: bool) -> None:
    case = NAMED[name]
    module = fresh(case)
    net, x = pc.capture(module, case.shape), inputs(case, F64, 2) * 0.6 + 0.2
    label = torch.tensor([0, 1])
    for method in ("crown", "forward", "crown-ibp"):

        def value(method: str = method) -> Tensor:
            # Far away is a constant; the hinge of a loss keeps what is near.
            env = pc.envelope(net, x, label, ball(norm, boxed), method=method)
            return env.distances(signed=True).clamp(max=3).sum()

        gradcheck_parameters(module, value)


@pytest.mark.parametrize("boxed", [False, True], ids=["ball", "box"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("where", ["eps-zero", "zero-rows", "all-zero", "point-box", "corner"])
def test_gradients_are_finite_in_degenerate_places(where: str, norm: float, boxed: bool) -> None:
    for name in ("tanh", "conv-padding"):
        case = NAMED[name]
        module = fresh(case)
        x, options = inputs(case, F64, 2), {}
        with torch.no_grad():
            for parameter in module.parameters():
                if where == "zero-rows":
                    parameter[0] = 0
                if where == "all-zero":
                    parameter.zero_()
        if where == "eps-zero":
            options["eps"] = 0.0
        if where == "corner":
            x = (x > 0.5).double()
        if where == "point-box" and boxed:
            x, options = torch.full_like(x, 0.5), {"low": 0.5, "high": 0.5}
        net = pc.capture(module, case.shape)
        for method in ("ibp", "forward", "crown", "crown-ibp"):
            module.zero_grad()
            env = pc.envelope(net, x, torch.tensor([0, 1]), ball(norm, boxed, **options), method=method)
            total = env.distances(signed=True).sum() + env.margins().sum()
            total = total + pc.bounds(net, x, ball(norm, boxed, **options), method=method).lower.sum()
            assert bool(torch.isfinite(total)), method
            total.backward()
            for parameter in module.parameters():
                assert parameter.grad is None or bool(torch.isfinite(parameter.grad).all()), method


# --- eps -> 0 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_small_ball_gives_the_network_itself(case: Case, pair: tuple[str, str]) -> None:
    module, net, x, _ = ready(case)
    norm = NORMS[(CASES.index(case) + PAIRS.index(pair)) % len(NORMS)]
    method, relaxation = pair
    with torch.no_grad():
        value = module(x)
        label = value.argmax(1)
        for eps, tolerance in ((0.0, 1e-11), (1e-7, 1e-4)):
            found = pc.bounds(net, x, ball(norm, eps=eps), method=method, relaxation=relaxation)
            torch.testing.assert_close(found.lower, value, rtol=0, atol=tolerance)
            torch.testing.assert_close(found.upper, value, rtol=0, atol=tolerance)
        env = pc.envelope(net, x, None, ball(norm, eps=0.0), method=method, relaxation=relaxation)
        margins = value.gather(1, label[:, None]) - value.gather(1, env.classes)
        torch.testing.assert_close(env.margins(), margins, rtol=0, atol=1e-11)


# --- bound <= exact <= attack --------------------------------------------------------------------------------------


def tiny_relu(seed: int, widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for k, (before, after) in enumerate(pairwise(widths)):
            layers += [nn.Linear(before, after)] + ([nn.ReLU()] if k < len(widths) - 2 else [])
    module = nn.Sequential(*layers).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2)
    return module


@pytest.mark.parametrize("norm", [1, math.inf])
@pytest.mark.parametrize(
    ("seed", "widths", "low", "high"),
    [(0, (2, 4, 2), 0.0, 1.0), (1, (3, 3, 2, 2), None, None), (2, (3, 4, 3), 0.0, 1.0), (3, (2, 2, 2, 2), 0.0, None)],
)
def test_bound_below_exact_below_attack(
    seed: int, widths: tuple[int, ...], low: float | None, high: float | None, norm: float
) -> None:
    module = tiny_relu(seed, widths)
    pieces = Piecewise(module)
    x = torch.rand(2, widths[0], dtype=F64, generator=generator(seed + 20))
    eps = 0.2 if math.isinf(norm) else 0.4
    set_ = pc.Ball(norm, eps, low, high)
    with torch.no_grad():
        label = module(x).argmax(1)
        points = set_.at(x).sample(200, generator())
        outputs = torch.stack([module(p) for p in points])
    runs = [pc.certify(module, x, label, set_, method=m, relaxation=r, rigorous=True) for m, r in PAIRS]
    for k in range(len(x)):
        y = int(label[k])
        others = [c for c in range(widths[-1]) if c != y]
        margin = pieces.margin(x[k].numpy(), y, others, norm, eps, (low, high))
        radius = pieces.radius(x[k].numpy(), y, others, norm, (low, high))
        attacked = min(float((outputs[:, k, y] - outputs[:, k, c]).min()) for c in others)
        assert margin <= attacked + 1e-7
        for run in runs:
            assert float(run.margin[k]) <= margin + 1e-7
            assert float(run.radius[k]) <= min(radius, eps) + 1e-7
            assert not bool(run.certified[k]) or margin > 0
        # A linear piece is its own relaxation: where the ball is tiny, the bound is exact.
        near = pc.certify(module, x[k : k + 1], label[k : k + 1], pc.Ball(norm, 1e-6, low, high))
        exact = pieces.margin(x[k].numpy(), y, others, norm, 1e-6, (low, high))
        assert float(near.margin[0]) == pytest.approx(exact, abs=1e-6)


# --- order ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_joint_minimum_is_the_tightest(case: Case) -> None:
    _, net, x, _ = ready(case)
    first = first_hidden(net)
    for norm in (1, 2, 3):
        joint = hidden(net, x, ball(norm, minimum="joint"), first)
        for minimum in ("open", "either"):
            loose = hidden(net, x, ball(norm, minimum=minimum), first)
            assert bool((joint.lower >= loose.lower - 1e-10).all())
            assert bool((joint.upper <= loose.upper + 1e-10).all())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_convention_for_hidden_layers_is_sound(case: Case) -> None:
    """For p = inf they are the same thing."""
    _, net, x, _ = ready(case)
    norm = NORMS[CASES.index(case) % len(NORMS)]
    outputs = evaluated(case, F64, norm, True)[1]
    with torch.no_grad():
        found = [pc.bounds(net, x, ball(norm, minimum=minimum)) for minimum in ("open", "joint", "either")]
    for bounds in found:
        assert bool((outputs >= bounds.lower - 1e-9).all())
        assert bool((outputs <= bounds.upper + 1e-9).all())
        assert not math.isinf(norm) or torch.equal(bounds.lower, found[0].lower)


@pytest.mark.parametrize("minimum", ["open", "joint", "either"])
@pytest.mark.parametrize("norm", [1, 1.001, 1.01, 1.05, 1.1, 1.5, 2, 7, 50])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_small_coefficients_beside_large_ones_that_cannot_move(dtype: torch.dtype, norm: float, minimum: str) -> None:
    """The largest weight sits on an input at its border; powers of the others must not underflow to nothing."""
    weight = nn.Parameter(torch.ones(1, 2, dtype=dtype))
    net = pc.capture(Linear2(weight), (2,))
    x = torch.tensor([[0.0, 0.5]], dtype=dtype)
    for ratio in (0.3, 1e-2, 1e-4, 1e-8):
        weight.data[0, 1] = ratio
        found = hidden(net, x, pc.Ball(norm, 0.4, 0.0, 1.0, minimum=minimum), 1)
        assert float(found.lower[0, 0]) <= ratio * 0.1 * (1 + 1e-5)


class Linear2(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_best_is_no_worse_than_either_relaxation(case: Case) -> None:
    """The contract: the better of both, per sample and class."""
    net, x = ready(case).net, inputs(case, F64, 6)
    norm = NORMS[CASES.index(case) % len(NORMS)]
    for method in ("crown-ibp", "crown"):
        best, parallel, adaptive = (
            pc.certify(net, x, None, ball(norm), method=method, relaxation=name)
            for name in ("best", "parallel", "adaptive")
        )
        for other in (parallel, adaptive):
            assert bool((best.radius >= other.radius - 1e-9).all())


@pytest.mark.parametrize("seed", [32, 44])
def test_best_is_no_worse_in_deep_nets(seed: int) -> None:
    """Tighter hidden bounds can tilt a line the wrong way: mixing the two relaxations layer by layer loses here."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        widths = [4, 8, 8, 8, 3]
        layers = [layer for n, m in pairwise(widths) for layer in (nn.Linear(n, m), nn.ReLU())]
        module = nn.Sequential(*layers[:-1]).double()
        x = torch.rand(16, 4).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2)
    for set_ in (pc.Ball(2, 0.2, 0.0, 1.0), pc.Ball(math.inf, 0.1, 0.0, 1.0)):
        best, parallel, adaptive = (
            pc.certify(module, x, None, set_, relaxation=name) for name in ("best", "parallel", "adaptive")
        )
        for other in (parallel, adaptive):
            assert bool((best.radius >= other.radius - 1e-9).all())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_methods_are_ordered_at_the_first_layer(case: Case) -> None:
    """Where everything is affine, every method is exact: they agree."""
    _, net, x, _ = ready(case)
    found = [hidden(net, x, ball(2), first_hidden(net), method) for method in METHODS]
    for other in found[1:]:
        torch.testing.assert_close(other.lower, found[0].lower, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(other.upper, found[0].upper, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["relu", "tanh", "conv-stack"])
def test_a_larger_ball_never_has_a_larger_margin(name: str) -> None:
    """Of the exact minimum over a fixed envelope; the envelope itself is rebuilt, so only ibp is monotone too."""
    net, x = ready(NAMED[name]).net, inputs(NAMED[name], F64, 4)
    for norm in NORMS:
        margins = [
            pc.certify(net, x, None, ball(norm, eps=EPS[norm] * part), method="ibp").margin
            for part in (0.1, 0.4, 0.7, 1.0)
        ]
        for smaller, larger in pairwise(margins):
            assert bool((larger <= smaller + 1e-9).all())
