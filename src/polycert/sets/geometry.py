"""One linear form over an l_p ball inside a box: how far it can fall, and how far one must go for it to fall.

Both questions see the perturbation only through its size per coordinate, `m_i = |delta_i|`, limited by the room
`cap_i` that the box leaves in the direction in which the form falls, so everything here works on
`weight = |a| >= 0` and `cap >= 0` (`inf` without a box), coordinates last:

- `largest_drop`: max  weight . m   subject to  ||m||_p <= eps,  0 <= m <= cap;
- `least_norm`:   min  ||m||_p      subject to  weight . m >= drop,  0 <= m <= cap   (Problem (4) of the paper).

For any `0 <= price <= weight`, `weight . m <= ||price||_q ||m||_p + (weight - price) . cap`, hence

- the drop is at most `eps ||price||_q + (weight - price) . cap`, and
- the norm is at least `(drop - (weight - price) . cap) / ||price||_q`,

with equality for the right prices: the weight itself where a coordinate is free, less where it is full. They come from
the optimum `m_i = min(cap_i, t w_i)`, `w_i = weight_i^(1/(p-1))`, Eq. (5), whose `t` is found by Newton's method on a
concave function from the left, which is the greedy of Algorithm 1; for p = 1 from filling the box in the order of the
weights. As any prices do, a search that stops early or rounds badly costs tightness, never soundness (correction 1 of
Algorithm 1), and the gradient is that of the bound with the full coordinates' prices held fixed (envelope theorem).

`relative` widens a result by the relative rounding error of a sum over the coordinates, for which the caller vouches.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from polycert.runtime.execution import apply

MAX_STEPS = 40
STEP = 2 * math.ulp(0.0)
NEARLY_1 = 1.02  # up to here powers 1 / (p - 1) of weights may leave even the range of float64


def largest_drop(weight: Tensor, cap: Tensor | None, eps: Tensor, norm: float, relative: float = 0.0) -> Tensor:
    """Upper bound (exact up to rounding) of `weight . m` over `||m||_p <= eps`, `0 <= m <= cap`.

    Args:
        weight: `[..., n]`, non-negative.
        cap: `[..., n]` room in each coordinate, or None without a box.
        eps: `[...]` radius of the ball.
        norm: p of the ball, in [1, inf].
        relative: rounding error of a sum over `n`, relative to the sum of its terms' sizes.
    """
    alone = eps * dual_norm(weight, norm) * (1 + 8 * relative)
    if cap is None:
        return alone
    if math.isinf(norm):
        return (weight * torch.minimum(cap, eps[..., None])).sum(-1) * (1 + 8 * relative)
    if _needs_range(norm, weight):
        return largest_drop(weight.double(), cap.double(), eps.double(), norm, relative).to(weight.dtype)
    weight, cap = torch.broadcast_tensors(weight, cap)
    drop = torch.minimum(alone, _full(weight, None, cap) * (1 + 8 * relative))
    for prices in drop_prices(weight, cap, eps, norm):
        price = torch.where((prices >= 0) & (prices < weight), prices, weight)
        joint = (eps * dual_norm(price, norm) + _full(weight, price, cap)) * (1 + 8 * relative)
        drop = torch.minimum(joint.nan_to_num(nan=math.inf, posinf=math.inf), drop)
    return drop


def drop_prices(weight: Tensor, cap: Tensor, eps: Tensor, norm: float) -> list[Tensor]:
    """Guesses of the prices at which the bound of `largest_drop` is least, each `[..., n]`."""
    with torch.no_grad():
        room = cap / torch.where(eps > 0, eps, 1)[..., None]  # of a ball of radius 1, where powers are tame
    return _prices(weight, room, None, norm)


def least_norm(weight: Tensor, cap: Tensor | None, drop: Tensor, norm: float, relative: float = 0.0) -> Tensor:
    """Lower bound (exact up to rounding) of `||m||_p` over `weight . m >= drop`, `0 <= m <= cap`.

    Infinite where the drop is out of reach inside the box, 0 where `drop <= 0`. Arguments as in `largest_drop`.
    """
    if _needs_range(norm, weight):
        wide = None if cap is None else cap.double()
        return least_norm(weight.double(), wide, drop.double(), norm, relative).to(weight.dtype)
    if cap is not None:
        weight, cap = torch.broadcast_tensors(weight, cap)
    found: Tensor = apply(_LeastNorm, weight, cap, drop, norm, relative)
    return found


class _LeastNorm(torch.autograd.Function):
    """`least_norm` with its gradient: `-m / ||price||_q` for the weights, `1 / ||price||_q` for the drop."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, cap: Tensor | None, drop: Tensor, norm: float, relative: float) -> Tensor:
        """The better of the box's prices and none at all; what backward needs are the prices that won."""
        wanted, price = drop * (1 - 8 * relative), weight
        norms = _ratio(wanted, dual_norm(weight, norm))  # Lemma 1 is a bound as well
        if cap is not None:
            for prices in _prices(weight, cap, wanted, norm):
                boxed = torch.minimum(prices.nan_to_num(nan=math.inf).clamp(min=0), weight)
                paid = _full(weight, boxed, cap) * (1 + 8 * relative)
                joint = _ratio(wanted - paid, dual_norm(boxed, norm))
                price = torch.where((joint > norms)[..., None], boxed, price)
                norms = torch.maximum(joint, norms)
            missed = _full(weight, None, cap) * (1 + 8 * relative) < wanted
            norms = torch.where(missed, math.inf, norms)
        norms = norms * (1 - 8 * relative)
        if relative > 0:  # a subnormal number would not be rounded down
            norms = torch.where(norms < torch.finfo(norms.dtype).tiny, 0.0, norms)
        norms = torch.where(drop > 0, norms, torch.zeros_like(norms))
        ctx.save_for_backward(weight, cap, price, norms, (drop > 0) & torch.isfinite(norms))
        ctx.norm = norm
        return norms

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor, None, None]:
        """Nothing where the drop is out of reach or not wanted."""
        weight, cap, price, norms, moving = ctx.saved_tensors
        size = dual_norm(price, ctx.norm)
        share = torch.where(moving & (size > 0), gradient / torch.where(size > 0, size, 1), 0)
        by_weight = by_cap = None
        if ctx.needs_input_grad[0]:
            length = torch.where(moving, norms, 0)
            by_weight = -share[..., None] * _moves(weight, cap, price, length, size, ctx.norm)
        if ctx.needs_input_grad[1]:
            by_cap = -share[..., None] * (weight - price)
        return by_weight, by_cap, share, None, None


