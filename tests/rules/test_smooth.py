"""Smooth activations: their extents hold every value of a fine grid, in both types, and touch it."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import Tensor

from polycert.bounding.relaxations import adaptive, parallel
from polycert.rules.activation import SmoothActivation
from polycert.rules.bump import Gelu, Silu, TanhGelu
from polycert.rules.convex import Elu, Exp, Reciprocal, Softplus, Square
from polycert.rules.s_shaped import Erf
from polycert.sets.interval import Interval, Rounding

F32, F64 = torch.float32, torch.float64
CURVES: list[type[SmoothActivation]] = [Exp, Softplus, Square, Elu, Reciprocal, Gelu, TanhGelu, Silu]

EXACT = {
    Exp: mpmath.exp,
    Softplus: lambda z: mpmath.log1p(mpmath.exp(z)),
    Square: lambda z: z * z,
    Elu: lambda z: z if z > 0 else mpmath.expm1(z),
    Reciprocal: lambda z: 1 / max(z, mpmath.mpf(1)),
    Gelu: lambda z: z * mpmath.ncdf(z),
    TanhGelu: lambda z: z * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (z + mpmath.mpf("0.044715") * z**3))) / 2,
    Silu: lambda z: z / (1 + mpmath.exp(-z)),
}


def intervals(kind: type[SmoothActivation], dtype: torch.dtype, count: int = 400) -> tuple[Tensor, Tensor]:
    """Random intervals, narrow and wide, left, right and across 0; a few without width."""
    generator = torch.Generator().manual_seed(1)
    centre = torch.randn(count, generator=generator, dtype=F64) * 4
    width = 10 ** (torch.rand(count, generator=generator, dtype=F64) * 5 - 4)
    width[::20] = 0
    if kind is Reciprocal:
        centre = centre.abs() + 1
    return (centre - width).to(dtype), (centre + width).to(dtype)


def grid(lower: Tensor, upper: Tensor, points: int = 2001) -> Tensor:
    """`[points, n]` in float64, the ends included."""
    share = torch.linspace(0, 1, points, dtype=F64)[:, None]
    return torch.minimum(torch.maximum(lower.double() * (1 - share) + upper.double() * share, lower), upper)


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("relaxation", [parallel, adaptive], ids=["parallel", "adaptive"])
@pytest.mark.parametrize("kind", CURVES, ids=lambda kind: kind.__name__)
def test_lines_hold_every_value(kind: type[SmoothActivation], relaxation, dtype: torch.dtype) -> None:
    """With the rounding terms no value of the function in float64 is outside, not by any amount."""
    curve = kind((400,))
    lower, upper = intervals(kind, dtype)
    lines = relaxation(curve, Interval(lower, upper), Rounding(dtype, 16))
    points = grid(lower, upper)
    if kind is Reciprocal:
        points = points.clamp(min=1)
    values = curve.value(points)
    room = lines.error.double() + 1e-14 * (values.abs() + 1)
    assert bool((values >= lines.lower_slope.double() * points + lines.lower_offset.double() - room).all())
    assert bool((values <= lines.upper_slope.double() * points + lines.upper_offset.double() + room).all())


@pytest.mark.parametrize("kind", CURVES, ids=lambda kind: kind.__name__)
def test_extents_are_tight(kind: type[SmoothActivation]) -> None:
    """For slopes of all sizes the extent is the least and largest value on a fine grid, nearly."""
    curve = kind((400,))
    lower, upper = intervals(kind, F64)
    points = grid(lower, upper)
    if kind is Reciprocal:
        points = points.clamp(min=1)
    for slope in (-0.7, -0.05, 0.0, 0.3, 0.99, 1.05, 2.0):
        given = torch.full_like(lower, slope)
        low, high = curve.offset_range(given, lower, upper)
        gaps = curve.value(points) - slope * points
        scale = 1 + gaps.abs().amax(0)
        assert bool((low <= gaps.amin(0) + 1e-12 * scale).all())
        assert bool((high >= gaps.amax(0) - 1e-12 * scale).all())
        assert bool((gaps.amin(0) - low <= 1e-3 * scale).all())
        assert bool((high - gaps.amax(0) <= 1e-3 * scale).all())


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("kind", CURVES, ids=lambda kind: kind.__name__)
def test_values_are_as_accurate_as_the_error_model_says(kind: type[SmoothActivation], dtype: torch.dtype) -> None:
    """Against fifty digits: the library's error is covered where the activation says how large its values are."""
    curve = kind((1,))
    rounding = Rounding(dtype, 16)
    points = torch.cat([torch.linspace(-9, 9, 181), torch.tensor([1e-6, -1e-6, 30.0, -30.0])]).to(dtype)
    if kind is Reciprocal:
        points = points.abs() + 1
    pairs = zip(points.tolist(), curve.value(points).tolist(), strict=True)
    with mpmath.workdps(50):
        errors = [float(EXACT[kind](mpmath.mpf(z)) - mpmath.mpf(value)) for z, value in pairs]
    exact = torch.tensor(errors, dtype=F64)
    assert bool((exact.abs() <= rounding.library(curve.peak(points, points)).double()).all())


@pytest.mark.parametrize("kind", [Gelu, TanhGelu, Silu], ids=lambda kind: kind.__name__)
def test_bends_are_where_the_second_derivative_changes_sign(kind: type[SmoothActivation]) -> None:
    with mpmath.workdps(30):
        for sign in (-1, 1):
            before, after = (mpmath.diff(EXACT[kind], sign * kind.bend * part, 2) for part in (0.999, 1.001))
            assert before > 0 > after


@pytest.mark.parametrize("kind", CURVES, ids=lambda kind: kind.__name__)
def test_slopes_are_derivatives(kind: type[SmoothActivation]) -> None:
    curve = kind((1,))
    z = torch.linspace(1.1, 6, 50, dtype=F64) if kind is Reciprocal else torch.linspace(-6, 6, 101, dtype=F64) + 0.01
    z.requires_grad_()
    (slope,) = torch.autograd.grad(curve.value(z).sum(), z)
    torch.testing.assert_close(curve.slope(z), slope, rtol=1e-10, atol=1e-10)


def test_the_error_function() -> None:
    z = torch.linspace(-4, 4, 81, dtype=F64)
    erf = Erf((81,), outer=2 / math.sqrt(math.pi))
    torch.testing.assert_close(erf.forward(z), torch.erf(z), rtol=1e-14, atol=1e-15)
    lower, upper = intervals(Exp, F64)
    lines = parallel(Erf((400,), outer=2 / math.sqrt(math.pi)), Interval(lower, upper), Rounding(F64, 16))
    points = grid(lower, upper)
    assert bool((torch.erf(points) >= lines.lower_slope * points + lines.lower_offset - lines.error - 1e-14).all())
    assert bool((torch.erf(points) <= lines.upper_slope * points + lines.upper_offset + lines.error + 1e-14).all())
