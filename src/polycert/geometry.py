"""One linear form over an l_p ball inside a box: how far it can fall, and how far one must go for it to fall.

Both questions see the perturbation only through its size per coordinate, `m_i = |delta_i|`, limited by the room
`cap_i` that the box leaves in the direction in which the form falls, so everything here works on
`weight = |a| >= 0` and `cap >= 0` (`inf` without a box), coordinates last:

- `largest_drop`: max  weight . m   subject to  ||m||_p <= eps,  0 <= m <= cap;
- `least_norm`:   min  ||m||_p      subject to  weight . m >= drop,  0 <= m <= cap   (Problem (4) of the paper).

For p > 1 the optimum is `m_i = min(cap_i, t * w_i)` with `w_i = weight_i ** (1 / (p - 1))`, Eq. (5), and `t` the
root of a function that is concave and piecewise simple in `t`; the greedy of Algorithm 1 is Newton's method on
it from the left. For p = 1 the box is filled in the order of the weights.

Both return a value on the safe side for any `t` whatever the number of steps: `largest_drop` through the Lagrangian
dual, `least_norm` because the norm grows with `t` (correction 1 of Algorithm 1: stopped early, it is a *lower* bound).
`relative` widens the result by a rounding error that the caller vouches for.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

MAX_STEPS = 40


def largest_drop(weight: Tensor, cap: Tensor | None, eps: Tensor, norm: float, relative: float = 0.0) -> Tensor:
    """Upper bound (exact up to rounding) of `weight . m` over `||m||_p <= eps`, `0 <= m <= cap`.

    Args:
        weight: `[..., n]`, non-negative.
        cap: `[..., n]` room in each coordinate, or None without a box.
        eps: `[...]` radius of the ball.
        norm: p of the ball, in [1, inf].
        relative: rounding error of a sum over `n`, relative to the sum of its terms' sizes.
    """
    if cap is None:
        return eps * dual_norm(weight, norm) * (1 + 2 * relative)
    if _needs_range(norm, weight):
        return largest_drop(weight.double(), cap.double(), eps.double(), norm, relative).to(weight.dtype)
    if math.isinf(norm):
        return (weight * torch.minimum(cap, eps[..., None])).sum(-1) * (1 + 2 * relative)
    weight, cap = torch.broadcast_tensors(weight, cap)
    solve = _drop_by_filling if norm == 1 else _drop_by_scaling
    joint = solve(weight, cap, eps, norm) * (1 + 8 * relative)
    return torch.minimum(joint, (weight * cap).nan_to_num(posinf=math.inf).sum(-1) * (1 + 2 * relative))


def least_norm(weight: Tensor, cap: Tensor | None, drop: Tensor, norm: float, relative: float = 0.0) -> Tensor:
    """Lower bound (exact up to rounding) of `||m||_p` over `weight . m >= drop`, `0 <= m <= cap`.

    Infinite where the drop is out of reach inside the box, 0 where `drop <= 0`. Arguments as in `largest_drop`.
    """
    if _needs_range(norm, weight):
        double_cap = None if cap is None else cap.double()
        return least_norm(weight.double(), double_cap, drop.double(), norm, relative).to(weight.dtype)
    wanted = drop * (1 - 4 * relative)
    cap = torch.full_like(weight, math.inf) if cap is None else cap.expand_as(weight)
    positive = weight > 0
    total = torch.where(positive, weight * cap, 0).sum(-1)
    if norm == 1:
        norms = _norm_by_filling(weight, cap, wanted)
    else:
        norms = _norm_by_scaling(weight, cap, wanted, norm, relative)
    norms = norms * (1 - 4 * relative)
    missed = total * (1 + 2 * relative) < wanted
    norms = torch.where(missed, math.inf, norms)
    return torch.where(drop > 0, norms, torch.zeros_like(norms))


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


def _needs_range(norm: float, weight: Tensor) -> bool:
    """Whether powers 1 / (p - 1) of float32 weights would leave its range: all but p = 1, 2 and inf."""
    return norm not in (1, 2, math.inf) and weight.dtype != torch.float64


def _shape(weight: Tensor, norm: float) -> Tensor:
    """`w = (weight / max weight) ** (1 / (p - 1))`: the direction of the optimum, Eq. (5), for p in (1, inf]."""
    if math.isinf(norm):
        return (weight > 0).to(weight.dtype)
    top = weight.amax(-1, keepdim=True)
    scaled = weight / torch.where(top > 0, top, torch.ones_like(top))
    return scaled if norm == 2 else scaled ** (1 / (norm - 1))


def _newton(start: Tensor, step: Callable[[Tensor], Tensor]) -> Tensor:
    """Iterate a monotone `step` from `start` until nothing grows any more; every iterate is below the root."""
    t = start
    for _ in range(MAX_STEPS):
        grown = torch.maximum(t, step(t).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
        if bool((grown <= t).all()):
            break
        t = grown
    return t


def _drop_by_scaling(weight: Tensor, cap: Tensor, eps: Tensor, norm: float) -> Tensor:
    """Dual bound for p in (1, inf): `weight . m - (sum m^p - eps^p) / (p t^(p-1))` at `m = min(cap, t w)`."""
    with torch.no_grad():
        w = _shape(weight, norm)
        w_p, cap_p, eps_p = w**norm, cap**norm, eps**norm

        def step(t: Tensor) -> Tensor:
            fixed = t[..., None] * w >= cap
            left = eps_p - torch.where(fixed, cap_p, 0).sum(-1)
            return (left / torch.where(fixed, 0, w_p).sum(-1)).clamp(min=0) ** (1 / norm)

        scale = torch.where(w.sum(-1) > 0, w_p.sum(-1), 1)
        t = _newton(eps / scale ** (1 / norm), step)
        m = torch.minimum(cap, t[..., None] * w)
        # The multiplier that makes m stationary is max(weight)^... / t^(p-1), as w was scaled by max(weight).
        price = weight.amax(-1) / torch.where(t > 0, t, 1) ** (norm - 1)
        excess = price * ((m**norm).sum(-1) - eps_p) / norm
    return (weight * m).sum(-1) - excess


def _drop_by_filling(weight: Tensor, cap: Tensor, eps: Tensor, _norm: float) -> Tensor:
    """Dual bound for p = 1: `price * eps + sum (weight - price)_+ cap`, the price being the last weight filled."""
    with torch.no_grad():
        order = weight.argsort(-1, descending=True)
        filled = cap.expand_as(weight).gather(-1, order).cumsum(-1)
        sorted_weight = weight.gather(-1, order)
        last = (filled < eps[..., None]).sum(-1, keepdim=True)
        price_sorted = torch.cat([sorted_weight, torch.zeros_like(sorted_weight[..., :1])], -1)
        price = price_sorted.gather(-1, last)
        at_price = order.gather(-1, last.clamp(max=weight.shape[-1] - 1))
        within = (last < weight.shape[-1]).to(weight.dtype)
    # The price is a weight itself: taking it from `weight` gives the right gradient.
    price = weight.gather(-1, at_price) * within
    gain = torch.where(weight > price, (weight - price) * cap.nan_to_num(posinf=0.0), 0)
    return price.squeeze(-1) * eps + gain.sum(-1)


def _norm_by_scaling(weight: Tensor, cap: Tensor, drop: Tensor, norm: float, relative: float) -> Tensor:
    """Algorithm 1 for p in (1, inf]: grow `t` until `weight . min(cap, t w)` reaches `drop`.

    The gradient is that of the optimum with its set of full coordinates fixed.
    """
    with torch.no_grad():
        w = _shape(weight, norm)
        slope = weight * w
        spent = torch.where(weight > 0, weight * cap, 0)

        def step(t: Tensor) -> Tensor:
            fixed = (t[..., None] * w >= cap) | (w == 0)
            left = drop - torch.where(fixed, spent, 0).sum(-1)
            return left / torch.where(fixed, 0, slope).sum(-1)

        first = drop / torch.where(slope.sum(-1) > 0, slope.sum(-1), 1)
        t = _newton(first.clamp(min=0), step)
        if relative > 0:  # Newton's last step may round past the root: Lemma 1's value is the fallback
            reached = (weight * torch.minimum(cap, t[..., None] * w)).nan_to_num(posinf=math.inf).sum(-1)
            t = torch.where(reached * (1 + 2 * relative) <= drop * (1 + 4 * relative), t, first.clamp(min=0))
        fixed = (t[..., None] * w >= cap) | (w == 0)
    if not torch.is_grad_enabled() or not (weight.requires_grad or drop.requires_grad):
        return power_norm(torch.minimum(cap, t[..., None] * w), norm)
    return _norm_with_gradient(weight, cap, drop, norm, fixed)


def _norm_with_gradient(weight: Tensor, cap: Tensor, drop: Tensor, norm: float, fixed: Tensor) -> Tensor:
    """The optimum of Algorithm 1 as a differentiable function of the free coordinates."""
    ones = torch.ones_like(weight)
    free = torch.where(fixed, ones, weight)
    left = drop - torch.where(fixed, weight * cap.nan_to_num(posinf=0.0), 0).sum(-1)
    if math.isinf(norm):
        total = torch.where(fixed, 0, free).sum(-1)
        return left / torch.where(total > 0, total, 1)
    top = weight.detach().amax(-1, keepdim=True)
    q = norm / (norm - 1)
    w = torch.where(fixed, 0, (free / torch.where(top > 0, top, 1)) ** (q - 1))
    total = torch.where(fixed, 0, free * w).sum(-1)
    t = left / torch.where(total > 0, total, 1)
    return power_norm(torch.where(fixed, cap.nan_to_num(posinf=0.0), t[..., None] * w), norm)


def _norm_by_filling(weight: Tensor, cap: Tensor, drop: Tensor) -> Tensor:
    """p = 1: fill the coordinates in the order of their weights; the last one only as far as needed.

    Written as the dual bound `(drop - sum (weight - price)_+ cap) / price`, valid for every price > 0.
    """
    with torch.no_grad():
        order = weight.argsort(-1, descending=True)
        gains = torch.where(weight > 0, weight * cap, 0).gather(-1, order).cumsum(-1)
        last = (gains < drop[..., None]).sum(-1, keepdim=True).clamp(max=weight.shape[-1] - 1)
        index = order.gather(-1, last)
    price = weight.gather(-1, index)
    gain = torch.where(weight > price, (weight - price) * cap.nan_to_num(posinf=0.0), 0).sum(-1)
    flat = price.squeeze(-1) == 0
    value = (drop - gain) / torch.where(flat, 1, price.squeeze(-1))
    return torch.where(flat, torch.zeros_like(value), value)