def _moves(weight: Tensor, cap: Tensor | None, price: Tensor, length: Tensor, size: Tensor, norm: float) -> Tensor:
    """The optimal `m` (Eq. (5)): full coordinates at their cap, free ones in proportion to `weight^(q - 1)`."""
    full = price < weight
    if math.isinf(norm):
        return length[..., None].expand_as(weight) if cap is None else torch.where(full, cap, length[..., None])
    stops = torch.zeros_like(weight) if cap is None else torch.where(full, cap, 0)
    if norm == 1:  # all of what is left in the coordinate that sets the price
        pivot = weight.masked_fill(full, -math.inf).argmax(-1, keepdim=True)
        return stops.scatter(-1, pivot, (length - stops.sum(-1))[..., None])
    ratio = weight / torch.where(size > 0, size, 1)[..., None]
    return torch.where(full, stops, length[..., None] * ratio ** (1 / (norm - 1)))


def dual_norm(weight: Tensor, norm: float) -> Tensor:
    """`||weight||_q` over the last axis with 1/p + 1/q = 1, by scaled powers; finite gradients at 0."""
    if norm == 1:
        return weight.amax(-1)
    if math.isinf(norm):
        return weight.sum(-1)
    return power_norm(weight, norm / (norm - 1))


def power_norm(weight: Tensor, order: float) -> Tensor:
    """`(sum weight^order)^(1/order)` over the last axis, scaled by the largest entry; gradient 0 at 0."""
    if math.isinf(order):
        return weight.amax(-1)
    top = weight.detach().amax(-1, keepdim=True)
    top = torch.where((top > 0) & torch.isfinite(top), top, torch.ones_like(top))
    total = ((weight / top) ** order).sum(-1)
    empty = total == 0
    root = torch.where(empty, torch.ones_like(total), total) ** (1 / order)
    return torch.where(empty, torch.zeros_like(root), root) * top.squeeze(-1)


