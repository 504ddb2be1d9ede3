"""Beta-CROWN: lower bounds of a reduced problem from multipliers, and a few steps of projected Adam that raise them.

Every choice of multipliers gives a valid bound, so the search for good ones need not be exact. Take a node of the
search tree (some units are held on one side of 0), weights of a clause's rows (>= 0, not all 0), and any multipliers nu
of the equations `z = direct x + through h + offset`. Then

    weights . rows  >=  min over x in the region of (a . x)  +  sum over units of min over z (lambda max(z, 0) - nu z)
                        + weights . offset' + nu . offset,
    a = weights direct' + nu direct,       lambda = weights through' + nu through,

where z runs over the unit's interval, cut at 0 by its split. The inner minimum is at an end or at 0. If the bound is
positive, no point of the node has all rows of the clause <= 0. The best multipliers give the value of the linear
program over the triangle relaxations of the units. The search works with slopes alpha and split multipliers beta, from
which the multipliers nu follow.

The ascent improves all nodes at once. It computes the derivative of the bound without autograd: the derivative by nu is
the residual of the units' equations at the worst input and the worst values of the units. It is passed on from layer to
layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.forms import Dense
from polycert.sets.interval import Rounding, at_least
from polycert.verification.reduced_problem import Reduced

ON, OFF = 1, -1  # a unit is held at z >= 0, or at z <= 0
RATE = 0.15  # the step size for slopes, which lie in [0, 1]
FADE = 0.94  # each step multiplies the rate by this
MEMORY = (0.8, 0.95)  # the decay rates of Adam's two averages
RECENT = 0.7  # the share of the past in the mean of the gaps


@dataclass(frozen=True, eq=False)
class Nodes:
    """Nodes of the search tree: the units that are held, the multipliers that bound each node, and the bound."""

    clause: Tensor  # [nodes], long
    split: Tensor  # [nodes, units], int8
    alpha: Tensor  # [nodes, units]
    beta: Tensor  # [nodes, units]
    weight: Tensor  # [nodes, rows]
    bound: Tensor  # [nodes]

    def __len__(self) -> int:
        return len(self.clause)

    def __getitem__(self, index: Tensor | slice) -> Nodes:
        return Nodes(*(getattr(self, item.name)[index] for item in fields(self)))

    @staticmethod
    def join(parts: Sequence[Nodes]) -> Nodes:
        """Return the nodes of all parts, in order."""
        return Nodes(*(torch.cat([getattr(part, item.name) for part in parts]) for item in fields(Nodes)))

    @staticmethod
    def roots(problem: Reduced) -> Nodes:
        """Return one node for each clause, with CROWN's slopes and equal weights of its rows."""
        members = problem.members.to(problem.lower)
        count, units = len(members), problem.count
        steep = (problem.upper >= -problem.lower).to(problem.lower)
        return Nodes(
            torch.arange(count),
            torch.zeros(count, units, dtype=torch.int8),
            steep.expand(count, units).clone(),
            torch.zeros(count, units, dtype=problem.lower.dtype),
            members / members.sum(1, keepdim=True),
            torch.full((count,), -torch.inf, dtype=problem.lower.dtype),
        )


class Multipliers(NamedTuple):
    """Multipliers nu of the units' equations, and the coefficients lambda that follow: `[nodes, units]` each."""

    nu: Tensor
    lam: Tensor


class DualObjective(NamedTuple):
    """The weighted sum of a clause's rows: one affine function of inputs and units for each node."""

    direct: Tensor  # [nodes, inputs]
    through: Tensor  # [nodes, units]
    offset: Tensor  # [nodes]

    @staticmethod
    def of(problem: Reduced, weight: Tensor) -> DualObjective:
        """Return the sum of the problem's rows with weights `[nodes, rows]`."""
        rows = problem.rows
        return DualObjective(weight @ rows.direct, weight @ rows.through, weight @ rows.offset)


def proved_bound(problem: Reduced, split: Tensor, nu: Tensor, weight: Tensor) -> Tensor:
    """Return a proved lower bound of each node, `[nodes]`, for given multipliers.

    It is lower than `value` by all that rounding may have got wrong, here and in the reduction.

    Args:
        problem: the reduced problem in float64.
        split: the sides of the units, `[nodes, units]`: `ON`, `OFF` or 0.
        nu: the multipliers, `[nodes, units]`; any numbers will do.
        weight: the weights of the rows, `[nodes, rows]`, >= 0.
    """
    objective = DualObjective.of(problem, weight)
    at = Multipliers(nu, objective.through + nu @ problem.units.through)
    slope = objective.direct + nu @ problem.units.direct
    units, rows = problem.slack
    slack = (nu.abs() @ units + weight @ rows) * 1.01 + problem.underflow
    return at_least(value(problem, split, at, objective, slope, problem.rounding) - slack)


