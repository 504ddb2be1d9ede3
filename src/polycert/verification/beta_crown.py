"""Beta-CROWN: lower bounds of a reduced problem from multipliers, and a few steps of projected Adam that raise them.

Every choice of multipliers is valid, so a search can be as rough as it likes.
For a node of the search tree (some units held on one side of 0), weights of a clause's rows (>= 0, not all 0) and any
multipliers nu of the equations `z = direct x + through h + offset`,

    weights . rows  >=  min over x in the region of (a . x)  +  sum over units of min over z (lambda max(z, 0) - nu z)
                        + weights . offset' + nu . offset,
    a = weights direct' + nu direct,       lambda = weights through' + nu through,

where z runs over the unit's interval, cut at 0 by its split. The inner minimum is at an end or at 0. If the bound is
positive, no point of the node has all rows of the clause <= 0. The best multipliers give the value of the linear
program over the triangles around the units; they are searched in the form of slopes and split multipliers.

All nodes are improved at once. The derivative of the bound needs no graph of operations: it is what the equations of
the units lack at the worst input and at the worst values of the units, passed on from layer to layer.
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

ON, OFF = 1, -1  # a unit held at z >= 0, or at z <= 0
RATE = 0.15  # of slopes, which lie in [0, 1]
FADE = 0.94  # of the rate, a step
MEMORY = (0.8, 0.95)  # of Adam's averages
RECENT = 0.7  # share of the past in the mean of the gaps


@dataclass(frozen=True, eq=False)
class Nodes:
    """Which units are held, by what multipliers each node was bounded, and the bound."""

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
        """All nodes together."""
        return Nodes(*(torch.cat([getattr(part, item.name) for part in parts]) for item in fields(Nodes)))

    @staticmethod
    def roots(problem: Reduced) -> Nodes:
        """One node for each clause, with CROWN's slopes and equal weights."""
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
    """Of the units' equations, and the coefficients of the units' values that follow, `[nodes, units]` each."""

    nu: Tensor
    lam: Tensor


class DualObjective(NamedTuple):
    """A clause's rows, weighted and added up: one affine function of inputs and units for each node."""

    direct: Tensor  # [nodes, inputs]
    through: Tensor  # [nodes, units]
    offset: Tensor  # [nodes]

    @staticmethod
    def of(problem: Reduced, weight: Tensor) -> DualObjective:
        """For weights `[nodes, rows]`."""
        rows = problem.rows
        return DualObjective(weight @ rows.direct, weight @ rows.through, weight @ rows.offset)


def proved_bound(problem: Reduced, split: Tensor, nu: Tensor, weight: Tensor) -> Tensor:
    """The bound for given multipliers, less all that rounding may have got wrong here and in the reduction: `[nodes]`.

    Args:
        problem: in float64.
        split: `[nodes, units]`, `ON`, `OFF` or 0.
        nu: `[nodes, units]`, any numbers.
        weight: `[nodes, rows]`, >= 0.
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
    """The bound for given multipliers and the slope that they make: `[nodes]`."""
    form = Dense(slope.reshape(1, -1, *problem.region.x.shape[1:]))
    lowest = problem.region.concretise(form, rounding, joint=True)[0][0]
    fixed = objective.offset + at.nu @ problem.units.offset
    return lowest + unit_minima(problem, split, at).sum(1) + fixed


def unit_minima(problem: Reduced, split: Tensor, at: Multipliers) -> Tensor:
    """The least `lambda max(z, 0) - nu z` over each unit's interval, `[nodes, units]`: at an end or at 0."""
    at_lower = torch.where(split == ON, 0, -at.nu * problem.lower)
    at_upper = torch.where(split == OFF, 0, (at.lam - at.nu) * problem.upper)
    return torch.minimum(at_lower, at_upper).clamp_(max=0)


def multipliers(problem: Reduced, split: Tensor, alpha: Tensor, beta: Tensor, objective: DualObjective) -> Multipliers:
    """Multipliers from slopes and split multipliers, last layer first.

    A free unit takes the slope alpha (in [0, 1]) where its coefficient lambda is positive and the chord's where it is
    negative; a unit that is held takes its own piece, and beta >= 0 pays for staying on its side.
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
    """Where linear forms `[nodes, inputs]` are least over the region, `[nodes, inputs]`."""
    region = problem.region
    if math.isinf(region.norm):
        return torch.where(slope > 0, region.box.lower.flatten(1), region.box.upper.flatten(1))
    # The derivative of a minimum of linear forms is the point where it is taken.
    with torch.enable_grad():
        leaf = slope.detach().requires_grad_()
        form = Dense(leaf.reshape(1, -1, *region.x.shape[1:]))
        (points,) = torch.autograd.grad(region.concretise(form, joint=True)[0].sum(), leaf)
    return points


class Ascent(NamedTuple):
    """Nodes with the best multipliers found, the worst inputs for these, and where the bounds lose how much."""

    nodes: Nodes
    inputs: Tensor  # [nodes, inputs]
    gaps: Tensor  # [nodes, units]: a mean over the steps


class DualPoint(NamedTuple):
    """The bound at some multipliers, its derivatives, and the inputs that make it so low."""

    value: Tensor  # [nodes]
    inputs: Tensor
    gaps: Tensor
    alpha: Tensor  # derivatives, of the same shapes
    beta: Tensor
    high: Tensor  # [nodes, units]: by lambda

    def by_rows(self, problem: Reduced) -> Tensor:
        """The derivative by the weights of a clause's rows, `[nodes, rows]`."""
        return problem.rows(self.inputs, self.high)


