"""Leaves: with every unit held on one side the network is affine, and a linear program settles it.

The program looks for the point that comes nearest to failing,

    min t   with   rows of the clause <= t,   units held on: z >= -t,   units held off: z <= t,   x in the region,

each row scaled to size 1. It always has a solution; t > 0 means that nothing in the leaf fails. The solver is not
believed: its multipliers go into the dual bound, which is valid for any, and its point is replayed. A ball is
approached by tangent planes, which only guide in the same way.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polycert.sets.geometry import power_norm
from polycert.verification.beta_crown import ON, DualObjective, Multipliers, Nodes, multipliers
from polycert.verification.reduced_problem import AffineMaps, Reduced

CUTS = 25  # tangent planes at most
TOLERANCE = 1e-9


class LeafSolution(NamedTuple):
    """The solver's point, its multipliers, and whether it says that nothing fails."""

    inputs: Tensor  # [1, inputs]
    multipliers: Multipliers
    beta: Tensor  # [1, units], >= 0: what the sides of the units are worth
    weight: Tensor  # [1, rows], >= 0
    safe: bool


def solve_leaf(problem: Reduced, node: Nodes) -> LeafSolution | None:
    """Solve a single node without free units; None if the solver fails."""
    split = node.split[0]
    rows = problem.members[int(node.clause)].nonzero().squeeze(1)
    units, outputs = _affine(problem, split)
    sign = torch.where(split == ON, -1.0, 1.0).double()
    upper = torch.cat([sign[:, None] * units.direct, outputs.direct[rows]])
    limit = -torch.cat([sign * units.offset, outputs.offset[rows]])
    size = torch.maximum(upper.norm(dim=1), limit.abs()).clamp(min=1e-12)
    if not bool(torch.isfinite(upper).all() and torch.isfinite(limit).all() and torch.isfinite(size).all()):
        return None
    found = _solve(problem, (upper / size[:, None]).numpy(), (limit / size).numpy())
    if found is None:
        return None
    x, level, price = found
    prices = torch.from_numpy(price).clamp(min=0) / size
    weight = torch.zeros(1, len(outputs.offset), dtype=torch.float64)
    weight[0, rows] = prices[len(sign) :]
    beta = prices[None, : len(sign)]
    at = multipliers(problem, node.split, torch.zeros_like(beta), beta, DualObjective.of(problem, weight))
    return LeafSolution(torch.from_numpy(x)[None], at, beta, weight, level > TOLERANCE)


def _affine(problem: Reduced, split: Tensor) -> tuple[AffineMaps, AffineMaps]:
    """Units and rows as affine functions of the input alone, all units being held."""
    direct, offset = problem.units.direct.clone(), problem.units.offset.clone()
    on = (split == ON).double()
    for layer in problem.layers[1:]:
        before = slice(0, layer.start)
        through = problem.units.through[layer, before] * on[before]
        direct[layer] += through @ direct[before]
        offset[layer] += through @ offset[before]
    kept = problem.rows.through * on
    units = problem.units._replace(direct=direct, offset=offset)
    rows = problem.rows._replace(direct=problem.rows.direct + kept @ direct, offset=problem.rows.offset + kept @ offset)
    return units, rows


def _solve(problem: Reduced, upper: np.ndarray, limit: np.ndarray) -> tuple[np.ndarray, float, np.ndarray] | None:
    """`min t` with `upper x - t <= limit` over the region: x, t and the rows' multipliers."""
    from scipy.optimize import linprog  # here, as only those who come this far should wait for it

    region = problem.region
    count, inputs = upper.shape
    ends = [end.flatten().numpy() for end in region.box]
    bounds = [*zip(*ends, strict=True), (None, None)]
    cost = np.r_[np.zeros(inputs), 1.0]
    matrix, right = np.c_[upper, -np.ones(count)], limit
    for _ in range(1 if math.isinf(region.norm) else CUTS):
        found = linprog(cost, A_ub=matrix, b_ub=right, bounds=bounds, method="highs")
        if found.status != 0 or found.x is None:
            return None
        point, level = found.x[:-1], float(found.x[-1])
        cut = tangent(problem, torch.from_numpy(point))
        if cut is None:
            break
        matrix, right = np.vstack([matrix, np.r_[cut[0], 0.0]]), np.append(right, cut[1])
    return point, level, -found.ineqlin.marginals[:count]


def tangent(problem: Reduced, x: Tensor) -> tuple[np.ndarray, float] | None:
    """A half-space that holds the ball and not x: `g . x <= b`; None if x is in the ball."""
    region = problem.region
    centre, norm, eps = region.x.flatten(), region.norm, float(region.eps)
    delta = x - centre
    size = float(power_norm(delta.abs(), norm))
    if math.isinf(norm) or size <= eps * (1 + TOLERANCE):
        return None
    # The gradient of the norm: of dual norm 1.
    slope = delta.sign() if norm == 1 else delta.sign() * (delta.abs() / size) ** (norm - 1)
    return slope.numpy(), eps + float(slope @ centre)