def value(
    problem: Reduced,
    split: Tensor,
    at: Multipliers,
    objective: DualObjective,
    slope: Tensor,
    rounding: Rounding | None = None,
) -> Tensor:
    """Return the bound for given multipliers and the slope `[nodes, inputs]` that follows from them: `[nodes]`."""
    form = Dense(slope.reshape(1, -1, *problem.region.x.shape[1:]))
    lowest = problem.region.concretise(form, rounding, joint=True)[0][0]
    fixed = objective.offset + at.nu @ problem.units.offset
    return lowest + unit_minima(problem, split, at).sum(1) + fixed


def unit_minima(problem: Reduced, split: Tensor, at: Multipliers) -> Tensor:
    """Return the least `lambda max(z, 0) - nu z` over each unit's interval, `[nodes, units]`."""
    at_lower = torch.where(split == ON, 0, -at.nu * problem.lower)
    at_upper = torch.where(split == OFF, 0, (at.lam - at.nu) * problem.upper)
    return torch.minimum(at_lower, at_upper).clamp_(max=0)


def multipliers(problem: Reduced, split: Tensor, alpha: Tensor, beta: Tensor, objective: DualObjective) -> Multipliers:
    """Return the multipliers that follow from slopes and split multipliers; the loop begins at the last layer.

    A free unit takes the slope alpha (in [0, 1]) where its coefficient lambda is positive, and the chord's slope where
    it is negative. A unit that is held takes the slope of its own piece, and beta >= 0 is the price of its split.
    """
    lam, nu = objective.through.clone(), torch.empty_like(alpha)
    for layer in reversed(problem.layers):
        here, side, paid = lam[:, layer], split[:, layer], beta[:, layer]
        free = here * torch.where(here >= 0, alpha[:, layer], problem.chord[layer])
        nu[:, layer] = torch.where(side == 0, free, torch.where(side == ON, here - paid, paid))
        if layer.start:
            lam[:, : layer.start] += nu[:, layer] @ problem.units.through[layer, : layer.start]
    return Multipliers(nu, lam)


def worst_inputs(problem: Reduced, slope: Tensor) -> Tensor:
    """Return the points at which linear forms `[nodes, inputs]` are least over the region: `[nodes, inputs]`."""
    region = problem.region
    if math.isinf(region.norm):
        return torch.where(slope > 0, region.box.lower.flatten(1), region.box.upper.flatten(1))
    # The derivative of a minimum of linear forms is the point at which the minimum is attained.
    with torch.enable_grad():
        leaf = slope.detach().requires_grad_()
        form = Dense(leaf.reshape(1, -1, *region.x.shape[1:]))
        (points,) = torch.autograd.grad(region.concretise(form, joint=True)[0].sum(), leaf)
    return points


class Ascent(NamedTuple):
    """Nodes with the best multipliers found, their worst inputs, and how much each unit takes from the bound."""

    nodes: Nodes
    inputs: Tensor  # [nodes, inputs]
    gaps: Tensor  # [nodes, units]: what each unit takes from the bound, a mean over the steps


class DualPoint(NamedTuple):
    """The bound at some multipliers, its derivatives, and the inputs at which it is attained."""

    value: Tensor  # [nodes]
    inputs: Tensor  # [nodes, inputs]
    gaps: Tensor  # [nodes, units]: what each unit takes from the bound
    alpha: Tensor  # [nodes, units]: the derivative by the slopes
    beta: Tensor  # [nodes, units]: the derivative by the split multipliers
    high: Tensor  # [nodes, units]: the derivative by lambda

    def by_rows(self, problem: Reduced) -> Tensor:
        """Return the derivative by the weights of a clause's rows, `[nodes, rows]`."""
        return problem.rows(self.inputs, self.high)


def ascend(problem: Reduced, nodes: Nodes, *, steps: int, goal: float = math.inf) -> Ascent:
    """Return nodes with raised bounds; each node keeps its best multipliers.

    Args:
        problem: the reduced problem in any type; the bounds found here only guide the search.
        nodes: nodes with the multipliers to start from.
        steps: how often the bound is evaluated, at least 1; the first time is at the given multipliers.
        goal: the ascent stops when all bounds are above it.
    """
    members = problem.members[nodes.clause]
    single = bool((members.sum(1) == 1).all())
    alpha, beta, weight = nodes.alpha, nodes.beta, nodes.weight
    objective = DualObjective.of(problem, weight)
    scale = _typical(problem, nodes, objective)
    movers = [Adam.like(part) for part in (alpha, beta, weight)]
    best, inputs, gaps = nodes, nodes.alpha, torch.zeros_like(alpha)
    for step in range(steps):
        at = dual_point(problem, nodes.split, alpha, beta, objective)
        better = at.value > best.bound if step else torch.ones_like(at.value, dtype=torch.bool)
        best = _keep(best, better, alpha, beta, weight, at.value)
        inputs = torch.where(better[:, None], at.inputs, inputs) if step else at.inputs
        gaps = RECENT * gaps + (1 - RECENT) * at.gaps if step else at.gaps
        if step + 1 == steps or bool((best.bound > goal).all()):
            break
        rate = RATE * FADE**step
        alpha = (alpha + rate * movers[0].direction(at.alpha)).clamp_(0, 1)
        beta = (beta + rate * scale * movers[1].direction(at.beta)).clamp_(min=0)
        if not single:
            moved = (weight + rate * movers[2].direction(at.by_rows(problem))).clamp_(min=1e-6) * members
            weight = moved / moved.sum(1, keepdim=True)
            objective = DualObjective.of(problem, weight)
    return Ascent(best, inputs, gaps)


