"""A linear form over ball and box, against solvers that know nothing of the library's algorithms."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polycert.sets import geometry
from polycert.sets.geometry import dual_norm, largest_drop, least_norm, power_norm, signed_powers
from polycert.sets.interval import Rounding
from tests.helpers.solvers import bisected_norm, drop_of, exact_drop, norm_of, slsqp_norm

F32, F64 = torch.float32, torch.float64
NORMS = [1, 1.5, 2, 3, math.inf]
EXAMPLES = settings(max_examples=50, deadline=None, derandomize=True)


def tensor(values: object, dtype: torch.dtype = F64) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=dtype)


weights = st.one_of(st.just(0.0), st.floats(1e-3, 10.0))
caps = st.one_of(st.just(0.0), st.floats(1e-3, 5.0), st.just(math.inf))
powers = st.one_of(st.sampled_from(NORMS), st.floats(1.05, 20.0))


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[float], list[float], float, float]:
    """Weights, room, a number > 0 (radius, or drop), and a norm."""
    count = draw(st.integers(1, 6))
    weight = draw(st.lists(weights, min_size=count, max_size=count))
    cap = draw(st.lists(caps, min_size=count, max_size=count))
    return weight, cap, draw(st.floats(1e-3, 20.0)), draw(powers)


@EXAMPLES
@given(problem=problems())
def test_largest_drop_agrees_with_an_independent_solver(problem: tuple) -> None:
    weight, cap, eps, norm = problem
    got = float(largest_drop(tensor(weight), tensor(cap), tensor(eps), norm))
    assert got == pytest.approx(drop_of(weight, cap, eps, norm), rel=1e-8, abs=1e-9)


@EXAMPLES
@given(problem=problems())
def test_least_norm_agrees_with_an_independent_solver(problem: tuple) -> None:
    weight, cap, drop, norm = problem
    got = float(least_norm(tensor(weight), tensor(cap), tensor(drop), norm))
    reachable = sum(w * c for w, c in zip(weight, cap, strict=True) if w > 0)
    if math.isclose(reachable, drop, rel_tol=1e-9):  # rounding decides whether it is within reach
        return
    assert got == pytest.approx(norm_of(weight, cap, drop, norm), rel=1e-8, abs=1e-9)


@EXAMPLES
@given(problem=problems())
def test_without_a_box_both_are_the_dual_norm(problem: tuple) -> None:
    weight, _, number, norm = problem
    size = float(dual_norm(tensor(weight), norm))
    assert float(largest_drop(tensor(weight), None, tensor(number), norm)) == pytest.approx(number * size, rel=1e-12)
    if size == 0:
        assert math.isinf(float(least_norm(tensor(weight), None, tensor(number), norm)))
        return
    order = 1.0 if math.isinf(norm) else math.inf if norm == 1 else norm / (norm - 1)
    assert size == pytest.approx(float(np.linalg.norm(weight, order)), rel=1e-9)
    assert float(least_norm(tensor(weight), None, tensor(number), norm)) == pytest.approx(number / size, rel=1e-9)
    open_box = torch.full((len(weight),), math.inf, dtype=F64)
    assert float(least_norm(tensor(weight), open_box, tensor(number), norm)) == pytest.approx(number / size, rel=1e-9)


@EXAMPLES
@given(problem=problems())
def test_drop_and_norm_are_inverse(problem: tuple) -> None:
    """Going as far as the least norm reaches the drop, and no farther."""
    weight, cap, drop, norm = problem
    needed = least_norm(tensor(weight), tensor(cap), tensor(drop), norm)
    reachable = sum(w * c for w, c in zip(weight, cap, strict=True) if w > 0)
    if math.isinf(float(needed)) or math.isclose(reachable, drop, rel_tol=1e-6):
        return
    assert float(largest_drop(tensor(weight), tensor(cap), needed, norm)) == pytest.approx(drop, rel=1e-7)


@pytest.mark.parametrize("norm", [1.5, 2, 3])
def test_least_norm_agrees_with_a_general_purpose_solver(norm: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        weight, cap = rng.uniform(0.1, 2, 4), rng.uniform(0.2, 1, 4)
        drop = 0.7 * float(weight @ cap)
        expected = slsqp_norm(weight, cap, drop, norm)
        assert bisected_norm(weight, cap, drop, norm) == pytest.approx(expected, rel=1e-5)
        assert float(least_norm(tensor(weight), tensor(cap), tensor(drop), norm)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("norm", [1 + 1e-9, 1.0001, 1.001, 1.005, 1.02])
def test_norms_near_1_are_safe_and_nearly_exact(norm: float) -> None:
    """Powers 1 / (p - 1) leave the range of float64; the prices of p = 1 are off by about (p - 1) log n."""
    rng = np.random.default_rng(0)
    noise, near = 1e-8 + 1e-15 / (norm - 1), min(4 * (norm - 1), 4e-3)  # the first is the solver's own
    for _ in range(20):
        weight, cap = np.exp(rng.normal(size=30)), rng.uniform(0, 0.1, 30)
        eps, drop = rng.uniform(0.05, 1.0), rng.uniform(0.1, 0.9) * float(weight @ cap)
        got = float(largest_drop(tensor(weight), tensor(cap), tensor(eps), norm))
        assert 1 - noise <= got / drop_of(weight, cap, eps, norm) <= 1 + near + noise
        got = float(least_norm(tensor(weight), tensor(cap), tensor(drop), norm))
        assert 1 + noise >= got / norm_of(weight, cap, drop, norm) >= 1 - near - noise


@pytest.mark.parametrize("norm", [1, 1.01, 2, 3])
@pytest.mark.parametrize(("dtype", "large"), [(F32, 1e30), (F64, 1e300)])
def test_what_overflows_is_infinite(dtype: torch.dtype, large: float, norm: float) -> None:
    weight, cap = torch.full((3,), large, dtype=dtype), torch.full((3,), 1e10, dtype=dtype)
    assert math.isinf(float(largest_drop(weight, cap, tensor(1e10, dtype), norm)))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [F32, F64])
def test_special_values(norm: float, dtype: torch.dtype) -> None:
    def least(weight: list[float], cap: list[float] | None, drop: float) -> float:
        room = None if cap is None else tensor(cap, dtype)
        return float(least_norm(tensor(weight, dtype), room, tensor(drop, dtype), norm))

    def drop(weight: list[float], cap: list[float] | None, eps: float) -> float:
        room = None if cap is None else tensor(cap, dtype)
        return float(largest_drop(tensor(weight, dtype), room, tensor(eps, dtype), norm))

    for room in (None, [1.0, 1.0], [0.0, math.inf]):
        assert least([2.0, 1.0], room, 0.0) == 0
        assert least([2.0, 1.0], room, -1.0) == 0
        assert least([0.0, 0.0], room, -1.0) == 0
        assert math.isinf(least([0.0, 0.0], room, 1e-3))
        assert drop([0.0, 0.0], room, 3.0) == 0
        assert drop([2.0, 1.0], room, 0.0) == 0
    assert math.isinf(least([2.0, 1.0], [0.0, 0.0], 1e-3))
    assert math.isinf(least([2.0, 1.0], [1.0, 1.0], 3.001))
    assert least([2.0, 1.0], [1.0, 1.0], 3.0) == pytest.approx(2 ** (0 if math.isinf(norm) else 1 / norm), rel=1e-5)
    assert drop([2.0, 1.0], [0.0, 0.0], 3.0) == 0
    assert drop([2.0, 1.0], [1.0, 1.0], 100.0) == pytest.approx(3.0, rel=1e-5)
    assert drop([0.0, 1.0], [math.inf, 2.0], 1.0) == pytest.approx(1.0, rel=1e-5)
    assert least([0.0, 1.0], [math.inf, 2.0], 1.0) == pytest.approx(1.0, rel=1e-5)
    assert drop([3.0], [0.5], 9.0) == pytest.approx(1.5, rel=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_ties_and_wide_ranges(norm: float) -> None:
    for weight in ([1.0] * 5, [1e-8, 1.0, 1e8], [5.0, 5.0, 1e-12, 0.0]):
        cap = [0.3] * len(weight)
        for number in (0.05, 0.5, 1.2):
            got = float(largest_drop(tensor(weight), tensor(cap), tensor(number), norm))
            assert got == pytest.approx(drop_of(weight, cap, number, norm), rel=1e-8)
            goal = number * max(weight) * 0.2
            got = float(least_norm(tensor(weight), tensor(cap), tensor(goal), norm))
            assert got == pytest.approx(norm_of(weight, cap, goal, norm), rel=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_shapes_broadcast_as_the_library_uses_them(norm: float) -> None:
    """Rows shared by a batch, room shared by rows: `[1, rows, n]` with `[batch, 1, n]`."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(1, 3, 4, dtype=F64, generator=generator)
    cap = torch.rand(2, 1, 4, dtype=F64, generator=generator)
    number = torch.rand(2, 1, dtype=F64, generator=generator) * 0.4
    drops = largest_drop(weight, cap.expand(2, 3, 4), number, norm)
    norms = least_norm(weight.expand(2, 3, 4), cap, number.expand(2, 3), norm)
    for b in range(2):
        for r in range(3):
            single = largest_drop(weight[0, r], cap[b, 0], number[b, 0], norm)
            assert float(drops[b, r]) == pytest.approx(float(single), rel=1e-12)
            single = least_norm(weight[0, r], cap[b, 0], number[b, 0], norm)
            assert float(norms[b, r]) == pytest.approx(float(single), rel=1e-12)


