"""The set of inputs around a sample: an l_p ball of radius eps inside a box."""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass, field, replace
from decimal import ROUND_DOWN, Context
from functools import cached_property
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from polycert.errors import PolycertError
from polycert.forms import Form
from polycert.sets.geometry import dual_norm, largest_drop, power_norm, signed_powers
from polycert.sets.interval import Interval, Rounding, difference_up, number_up, outward, round_down, round_up

Array = Tensor | np.ndarray
Concretised = tuple[Tensor, Tensor]
Minimum = Literal["open", "joint", "either"]
JOINT_NUMBERS = 2**22  # coefficients whose joint minimum is computed at a time
LEAST_OPEN_NORM = 1.05  # for smaller p the dual order is so large that powers of most coefficients underflow


def norm_text(norm: float) -> str:
    """A norm as records and recipes write it: in six digits if they suffice, else in all."""
    short = f"{norm:g}"
    return short if float(short) == norm else repr(norm)


def eps_text(eps: float) -> str:
    """A radius in six digits, rounded down, as a larger one was not proved."""
    short = f"{eps:.6g}"
    return short if float(short) <= eps else f"{Context(prec=6, rounding=ROUND_DOWN).create_decimal(eps):g}"


@dataclass(frozen=True)
class Ball:
    """The set `||x' - x||_norm <= eps`, `low <= x' <= high`, for any sample x.

    Args:
        norm: p of the l_p norm, in [1, inf].
        eps: the radius, one number >= 0 or one per sample.
        low, high: the box; each is None, a number, or an array of the shape of one sample.
        minimum: how pre-activation bounds use ball and box when p < inf. "open" takes the ball, where only the
            coordinates that the box lets move count. "joint" takes the intersection of ball and box exactly: a little
            tighter, and up to a hundred times slower. "either" takes the better of the ball alone and the box alone,
            which is the paper's convention. Margins and distances are always joint.

    Examples:
        >>> Ball(norm=2, eps=0.3, low=0.0, high=1.0).at(torch.zeros(1, 2)).box.upper[0, 0] >= 0.3
        tensor(True)
    """

    norm: float = math.inf
    eps: float | Array = 0.0
    low: float | Array | None = None
    high: float | Array | None = None
    minimum: Minimum = field(default="open", kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.norm, Real) or not self.norm >= 1 or _as_float(self.norm) is None:
            raise PolycertError(f"norm must be at least 1 (inf for the maximum norm), got {self.norm!r}")
        eps = as_numbers("eps", self.eps)
        if not bool((eps >= 0).all()) or not bool(torch.isfinite(eps).all()) or eps.dim() > 1:
            raise PolycertError(f"eps must be a finite number >= 0, or one per sample, got {self.eps}")
        if self.minimum not in get_args(Minimum):
            raise PolycertError(f"minimum must be one of {', '.join(get_args(Minimum))}, got {self.minimum!r}")
        sides = [as_numbers(name, side) for name in ("low", "high") if (side := getattr(self, name)) is not None]
        if len(sides) == 2:
            low, high = sides
            try:
                ordered = bool((low <= high).all())
            except RuntimeError:
                raise PolycertError(f"low and high differ in shape: {tuple(low.shape)}, {tuple(high.shape)}") from None
            if not ordered:
                raise PolycertError("low must not be above high")

    def at(self, x: Tensor) -> Region:
        """The set around each sample of a batch `x` `[batch, *shape]`."""
        eps = as_numbers("eps", self.eps).to(x.device)
        if eps.dim() and eps.shape != x.shape[:1]:
            raise PolycertError(f"eps has {eps.shape[0]} values for {x.shape[0]} samples: give one per sample")
        shape = tuple(x.shape[1:])
        region = Region(
            x.detach(),
            self.norm,
            eps.expand(x.shape[0]),
            _side(self.low, shape, x, -1),
            _side(self.high, shape, x, 1),
            self.minimum,
        )
        region.check_inside()
        return region

    def with_eps(self, eps: float | Array) -> Ball:
        """The same specification with another radius."""
        return replace(self, eps=eps)


