"""Optimised slopes: multipliers improved by a few steps of projected Adam on the dual bound, all nodes at once.

The derivative of the bound needs no graph of operations: it is what the equations of the units lack at the worst input
and at the worst values of the units, passed on from layer to layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.verification.dual_bound import (
    OFF,
    ON,
    DualObjective,
    Multipliers,
    Nodes,
    multipliers,
    unit_minima,
    worst_inputs,
)
from polycert.verification.reduced_problem import Reduced

RATE = 0.15  # of slopes, which lie in [0, 1]
FADE = 0.94  # of the rate, a step
MEMORY = (0.8, 0.95)  # of Adam's averages
RECENT = 0.7  # share of the past in the mean of the gaps


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
