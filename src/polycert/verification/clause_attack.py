"""An attack on a specification: gradient descent on how far each clause is from failing."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.attacks.pgd import over
from polycert.graph import Graph
from polycert.sets.ball import Region
from polycert.verification.specification import Specification

NUMBERS = 2**26  # entries in all values of the points that go through the network together


class PaddedClauses(NamedTuple):
    """The clauses of a specification, padded to one number of rows."""

    rows: Tensor  # [clauses, k, outputs]
    constants: Tensor  # [clauses, k]; -inf for padding

    @staticmethod
    def of(spec: Specification, graph: Graph) -> PaddedClauses:
        """Return the clauses of a specification in the graph's type."""
        members = spec.members
        order = members.long().argsort(dim=1, descending=True, stable=True)[:, : int(members.sum(1).max())]
        real = members.gather(1, order)
        rows, constants = spec.rows.flatten(1)[order], torch.where(real, spec.constants[order], -torch.inf)
        return PaddedClauses(*(part.to(graph.device, graph.dtype) for part in (rows * real[..., None], constants)))

    def excess(self, outputs: Tensor) -> Tensor:
        """Return each clause's largest row at outputs `[clauses, tries, outputs]`: `[clauses, tries]`; <= 0 fails."""
        return (outputs @ self.rows.transpose(1, 2) + self.constants[:, None]).amax(2)


def clause_attack(
    graph: Graph,
    region: Region,
    spec: Specification,
    *,
    tries: int,
    draws: int,
    steps: int,
    seed: int,
    deadline: float = math.inf,
) -> Tensor:
    """Return the best point found in each try, the most promising first: `[clauses * tries, *input_shape]`.

    Tries start at the best of some random points. Steps go along the sign of the gradient, in every other try along the
    gradient itself, and shrink as a cosine.

    Args:
        graph: the network, in any type.
        region: the set around one sample, in the graph's type.
        spec: what is to be broken.
        tries: how many descents there are for each clause.
        draws: how many random points and corners are drawn; each clause starts from the best of them, or from all if
            these are not more than `tries`.
        steps: how many steps each try takes.
        seed: the seed of the random points.
        deadline: a moment of `time.monotonic()` at which the attack stops.
    """
    clauses = PaddedClauses.of(spec, graph)
    at_once = max(1, NUMBERS // sum(math.prod(node.shape) for node in graph.nodes))
    starts = _starts(graph, region, clauses, tries, draws, seed, at_once)
    found, least = [], []
    for begin in range(0, spec.clauses, max(1, at_once // tries)):
        some = PaddedClauses(*(part[begin : begin + max(1, at_once // tries)] for part in clauses))
        points, excess = _descend(graph, region, some, starts[begin : begin + len(some.rows)], steps, deadline)
        found.append(points)
        least.append(excess)
        if bool((excess <= 0).any()) or time.monotonic() > deadline:
            break
    return torch.cat(found)[torch.cat(least).argsort()]


def _descend(
    graph: Graph, region: Region, clauses: PaddedClauses, starts: Tensor, steps: int, deadline: float
) -> tuple[Tensor, Tensor]:
    """Return the best point of each try `[clauses * tries, *input_shape]`, and its excess `[clauses * tries]`.

    The tries begin at `starts`, `[clauses, tries, *input_shape]`.
    """
    shape, points = starts.shape[:2], starts.flatten(0, 1)
    lower, upper = region.box
    by_sign = over((torch.arange(len(points), device=points.device) % 2 == 0).to(points), points)
    best, least = points, points.new_full((len(points),), math.inf)
    for step in range(steps + 1):
        leaf = points.detach().requires_grad_()
        with torch.enable_grad():
            excess = clauses.excess(graph.forward(leaf).flatten(1).unflatten(0, shape)).flatten()
            (slope,) = torch.autograd.grad(excess.sum(), leaf)
        better = excess.detach() < least
        best, least = torch.where(over(better, best), points, best), torch.where(better, excess.detach(), least)
        if bool((least <= 0).any()) or step == steps or time.monotonic() > deadline:
            break
        size = 0.5 * (upper - lower) * (0.5 * (1 + math.cos(math.pi * step / steps)) + 0.002)
        scaled = slope / over(slope.flatten(1).abs().amax(1).clamp(min=1e-30), slope)
        points = _inside(region, points - size * (by_sign * slope.sign() + (1 - by_sign) * scaled))
    return best, least


def _starts(
    graph: Graph, region: Region, clauses: PaddedClauses, tries: int, draws: int, seed: int, at_once: int
) -> Tensor:
    """Return starting points `[clauses, tries, *input_shape]`: the best of x, random points and corners."""
    lower, upper = region.box
    generator = torch.Generator().manual_seed(seed % 2**63)
    noise = torch.rand(max(draws, tries), *lower.shape[1:], generator=generator, dtype=torch.float64).to(lower)
    corners = over(torch.arange(len(noise), device=lower.device) % 4 == 1, noise)
    points = _inside(region, lower + torch.where(corners, noise.round(), noise) * (upper - lower))
    points[0] = region.x[0]
    if draws <= tries:
        return points[:tries].expand(len(clauses.rows), *points[:tries].shape)
    with torch.no_grad():
        outputs = torch.cat([graph.forward(part).flatten(1) for part in points.split(at_once)])
        each = zip(*(part.split(1) for part in clauses), strict=True)
        excess = torch.cat([PaddedClauses(*one).excess(outputs[None]) for one in each])
    return points[excess.topk(tries, dim=1, largest=False).indices]


def _inside(region: Region, points: Tensor) -> Tensor:
    """Return points `[n, *input_shape]` moved into the set around one sample."""
    lower, upper = region.box
    inside = torch.minimum(torch.maximum(points, lower), upper)
    if math.isinf(region.norm):
        return inside
    return region[torch.zeros(len(points), dtype=torch.long)].project(inside)
