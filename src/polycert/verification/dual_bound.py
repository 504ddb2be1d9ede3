"""Lower bounds of a reduced problem from multipliers: every choice is valid, so a search can be as rough as it likes.

For a node of the search tree (some units held on one side of 0), weights of a clause's rows (>= 0, not all 0) and any
multipliers nu of the equations `z = direct x + through h + offset`,

    weights . rows  >=  min over x in the region of (a . x)  +  sum over units of min over z (lambda max(z, 0) - nu z)
                        + weights . offset' + nu . offset,
    a = weights direct' + nu direct,       lambda = weights through' + nu through,

where z runs over the unit's interval, cut at 0 by its split. The inner minimum is at an end or at 0. If the bound is
positive, no point of the node has all rows of the clause <= 0. The best multipliers give the value of the linear
program over the triangles around the units; they are searched in the form of slopes and split multipliers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.forms import Dense
from polycert.sets.interval import Rounding, at_least
from polycert.verification.reduced_problem import Reduced

ON, OFF = 1, -1  # a unit held at z >= 0, or at z <= 0


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