def dual_point(problem: Reduced, split: Tensor, alpha: Tensor, beta: Tensor, objective: DualObjective) -> DualPoint:
    """Return the bound, and its derivatives by slopes, split multipliers and weights."""
    at = multipliers(problem, split, alpha, beta, objective)
    slope = problem.direct.back(at.nu).add_(objective.direct)
    inputs = worst_inputs(problem, slope)
    own = problem.direct.at(inputs) + problem.units.offset  # each unit's equation without the earlier units
    minima = unit_minima(problem, split, at)
    value = (objective.direct * inputs).sum(1) + objective.offset + (at.nu * own).sum(1) + minima.sum(1)
    residual, high = _derivatives(problem, split, alpha, at, own)
    by_alpha = torch.where(split == 0, torch.where(at.lam > 0, residual * at.lam, 0), 0)
    by_beta = torch.where(split == 0, 0, torch.where(split == ON, -residual, residual))
    return DualPoint(value, inputs, _gaps(problem, at, own, minima), by_alpha, by_beta, high)


def _derivatives(problem: Reduced, split: Tensor, alpha: Tensor, at: Multipliers, own: Tensor) -> tuple[Tensor, Tensor]:
    """Return the derivatives of the bound by nu and by lambda, `[nodes, units]`; the loop begins at the first layer.

    The derivative by nu is the residual of a unit's equation.
    """
    at_lower = torch.where(split == ON, 0, -at.nu * problem.lower)
    at_upper = torch.where(split == OFF, 0, (at.lam - at.nu) * problem.upper)
    down, up = (at_lower < at_upper) & (at_lower < 0), (at_upper <= at_lower) & (at_upper < 0)
    high = torch.where(up, problem.upper, 0)
    residual = own - torch.where(down, problem.lower, 0) - high
    piece = torch.where(split == 0, torch.where(at.lam >= 0, alpha, problem.chord), (split == ON).to(alpha))
    for layer in problem.layers:
        if layer.start:
            residual[:, layer] += high[:, : layer.start] @ problem.units.through[layer, : layer.start].T
        high[:, layer] += residual[:, layer] * piece[:, layer]
    return residual, high


def _gaps(problem: Reduced, at: Multipliers, own: Tensor, minima: Tensor) -> Tensor:
    """Return what each unit takes from the bound, `[nodes, units]`.

    These gaps add up to the difference between the bound and the network's true value at the worst input.
    """
    z = own.clone()
    for layer in problem.layers[1:]:
        z[:, layer] += z[:, : layer.start].relu() @ problem.units.through[layer, : layer.start].T
    return at.lam * z.relu() - at.nu * z - minima


def _typical(problem: Reduced, nodes: Nodes, objective: DualObjective) -> Tensor:
    """Return a typical size of the split multipliers, by which their steps are scaled: `[nodes, units]`."""
    size = multipliers(problem, nodes.split, nodes.alpha, nodes.beta, objective).lam.abs()
    return torch.maximum(size, size.mean(1, keepdim=True)) + 1e-9


def _keep(best: Nodes, better: Tensor, alpha: Tensor, beta: Tensor, weight: Tensor, value: Tensor) -> Nodes:
    """Return the best nodes so far, where those with a better bound take the new multipliers."""
    here = better[:, None]
    return replace(
        best,
        alpha=torch.where(here, alpha, best.alpha),
        beta=torch.where(here, beta, best.beta),
        weight=torch.where(here, weight, best.weight),
        bound=torch.where(better, value, best.bound),
    )


@dataclass(eq=False)
class Adam:
    """The averages of Adam for one tensor, from which its direction follows."""

    first: Tensor
    second: Tensor
    count: int = 0

    @staticmethod
    def like(values: Tensor) -> Adam:
        """Return averages of 0 in the shape of `values`."""
        return Adam(torch.zeros_like(values), torch.zeros_like(values))

    def direction(self, gradient: Tensor) -> Tensor:
        """Return the next step, of size about 1 in each entry."""
        self.count += 1
        self.first.mul_(MEMORY[0]).add_(gradient, alpha=1 - MEMORY[0])
        self.second.mul_(MEMORY[1]).addcmul_(gradient, gradient, value=1 - MEMORY[1])
        grown = math.sqrt(1 - MEMORY[1] ** self.count) / (1 - MEMORY[0] ** self.count)
        return grown * self.first / (self.second.sqrt() + 1e-12)