def signed_powers(coef: Tensor, top: Tensor, order: float) -> tuple[Tensor, Tensor]:
    """`max(c, 0)^order` and `max(-c, 0)^order` of coefficients in units of `top`, which carries no gradient."""
    unit = torch.where(top > 0, top, torch.ones_like(top))
    positive, negative = apply(_SignedPowers, coef, unit, order)
    return positive, negative


class _SignedPowers(torch.autograd.Function):
    """In place, and with nothing kept but the coefficients: all rows of a layer are much memory."""

    @staticmethod
    def forward(ctx: Any, coef: Tensor, unit: Tensor, order: float) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(coef, unit)
        ctx.order = order
        return _powers(coef / unit, order)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_positive: Tensor, by_negative: Tensor) -> tuple[Tensor, None, None]:
        coef, unit = ctx.saved_tensors
        positive, negative = _powers(coef / unit, ctx.order - 1)
        return positive.mul_(by_positive).sub_(negative.mul_(by_negative)).mul_(ctx.order).div_(unit), None, None


def _powers(scaled: Tensor, order: float) -> tuple[Tensor, Tensor]:
    """Of the positive and of the negative part; `scaled` is used up."""
    return scaled.clamp(min=0).pow_(order), scaled.neg_().clamp_(min=0).pow_(order)


def _full(weight: Tensor, price: Tensor | None, cap: Tensor) -> Tensor:
    """`(weight - price) . cap`, where nothing times an endless room is nothing."""
    excess = weight if price is None else weight - price
    endless = torch.isinf(cap)
    finite = (excess * torch.where(endless, 0, cap)).sum(-1)  # apart, so that gradients stay finite
    return finite + torch.where(endless & (excess > 0), math.inf, 0.0).to(finite.dtype).sum(-1)


def _ratio(drop: Tensor, size: Tensor) -> Tensor:
    """`drop / size`, at least 0; infinite where nothing moves the form at all.

    A subnormal size may be too small by a step of its own, which is added; it is nothing to larger ones.
    """
    flat = size == 0
    value = (drop / torch.where(flat, 1, size + STEP)).clamp(min=0)
    return torch.where(flat, torch.where(drop > 0, math.inf, 0.0).to(value), value)


def _needs_range(norm: float, weight: Tensor) -> bool:
    """Whether powers 1 / (p - 1) of float32 weights would leave its range: all but p = 1, 2 and inf."""
    return norm not in (1, 2, math.inf) and weight.dtype != torch.float64


