"""One linear form over an l_p ball inside a box: how far it can fall, and the least norm at which it falls so far.

Only the size of the move in each coordinate matters, `m_i = |delta_i|`. The box limits it to `cap_i`, the distance from
the sample to the side towards which the form falls. The functions take `weight = |a| >= 0` and `cap >= 0` (`inf`
where the box is open), with the coordinates on the last axis:

- `largest_drop`: max  weight . m   subject to  ||m||_p <= eps,  0 <= m <= cap;
- `least_norm`:   min  ||m||_p      subject to  weight . m >= drop,  0 <= m <= cap   (Problem (4) of the paper).

The dual bound. For any `0 <= price <= weight`, `weight . m <= ||price||_q ||m||_p + (weight - price) . cap`. Hence

- the drop is at most `eps ||price||_q + (weight - price) . cap`, and
- the norm is at least `(drop - (weight - price) . cap) / ||price||_q`.

Both hold with equality for the optimal prices: the weight itself where a coordinate is below its cap, less where it is
at its cap. They follow from the optimum `m_i = min(cap_i, t w_i)`, `w_i = weight_i^(1/(p-1))`, Eq. (5). Newton's method
on a concave function finds `t` from the left; this is the greedy Algorithm 1. For p = 1 the box is filled in the order
of the weights. Any prices give a valid bound, so a search that stops early or rounds badly costs tightness, never
soundness (Algorithm 1 stopped early gives a lower bound). The gradient is that of the dual bound with the prices of
coordinates at their cap held fixed (envelope theorem).

`relative` is the relative rounding error of a sum over the coordinates, which the caller knows; results cover it.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from polycert.runtime.execution import apply

MAX_STEPS = 40  # of Newton's method
STEP = 2 * math.ulp(0.0)
NEARLY_1 = 1.02  # up to this p the powers 1 / (p - 1) of weights may leave the range of float64


def largest_drop(weight: Tensor, cap: Tensor | None, eps: Tensor, norm: float, relative: float = 0.0) -> Tensor:
    """An upper bound, exact up to rounding, of `weight . m` over `||m||_p <= eps`, `0 <= m <= cap`: `[...]`.

    Args:
        weight: `[..., n]`, non-negative.
        cap: `[..., n]`, how far each coordinate can move, or None without a box.
        eps: `[...]`, radius of the ball.
        norm: p of the ball, in [1, inf].
        relative: rounding error of a sum of `n` terms, relative to the sum of their absolute values.
    """
    alone = eps * dual_norm(weight, norm) * (1 + 8 * relative)
    if cap is None:
        return alone
    if math.isinf(norm):
        return (weight * torch.minimum(cap, eps[..., None])).sum(-1) * (1 + 8 * relative)
    if _needs_float64(norm, weight):
        return largest_drop(weight.double(), cap.double(), eps.double(), norm, relative).to(weight.dtype)
    weight, cap = torch.broadcast_tensors(weight, cap)
    drop = torch.minimum(alone, _cap_dot(weight, cap) * (1 + 8 * relative))
    for prices in drop_prices(weight, cap, eps, norm):
        price = torch.where((prices >= 0) & (prices < weight), prices, weight)
        joint = (eps * dual_norm(price, norm) + _cap_dot(weight - price, cap)) * (1 + 8 * relative)
        drop = torch.minimum(joint.nan_to_num(nan=math.inf, posinf=math.inf), drop)
    return drop


def drop_prices(weight: Tensor, cap: Tensor, eps: Tensor, norm: float) -> list[Tensor]:
    """Candidates for the prices at which the dual bound of the drop is least, each `[..., n]`."""
    with torch.no_grad():
        scaled = cap / torch.where(eps > 0, eps, 1)[..., None]  # for the ball of radius 1, where powers stay in range
    return _prices(weight, scaled, None, norm)


def least_norm(weight: Tensor, cap: Tensor | None, drop: Tensor, norm: float, relative: float = 0.0) -> Tensor:
    """A lower bound, exact up to rounding, of `||m||_p` over `weight . m >= drop`, `0 <= m <= cap`: `[...]`.

    Infinite where no move inside the box gives the drop, 0 where `drop <= 0`. Arguments as in `largest_drop`.
    """
    if _needs_float64(norm, weight):
        caps = None if cap is None else cap.double()
        return least_norm(weight.double(), caps, drop.double(), norm, relative).to(weight.dtype)
    if cap is not None:
        weight, cap = torch.broadcast_tensors(weight, cap)
    found: Tensor = apply(_LeastNorm, weight, cap, drop, norm, relative)
    return found


class _LeastNorm(torch.autograd.Function):
    """`least_norm` with its gradient: `-m / ||price||_q` for the weights, `1 / ||price||_q` for the drop."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, cap: Tensor | None, drop: Tensor, norm: float, relative: float) -> Tensor:
        """The better of Lemma 1 (price = weight) and the dual bound with the box; the better prices are saved."""
        wanted, price = drop * (1 - 8 * relative), weight
        norms = _ratio(wanted, dual_norm(weight, norm))
        if cap is not None:
            for candidate in _prices(weight, cap, wanted, norm):
                candidate = torch.minimum(candidate.nan_to_num(nan=math.inf).clamp(min=0), weight)
                at_caps = _cap_dot(weight - candidate, cap) * (1 + 8 * relative)
                joint = _ratio(wanted - at_caps, dual_norm(candidate, norm))
                price = torch.where((joint > norms)[..., None], candidate, price)
                norms = torch.maximum(joint, norms)
            unreachable = _cap_dot(weight, cap) * (1 + 8 * relative) < wanted
            norms = torch.where(unreachable, math.inf, norms)
        norms = norms * (1 - 8 * relative)
        if relative > 0:  # the product does not round a subnormal number down
            norms = torch.where(norms < torch.finfo(norms.dtype).tiny, 0.0, norms)
        norms = torch.where(drop > 0, norms, torch.zeros_like(norms))
        ctx.save_for_backward(weight, cap, price, norms, (drop > 0) & torch.isfinite(norms))
        ctx.norm = norm
        return norms

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor, None, None]:
        """Gradient 0 where the norm is infinite or the drop is not positive."""
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
    """The optimal `m` (Eq. (5)): some coordinates at their cap, the others in proportion to `weight^(q - 1)`."""
    at_cap = price < weight
    if math.isinf(norm):
        return length[..., None].expand_as(weight) if cap is None else torch.where(at_cap, cap, length[..., None])
    capped = torch.zeros_like(weight) if cap is None else torch.where(at_cap, cap, 0)
    if norm == 1:  # the rest of the norm is in the coordinate whose weight is the price
        pivot = weight.masked_fill(at_cap, -math.inf).argmax(-1, keepdim=True)
        return capped.scatter(-1, pivot, (length - capped.sum(-1))[..., None])
    ratio = weight / torch.where(size > 0, size, 1)[..., None]
    return torch.where(at_cap, capped, length[..., None] * ratio ** (1 / (norm - 1)))