def ascend(problem: Reduced, nodes: Nodes, *, steps: int, goal: float = math.inf) -> Ascent:
    """Raise the bounds of nodes; a node keeps its best multipliers.

    Args:
        problem: in any type; bounds found here only guide.
        steps: evaluations of the bound, at least 1; the first is at the given multipliers.
        goal: when all bounds are above it, that is enough.
    """
    members = problem.members[nodes.clause]
    single = bool((members.sum(1) == 1).all())
    alpha, beta, weight = nodes.alpha, nodes.beta, nodes.weight
    objective = DualObjective.of(problem, weight)
    scale = _typical(problem, nodes, objective)
    movers = [Adam.like(part) for part in (alpha, beta, weight)]
    best, inputs, gaps = nodes, nodes.alpha, torch.zeros_like(alpha)
    for step in range(steps):
        at = look(problem, nodes.split, alpha, beta, objective)
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


def look(problem: Reduced, split: Tensor, alpha: Tensor, beta: Tensor, objective: DualObjective) -> DualPoint:
    """The bound, and its derivatives by slopes, split multipliers and weights."""
    at = multipliers(problem, split, alpha, beta, objective)
    slope = problem.direct.back(at.nu).add_(objective.direct)
    inputs = worst_inputs(problem, slope)
    own = problem.direct.at(inputs) + problem.units.offset  # of each unit's equation, without earlier units
    minima = unit_minima(problem, split, at)
    value = (objective.direct * inputs).sum(1) + objective.offset + (at.nu * own).sum(1) + minima.sum(1)
    lack, high = _derivatives(problem, split, alpha, at, own)
    gain = torch.where(split == 0, torch.where(at.lam > 0, lack * at.lam, 0), 0)
    paid = torch.where(split == 0, 0, torch.where(split == ON, -lack, lack))
    return DualPoint(value, inputs, _gaps(problem, at, own, minima), gain, paid, high)


def _derivatives(problem: Reduced, split: Tensor, alpha: Tensor, at: Multipliers, own: Tensor) -> tuple[Tensor, Tensor]:
    """Of the bound by nu and by lambda, `[nodes, units]`, first layer first: by nu, what a unit's equation lacks."""
    at_lower = torch.where(split == ON, 0, -at.nu * problem.lower)
    at_upper = torch.where(split == OFF, 0, (at.lam - at.nu) * problem.upper)
    down, up = (at_lower < at_upper) & (at_lower < 0), (at_upper <= at_lower) & (at_upper < 0)
    high = torch.where(up, problem.upper, 0)
    lack = own - torch.where(down, problem.lower, 0) - high
    piece = torch.where(split == 0, torch.where(at.lam >= 0, alpha, problem.chord), (split == ON).to(alpha))
    for layer in problem.layers:
        if layer.start:
            lack[:, layer] += high[:, : layer.start] @ problem.units.through[layer, : layer.start].T
        high[:, layer] += lack[:, layer] * piece[:, layer]
    return lack, high


def _gaps(problem: Reduced, at: Multipliers, own: Tensor, minima: Tensor) -> Tensor:
    """What each unit takes from the bound: they add up to the difference to the true value at the worst input."""
    z = own.clone()
    for layer in problem.layers[1:]:
        z[:, layer] += z[:, : layer.start].relu() @ problem.units.through[layer, : layer.start].T
    return at.lam * z.relu() - at.nu * z - minima


def _typical(problem: Reduced, nodes: Nodes, objective: DualObjective) -> Tensor:
    """The size of split multipliers that matters, `[nodes, units]`."""
    size = multipliers(problem, nodes.split, nodes.alpha, nodes.beta, objective).lam.abs()
    return torch.maximum(size, size.mean(1, keepdim=True)) + 1e-9


def _keep(best: Nodes, better: Tensor, alpha: Tensor, beta: Tensor, weight: Tensor, value: Tensor) -> Nodes:
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
    """Adam's direction for one tensor."""

    first: Tensor
    second: Tensor
    count: int = 0

    @staticmethod
    def like(values: Tensor) -> Adam:
        """At rest."""
        return Adam(torch.zeros_like(values), torch.zeros_like(values))

    def direction(self, gradient: Tensor) -> Tensor:
        """The next step, of size about 1 in each entry."""
        self.count += 1
        self.first.mul_(MEMORY[0]).add_(gradient, alpha=1 - MEMORY[0])
        self.second.mul_(MEMORY[1]).addcmul_(gradient, gradient, value=1 - MEMORY[1])
        grown = math.sqrt(1 - MEMORY[1] ** self.count) / (1 - MEMORY[0] ** self.count)
        return grown * self.first / (self.second.sqrt() + 1e-12)
