"""What a node's halves would be worth for each of many units: bounds at the node's own multipliers, and no more.

Almost all of the work is the product of multipliers and the units' coefficients of the input. Holding a unit of the
first layer changes its own multiplier and no other, so that its halves take the node's product and correct it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from polycert.verification.dual_bound import OFF, ON, DualObjective, Multipliers, multipliers, value
from polycert.verification.nodes import Nodes
from polycert.verification.reduced_problem import Reduced

BLOCK = 256  # halves at a time: what they need stays in the cache


def score_candidates(problem: Reduced, nodes: Nodes, unit: Tensor) -> Nodes:
    """Both halves of each node by each of its candidates `[nodes, trials]`, bounded: all the upper ones first."""
    count, trials = unit.shape
    parent = torch.arange(count).repeat_interleave(trials).repeat(2)
    halves = halve(nodes[parent[: count * trials]], unit.flatten())
    aim = DualObjective.of(problem, nodes.weight)
    whole = multipliers(problem, nodes.split, nodes.alpha, nodes.beta, aim)
    slope = problem.direct.back(whole.nu) + aim.direct
    place = unit.flatten().repeat(2)
    first = place < problem.layers[0].stop
    bound = torch.empty_like(halves.bound)
    for part in _blocks(first):
        some, origin = halves[part], parent[part]
        own = DualObjective(*(one[origin] for one in aim))
        at = multipliers(problem, some.split, some.alpha, some.beta, own)
        if bool(first[part[0]]):
            found = _corrected(problem, slope[origin], whole.nu[origin], at, place[part])
        else:
            found = problem.direct.back(at.nu).add_(own.direct)
        bound[part] = value(problem, some.split, at, own, found)
    return replace(halves, bound=bound)


def _blocks(first: Tensor) -> list[Tensor]:
    """Positions of halves in blocks of one kind."""
    kinds = (first.nonzero().flatten(), (~first).nonzero().flatten())
    return [block for kind in kinds if len(kind) for block in kind.split(BLOCK)]


def _corrected(problem: Reduced, slope: Tensor, before: Tensor, at: Multipliers, unit: Tensor) -> Tensor:
    """The slope of halves whose multipliers differ from the node's at one unit each."""
    place = unit[:, None]
    moved = at.nu.gather(1, place) - before.gather(1, place)
    return slope.addcmul_(moved, problem.units.direct[unit])


def halve(nodes: Nodes, unit: Tensor) -> Nodes:
    """Both sides of one unit of each node."""
    place = unit[:, None]
    sides = [nodes.split.scatter(1, place, side) for side in (ON, OFF)]
    return Nodes.join([replace(nodes, split=split) for split in sides])