def _newton(start: Tensor, step: Callable[[Tensor], Tensor]) -> Tensor:
    """Iterate a monotone `step` from `start` until nothing grows any more; every iterate is below the root."""
    t = start
    for _ in range(MAX_STEPS):
        grown = torch.maximum(t, step(t).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
        if bool((grown <= t).all()):
            break
        t = grown
    return t


def _prices(weight: Tensor, cap: Tensor, drop: Tensor | None, norm: float) -> list[Tensor]:
    """The prices of full coordinates, for the given drop or, without one, for norm 1; two guesses where p is near 1."""
    if norm == 1:
        return [_prices_by_filling(weight, cap, drop)]
    with torch.no_grad():
        if drop is not None and math.isinf(norm):
            return [_prices_by_level(weight, cap, drop)]
        found = [_prices_by_scaling(weight, cap, drop, norm)]
        return found if norm > NEARLY_1 else [*found, _prices_by_filling(weight, cap, drop)]


def _prices_by_level(weight: Tensor, cap: Tensor, drop: Tensor) -> Tensor:
    """Prices for p = inf: coordinates all go as far as t, or to their cap, which makes them worthless."""

    def step(t: Tensor) -> Tensor:
        level = t[..., None]
        gained = (weight * torch.minimum(cap, level)).sum(-1)
        return t + (drop - gained) / (weight * (cap > level)).sum(-1)

    total = weight.sum(-1)
    t = _newton((drop / torch.where(total > 0, total, 1)).clamp(min=0), step)
    return weight * (cap >= t[..., None])


def _prices_by_scaling(weight: Tensor, cap: Tensor, drop: Tensor | None, norm: float) -> Tensor:
    """Prices at `m = min(cap, t w)` for p in (1, inf): such that `weight . m` is the drop, or `||m||_p` is 1.

    A full coordinate is worth `weight (cap / (t w))^(p - 1)`: what would make it stop there by itself.
    """
    top = weight.amax(-1, keepdim=True)
    scaled = weight / torch.where(top > 0, top, torch.ones_like(top))
    w = scaled ** (1 / (norm - 1))
    t = _reach_norm(w, cap, norm) if drop is None else _reach_drop(weight, w, cap, drop)
    share = (cap / (t[..., None] * w)).nan_to_num(nan=1.0, posinf=math.inf, neginf=math.inf)
    return torch.where(share < 1, weight * share ** (norm - 1), weight)


def _reach_drop(weight: Tensor, w: Tensor, cap: Tensor, drop: Tensor) -> Tensor:
    """t with `weight . min(cap, t w) = drop`."""
    slope, spent = weight * w, torch.where(weight > 0, weight * cap, 0)

    def step(t: Tensor) -> Tensor:
        fixed = t[..., None] * w >= cap
        return (drop - torch.where(fixed, spent, 0).sum(-1)) / torch.where(fixed, 0, slope).sum(-1)

    total = slope.sum(-1)
    return _newton((drop / torch.where(total > 0, total, 1)).clamp(min=0), step)


def _reach_norm(w: Tensor, cap: Tensor, norm: float) -> Tensor:
    """t with `||min(cap, t w)||_p = 1`."""
    room = cap.clamp(max=1)  # no coordinate of a ball of radius 1 goes further
    w_p, cap_p = w**norm, room**norm

    def step(t: Tensor) -> Tensor:
        fixed = t[..., None] * w >= room
        left = 1 - torch.where(fixed, cap_p, 0).sum(-1)
        return (left / torch.where(fixed, 0, w_p).sum(-1)).clamp(min=0) ** (1 / norm)

    total = w_p.sum(-1)
    return _newton(1 / torch.where(total > 0, total, 1) ** (1 / norm), step)


def _prices_by_filling(weight: Tensor, cap: Tensor, drop: Tensor | None) -> Tensor:
    """One price for p = 1: the weight of the coordinate in which the drop, or the norm 1, is reached.

    The price is a weight itself and carries its gradient.
    """
    with torch.no_grad():
        order = weight.argsort(-1, descending=True)
        fills = cap if drop is None else torch.where(weight > 0, weight * cap, 0)
        filled = fills.gather(-1, order).cumsum(-1)
        target = torch.ones_like(filled[..., 0]) if drop is None else drop
        last = (filled < target[..., None]).sum(-1, keepdim=True)
        pivot = order.gather(-1, last.clamp(max=weight.shape[-1] - 1))
    price = weight.gather(-1, pivot)
    if drop is None:  # a box inside the ball: all coordinates are full, and the ball has no price
        price = torch.where(last < weight.shape[-1], price, torch.zeros_like(price))
    return price.expand_as(weight)