def dual_norm(weight: Tensor, norm: float) -> Tensor:
    """`||weight||_q` over the last axis, where `norm` is p and 1/p + 1/q = 1. Gradients are finite at 0."""
    if norm == 1:
        return weight.amax(-1)
    if math.isinf(norm):
        return weight.sum(-1)
    return power_norm(weight, norm / (norm - 1))


def power_norm(weight: Tensor, order: float) -> Tensor:
    """`(sum weight^order)^(1/order)` over the last axis, scaled by the largest entry. The gradient at 0 is 0."""
    if math.isinf(order):
        return weight.amax(-1)
    top = weight.detach().amax(-1, keepdim=True)
    top = torch.where((top > 0) & torch.isfinite(top), top, torch.ones_like(top))
    total = ((weight / top) ** order).sum(-1)
    empty = total == 0
    root = torch.where(empty, torch.ones_like(total), total) ** (1 / order)
    return torch.where(empty, torch.zeros_like(root), root) * top.squeeze(-1)


def signed_powers(coef: Tensor, top: Tensor, order: float) -> tuple[Tensor, Tensor]:
    """`max(c, 0)^order` and `max(-c, 0)^order` for `c = coef / top`; `top` gets no gradient."""
    unit = torch.where(top > 0, top, torch.ones_like(top))
    positive, negative = apply(_SignedPowers, coef, unit, order)
    return positive, negative


class _SignedPowers(torch.autograd.Function):
    """Powers in place that save only the coefficients, as those of all rows of a layer take much memory."""

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
    """The powers of the positive and of the negative part of `scaled`, which is overwritten."""
    return scaled.clamp(min=0).pow_(order), scaled.neg_().clamp_(min=0).pow_(order)


def _cap_dot(excess: Tensor, cap: Tensor) -> Tensor:
    """`excess . cap` over the last axis, where 0 times an infinite cap is 0."""
    if float(cap.detach().amax()) < math.inf:  # as most are: one product, and no mask
        return (excess * cap).sum(-1)
    unbounded = torch.isinf(cap)
    finite = (excess * torch.where(unbounded, 0, cap)).sum(-1)  # separate, so that gradients stay finite
    return finite + torch.where(unbounded & (excess > 0), math.inf, 0.0).to(finite.dtype).sum(-1)


def _ratio(drop: Tensor, size: Tensor) -> Tensor:
    """`drop / size`, at least 0. If `size` is 0, no move changes the form: infinite for a positive drop, else 0.

    A subnormal size may be too small by its last digit, so that much is added. Larger sizes do not change by it.
    """
    constant = size == 0
    value = (drop / torch.where(constant, 1, size + STEP)).clamp(min=0)
    return torch.where(constant, torch.where(drop > 0, math.inf, 0.0).to(value), value)


def _needs_float64(norm: float, weight: Tensor) -> bool:
    """Whether powers 1 / (p - 1) of float32 weights may leave its range: for all p but 1, 2 and inf."""
    return norm not in (1, 2, math.inf) and weight.dtype != torch.float64