# --- stopped early, the result is on the safe side -----------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2])
@EXAMPLES
@given(problem=problems())
def test_stopped_early_both_are_safe(steps: int, problem: tuple) -> None:
    weight, cap, number, norm = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(geometry, "MAX_STEPS", steps)
        drop = float(largest_drop(tensor(weight), tensor(cap), tensor(number), norm))
        least = float(least_norm(tensor(weight), tensor(cap), tensor(number), norm))
    assert drop >= drop_of(weight, cap, number, norm) * (1 - 1e-8) - 1e-9
    reachable = sum(w * c for w, c in zip(weight, cap, strict=True) if w > 0)
    if not math.isclose(reachable, number, rel_tol=1e-9):
        assert least <= norm_of(weight, cap, number, norm) * (1 + 1e-8) + 1e-9


# --- rounding ------------------------------------------------------------------------------------------------------


def hard_problems(count: int, size: int = 40) -> list[tuple[Tensor, Tensor, float]]:
    """Float32 weights over six orders of magnitude, room that is mostly used up."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(count):
        weight = 10 ** (torch.rand(size, generator=generator) * 6 - 3)
        cap = torch.rand(size, generator=generator) * 0.1
        found.append((weight, cap, float(torch.rand(1, generator=generator) * 0.5 + 0.01)))
    return found


@pytest.mark.parametrize("norm", NORMS)
def test_float32_with_its_rounding_term_is_on_the_safe_side(norm: float) -> None:
    relative = Rounding(F32, 16).gamma(40)
    for weight, cap, share in hard_problems(12):
        w, c = weight.double().numpy(), cap.double().numpy()
        for room, limit in ((cap, c), (None, np.full(40, math.inf))):
            eps = torch.tensor(share)
            top = largest_drop(weight, room, eps, norm, relative)
            assert float(top) >= drop_of(w, limit, float(eps), norm)
            goal = weight.dot(cap) * share
            assert float(least_norm(weight, room, goal, norm, relative)) <= norm_of(w, limit, float(goal), norm)


@pytest.mark.parametrize("norm", [1.2, 1.5, 2, 3, 12])
def test_float64_with_its_rounding_term_is_on_the_safe_side_of_the_exact_value(norm: float) -> None:
    relative = Rounding(F64, 16).gamma(6)
    for weight, cap, share in hard_problems(4, size=6):
        weight, cap = weight.double(), cap.double()
        eps = torch.tensor(share * 0.3, dtype=F64)
        top = largest_drop(weight, cap, eps, norm, relative)
        assert mpmath.mpf(float(top)) >= exact_drop(weight, cap, eps, norm)
        # The inverse: within the least norm, the exact drop does not reach the goal.
        goal = weight.dot(cap) * share
        least = least_norm(weight, cap, goal, norm, relative)
        assert exact_drop(weight, cap, least, norm) <= mpmath.mpf(float(goal))


@pytest.mark.parametrize("norm", [30.0, 100.0, 300.0, 1000.0])
def test_large_powers_stay_in_range(norm: float) -> None:
    """eps ** norm may underflow; the drop must not."""
    weight, cap = [0.7, 0.3, 0.4, 0.02], [1.4, 0.9, 1.5, 1.0]
    for exponent in (-200, -305, -312, -320, -323, -340):
        eps = 10 ** (exponent / norm)
        room = [c * eps for c in cap]
        got = float(largest_drop(tensor(weight), tensor(room), tensor(eps), norm))
        assert got == pytest.approx(drop_of(weight, room, eps, norm), rel=1e-6)


# --- gradients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("boxed", [False, True], ids=["ball", "box"])
@pytest.mark.parametrize("norm", [*NORMS, 1.1, 7.3])
def test_gradients_are_those_of_finite_differences(norm: float, boxed: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = (torch.rand(3, 5, dtype=F64, generator=generator) + 0.1).requires_grad_()
    cap = torch.rand(3, 5, dtype=F64, generator=generator) if boxed else None
    eps = torch.full((3,), 0.4, dtype=F64)
    goal = torch.tensor([0.2, 0.5, 0.7], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: largest_drop(w, cap, eps, norm), (weight,))
    assert torch.autograd.gradcheck(lambda w, d: least_norm(w, cap, d, norm), (weight, goal))


@pytest.mark.parametrize("order", [1.2, 1.5, 2.0, 4.0])
def test_powers_of_both_signs(order: float) -> None:
    coef = torch.randn(3, 5, dtype=F64, generator=torch.Generator().manual_seed(4)).requires_grad_()
    top = coef.detach().abs().amax(-1, keepdim=True)
    positive, negative = signed_powers(coef, top, order)
    assert torch.allclose(positive, (coef.clamp(min=0) / top) ** order)
    assert torch.allclose(negative, ((-coef).clamp(min=0) / top) ** order)
    assert torch.autograd.gradcheck(lambda c: signed_powers(c, top, order), (coef,))


def test_powers_of_tiny_and_of_no_coefficients_have_finite_gradients() -> None:
    coef = torch.tensor([[1e-39, -2e-39, 0.0], [0.0, 0.0, 0.0]]).requires_grad_()
    top = coef.detach().abs().amax(-1, keepdim=True)
    sizes = signed_powers(coef, top, 2.0)
    # As a row's bound uses them: the root of the sum, in units of its largest coefficient.
    (slopes,) = torch.autograd.grad((sum(size.sum(-1) for size in sizes) * top.squeeze(-1)).sum(), coef)
    assert bool(torch.isfinite(slopes).all())
    assert torch.equal(slopes[1], torch.zeros(3))


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_are_finite_where_nothing_moves(norm: float) -> None:
    places = [
        ([0.0, 0.0], [1.0, 1.0], 0.5),
        ([1.0, 0.0], [0.0, 1.0], 0.5),
        ([1.0, 1.0], [0.0, 0.0], 0.5),
        ([1.0, 1.0], [1.0, 1.0], 0.0),
        ([1.0, 1.0], [1.0, 1.0], 9.0),
        ([1.0, 1.0], [math.inf, 0.2], 0.7),
        ([1.0, 2.0], [1.0, 1.0], 3.0),
    ]
    for values, room, number in places:
        for cap in (None, tensor(room)):
            weight = tensor(values).requires_grad_()
            drop = tensor(number).requires_grad_()
            far = least_norm(weight, cap, drop, norm)
            near = largest_drop(weight, None if cap is None else cap.clamp(max=1e3), tensor(number), norm)
            (torch.where(torch.isinf(far), 0, far) + near).backward()
            assert bool(torch.isfinite(weight.grad).all()), (values, room, number)
            assert drop.grad is None or bool(torch.isfinite(drop.grad))


def test_power_norm() -> None:
    values = tensor([[3.0, 4.0], [0.0, 0.0], [1e200, 1e200], [1e-200, 0.0]])
    assert power_norm(values, 2).tolist() == pytest.approx([5, 0, math.sqrt(2) * 1e200, 1e-200])
    assert power_norm(values, math.inf).tolist() == [4, 0, 1e200, 1e-200]
    zero = torch.zeros(3, dtype=F64, requires_grad=True)
    power_norm(zero, 1.5).backward()
    assert zero.grad.tolist() == [0, 0, 0]