@dataclass(frozen=True, eq=False)
class Region:
    """The sets around the samples of a batch. Its tensors are constants without gradients."""

    x: Tensor  # [batch, *shape]
    norm: float
    eps: Tensor  # [batch], float64
    low: Tensor | None  # [1, *shape], or [batch, *shape] if each sample has its own box
    high: Tensor | None
    minimum: str

    def check_inside(self) -> None:
        """Raise `PolycertError` unless all samples are in the box: a radius around other points means nothing."""
        if not torch.equal(self.clip(self.x), self.x):
            raise PolycertError("inputs lie outside the box [low, high]: scale them, or widen the box")

    def __getitem__(self, index: Tensor | slice) -> Region:
        """The sets around some of the samples."""
        low, high = (side if side is None or side.shape[0] == 1 else side[index] for side in (self.low, self.high))
        return replace(self, x=self.x[index], eps=self.eps[index], low=low, high=high)

    def to(self, dtype: torch.dtype) -> Region:
        """The set in another floating-point type: the box is rounded outward, x to the nearest number."""
        if dtype == self.x.dtype:
            return self
        low = None if self.low is None else round_down(self.low, dtype)
        high = None if self.high is None else round_up(self.high, dtype)
        return replace(self, x=self.x.to(dtype), low=low, high=high)

    @cached_property
    def radius(self) -> Tensor:
        """eps in the type of x, rounded up, `[batch]`."""
        return round_up(self.eps, self.x.dtype)

    @cached_property
    def box(self) -> Interval:
        """The smallest box around the set, rounded outward."""
        eps = self.radius.reshape(-1, *(1,) * (self.x.dim() - 1))
        lower, upper = outward(self.x - eps, self.x + eps)
        lower, upper = (torch.where(eps > 0, end, self.x) for end in (lower, upper))
        if self.low is not None:
            lower = torch.maximum(lower, self.low)
        if self.high is not None:
            upper = torch.minimum(upper, self.high)
        return Interval(lower, upper)

    @cached_property
    def _middle(self) -> tuple[Tensor, Tensor]:
        """The centre and the half-width of `box`; the half-width is rounded up."""
        return _centre(self.box)

    @cached_property
    def _given_box(self) -> tuple[Tensor, Tensor]:
        """The centre and the half-width of [low, high]; the half-width is infinite if any side is open."""
        low = self.x.new_full((1, *self.x.shape[1:]), -math.inf) if self.low is None else self.low
        high = self.x.new_full((1, *self.x.shape[1:]), math.inf) if self.high is None else self.high
        if bool((torch.isinf(low) | torch.isinf(high)).any()):
            return torch.zeros_like(low), torch.full_like(low, math.inf)
        return _centre(Interval(low, high))

    @property
    def magnitude(self) -> Tensor:
        """The largest absolute value of each coordinate, `[batch, *shape]`."""
        return self.box.magnitude

    def concretise(self, form: Form, rounding: Rounding | None = None, *, joint: bool = False) -> Concretised:
        """The least and the greatest value of every row of a form over the set, `[batch, rows]` each.

        `joint` takes ball and box together whatever `minimum` says. With `rounding`, the result covers the rounding of
        what the radius contributes. The caller covers the rounding of the sums over the coordinates.
        """
        relative = 0.0 if rounding is None else rounding.gamma(form.length)
        if math.isinf(self.norm):
            return _around(*form.dots(*self._middle), 1 + 2 * relative)
        form = form.inside()
        if joint or self.minimum == "joint" or (self.low is None and self.high is None):
            return self._joint(form, relative)
        at_x = form.dot(self.x)
        if self.minimum == "open":
            exponents = 0.0 if rounding is None else _exponent_error(form)
            falling, rising = (drop * (1 + 2 * relative + exponents) for drop in self._open(form))
            ball, (centre, half) = (at_x - falling, at_x + rising), self._middle
        else:
            ball, (centre, half) = _around(at_x, self._ball_alone(form), 1 + 2 * relative), self._given_box
        if bool(torch.isinf(half).any()):
            return ball
        box = _around(*form.dots(centre, half), 1 + 2 * relative)
        return torch.maximum(ball[0], box[0]), torch.minimum(ball[1], box[1])

    def _ball_alone(self, form: Form) -> Tensor:
        """How far each row can fall and rise in the ball without the box, `[batch, rows]`: the dual norm times eps."""
        return self._per_row(form, dual_norm(form.coefficients().abs(), self.norm)) * self.radius[:, None]

    def _per_row(self, form: Form, values: Tensor) -> Tensor:
        """One value per row, arranged as the reduced coefficients are, as `[batch or 1, rows]`."""
        if values.dim() == 3:  # windows, perhaps shared by all points of the grid
            values = values.expand(-1, form.align(self.x[:1]).shape[1], -1)
        return form.collect(values)

    def _open(self, form: Form) -> Concretised:
        """How far each row can fall and rise in the ball, where the box fixes the coordinates that cannot move.

        This is the dual norm of the coefficients of the other coordinates, as two products for each direction. For p
        near 1 the dual norm is nearly a maximum, so the better of a ball of larger p and the ball alone is taken.
        """
        norm = max(self.norm, LEAST_OPEN_NORM)
        order = norm / (norm - 1)
        coef = form.coefficients()
        top = torch.linalg.vector_norm(coef.detach(), torch.inf, -1, keepdim=True)
        positive, negative = (form.with_coefficients(size) for size in signed_powers(coef, top, order))
        down, up = ((cap > 0).to(coef.dtype) for cap in self.caps())
        # Powers of coefficients far below the largest may underflow, and the largest may be one that cannot move.
        lost = form.length * torch.finfo(coef.dtype).tiny
        (fall, rise), (back, forth) = _dots(positive, down, up), _dots(negative, up, down)
        scale = self._per_row(form, top.squeeze(-1)) * self.radius[:, None]
        drops = _root(fall + back + lost, order) * scale, _root(rise + forth + lost, order) * scale
        if norm == self.norm:
            return drops
        alone = self._ball_alone(form)
        return torch.minimum(drops[0], alone), torch.minimum(drops[1], alone)

    def _joint(self, form: Form, relative: float) -> Concretised:
        """The least and the greatest value of each row over the intersection of ball and box."""
        at_x = form.dot(self.x)
        if self.low is None and self.high is None:
            return _around(at_x, self._ball_alone(form), 1 + 2 * relative)
        coef = form.coefficients()
        eps = self.radius.reshape(-1, *(1,) * (coef.dim() - 2))
        caps = [form.align(cap) for cap in self.caps()]
        # Coefficients that all samples share are copied for each sample here, so a few rows at a time.
        step = max(1, JOINT_NUMBERS // (len(self.x) * coef[:1, :1].numel()))
        falling, rising = [], []
        for begin in range(0, max(coef.shape[1], caps[0].shape[1]), step):
            part = coef[:, begin : begin + step] if coef.shape[1] > 1 else coef
            down, up = (cap[:, begin : begin + step] if cap.shape[1] > 1 else cap for cap in caps)
            weight = part.abs()
            falling.append(largest_drop(weight, torch.where(part < 0, up, down), eps, self.norm, relative))
            rising.append(largest_drop(weight, torch.where(part > 0, up, down), eps, self.norm, relative))
        return at_x - form.collect(torch.cat(falling, 1)), at_x + form.collect(torch.cat(rising, 1))

    def caps(self) -> tuple[Tensor, Tensor]:
        """How far each coordinate can go down and up inside `box`, `[batch, *shape]` each, rounded up."""
        down, up = self.x - self.box.lower, self.box.upper - self.x
        return difference_up(down.clamp(min=0)), difference_up(up.clamp(min=0))

    def box_caps(self) -> tuple[Tensor, Tensor] | None:
        """How far each coordinate can go inside [low, high], or None without a box; exact for float32 in float64."""
        if self.low is None and self.high is None:
            return None
        down = torch.full_like(self.x, math.inf) if self.low is None else self.x - self.low
        up = torch.full_like(self.x, math.inf) if self.high is None else self.high - self.x
        return down, up

    def project(self, points: Tensor) -> Tensor:
        """Points `[batch, *shape]` moved into the set: clipped to the box, then moved towards x into the ball.

        The second move does not leave the box, which is convex and contains x.
        """
        clipped = self.clip(points)
        if math.isinf(self.norm):
            return torch.maximum(torch.minimum(clipped, self.box.upper), self.box.lower)
        delta = (clipped - self.x).flatten(1)
        size = power_norm(delta.abs(), self.norm)
        shrink = torch.where(size > self.radius, self.radius / size.clamp(min=1e-30), torch.ones_like(size))
        return self.clip(self.x + (delta * shrink[:, None]).reshape(self.x.shape))

    def clip(self, points: Tensor) -> Tensor:
        """Points clipped to the box [low, high]."""
        if self.low is not None:
            points = torch.maximum(points, self.low)
        return points if self.high is None else torch.minimum(points, self.high)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Random points of the set, `[count, batch, *shape]`: on the surface of the ball, then clipped to the box."""
        draws = []
        for index in range(count):
            noise = torch.rand(self.x.shape, generator=generator, dtype=self.x.dtype, device=self.x.device) * 2 - 1
            noise = noise.sign() if index % 2 else noise
            if index % 4 >= 2:  # few coordinates that move far, as at the corners of an l_1 ball
                noise = noise * (torch.rand(self.x.shape, generator=generator, device=self.x.device) < 0.2)
            size = power_norm(noise.flatten(1).abs(), self.norm).clamp(min=1e-30)
            scale = (self.radius / size).reshape(-1, *(1,) * (self.x.dim() - 1))
            draws.append(self.project(self.x + noise * scale))
        return torch.stack(draws)


def as_numbers(name: str, value: float | Array) -> Tensor:
    """One number or an array of them as float64; raises `PolycertError` if it is something else or has a NaN."""
    given: Any = _as_float(value) if isinstance(value, Real) else value
    try:
        found = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        found = None
    if found is None or found.is_sparse or (torch.is_tensor(value) and value.is_complex()):
        raise PolycertError(f"{name} must be a real number or an array of them, got {reprlib.repr(value)}")
    if bool(found.isnan().any()):
        raise PolycertError(f"{name} must not be NaN")
    return found


def _as_float(value: Real) -> float | None:
    """The number as a float; None if it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return None


def _side(value: float | Array | None, shape: tuple[int, ...], like: Tensor, sign: int) -> Tensor | None:
    """One side of the box, `[1, *shape]`, rounded outward to the type of the inputs; `sign` is -1 for the lower one."""
    if value is None:
        return None
    if isinstance(value, Real):
        return like.new_full((), sign * number_up(sign * float(value), like.dtype)).expand(1, *shape)
    side = sign * round_up(sign * as_numbers("a side", value).to(like.device), like.dtype)
    try:
        return side.expand(1, *shape)
    except RuntimeError:
        raise PolycertError(
            f"the box has shape {tuple(side.shape)} but a sample has shape {shape}: give a number or one per feature"
        ) from None


def _centre(box: Interval) -> tuple[Tensor, Tensor]:
    """The centre of a box, and its half-width rounded up."""
    centre, half = box.middle(rigorous=True)
    return centre, difference_up(half)


def _dots(form: Form, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """`form.dot` of two tensors: one product, with one gradient, if all samples share the coefficients."""
    if len(form.coefficients()) > 1:
        return form.dot(first), form.dot(second)
    both = form.dot(torch.cat([first, second]))
    return both[: len(first)], both[len(first) :]


def _root(total: Tensor, order: float) -> Tensor:
    """`total ** (1 / order)`, with gradient 0 where the total is so small that its gradient would overflow."""
    large = total > math.sqrt(torch.finfo(total.dtype).tiny)
    return torch.where(large, torch.where(large, total, 1) ** (1 / order), total.detach() ** (1 / order))


def _exponent_error(form: Form) -> float:
    """A bound of the relative error of powers and roots whose exponent is rounded, for all normal numbers."""
    kind = torch.finfo(form.coefficients().dtype)
    return -2 * math.log(kind.tiny) * kind.eps


def _around(middle: Tensor, spread: Tensor, factor: float) -> Concretised:
    """`middle - factor * spread` and `middle + factor * spread`."""
    wide = spread if factor == 1 else spread * factor
    return middle - wide, middle + wide