def _newton(start: Tensor, step: Callable[[Tensor], Tensor]) -> Tensor:
    """The limit of the increasing iterates of `step` from `start`, none of which passes the root."""
    t = start
    for _ in range(MAX_STEPS):
        grown = torch.maximum(t, step(t).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
        if bool((grown <= t).all()):
            break
        t = grown
    return t


def _prices(weight: Tensor, cap: Tensor, drop: Tensor | None, norm: float) -> list[Tensor]:
    """Candidates for the optimal prices, each `[..., n]`: for that drop, or for norm 1 if it is None.

    There are two where p is near 1, as the powers of the first may leave the range of float64.
    """
    if norm == 1:
        return [_prices_by_filling(weight, cap, drop)]
    with torch.no_grad():
        if drop is not None and math.isinf(norm):
            return [_prices_by_level(weight, cap, drop)]
        found = [_prices_by_scaling(weight, cap, drop, norm)]
        return found if norm > NEARLY_1 else [*found, _prices_by_filling(weight, cap, drop)]


def _prices_by_level(weight: Tensor, cap: Tensor, drop: Tensor) -> Tensor:
    """The prices for p = inf, where `m = min(cap, t)`: the weight below the cap, 0 at the cap."""

    def step(t: Tensor) -> Tensor:
        level = t[..., None]
        reached = (weight * torch.minimum(cap, level)).sum(-1)
        return t + (drop - reached) / (weight * (cap > level)).sum(-1)

    total = weight.sum(-1)
    t = _newton((drop / torch.where(total > 0, total, 1)).clamp(min=0), step)
    return weight * (cap >= t[..., None])


def _prices_by_scaling(weight: Tensor, cap: Tensor, drop: Tensor | None, norm: float) -> Tensor:
    """The prices at `m = min(cap, t w)` for p in (1, inf), where `weight . m` is the drop or `||m||_p` is 1.

    The price of a coordinate at its cap is `weight (cap / (t w))^(p - 1)`: with this weight the optimum without a box
    would have `m = cap` there.
    """
    top = weight.amax(-1, keepdim=True)
    scaled = weight / torch.where(top > 0, top, torch.ones_like(top))
    w = scaled ** (1 / (norm - 1))
    t = _scale_for_norm(w, cap, norm) if drop is None else _scale_for_drop(weight, w, cap, drop)
    share = (cap / (t[..., None] * w)).nan_to_num(nan=1.0, posinf=math.inf, neginf=math.inf)
    return torch.where(share < 1, weight * share ** (norm - 1), weight)


def _scale_for_drop(weight: Tensor, w: Tensor, cap: Tensor, drop: Tensor) -> Tensor:
    """The `t` at which `weight . min(cap, t w)` is the drop (Algorithm 1)."""
    slope, capped = weight * w, torch.where(weight > 0, weight * cap, 0)

    def step(t: Tensor) -> Tensor:
        at_cap = t[..., None] * w >= cap
        return (drop - torch.where(at_cap, capped, 0).sum(-1)) / torch.where(at_cap, 0, slope).sum(-1)

    total = slope.sum(-1)
    return _newton((drop / torch.where(total > 0, total, 1)).clamp(min=0), step)


def _scale_for_norm(w: Tensor, cap: Tensor, norm: float) -> Tensor:
    """The `t` at which `||min(cap, t w)||_p` is 1."""
    cap = cap.clamp(max=1)  # no coordinate in the ball of radius 1 moves further
    w_p, cap_p = w**norm, cap**norm

    def step(t: Tensor) -> Tensor:
        at_cap = t[..., None] * w >= cap
        left = 1 - torch.where(at_cap, cap_p, 0).sum(-1)
        return (left / torch.where(at_cap, 0, w_p).sum(-1)).clamp(min=0) ** (1 / norm)

    total = w_p.sum(-1)
    return _newton(1 / torch.where(total > 0, total, 1) ** (1 / norm), step)


def _prices_by_filling(weight: Tensor, cap: Tensor, drop: Tensor | None) -> Tensor:
    """One price for p = 1: the weight of the coordinate at which the drop, or the norm 1, is reached.

    Coordinates are filled to their caps in the order of their weights. The price has the gradient of its weight.
    """
    with torch.no_grad():
        order = weight.argsort(-1, descending=True)
        fills = cap if drop is None else torch.where(weight > 0, weight * cap, 0)
        filled = fills.gather(-1, order).cumsum(-1)
        target = torch.ones_like(filled[..., 0]) if drop is None else drop
        last = (filled < target[..., None]).sum(-1, keepdim=True)
        pivot = order.gather(-1, last.clamp(max=weight.shape[-1] - 1))
    price = weight.gather(-1, pivot)
    if drop is None:  # if the box is inside the ball, all coordinates are at their caps and the price is 0
        price = torch.where(last < weight.shape[-1], price, torch.zeros_like(price))
    return price.expand_as(weight)
