"""Attacks: search the set around each sample for a point of another class. Parameters' gradients are never touched."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polycert.envelope import classes_of
from polycert.geometry import power_norm
from polycert.graph import Graph, Network
from polycert.inputs import as_inputs, as_labels
from polycert.sets import Array, Ball, Region


class Attack(NamedTuple):
    """The worst point found for each sample, whether it has another class (or ties), and its margin."""

    inputs: Tensor
    success: Tensor
    margin: Tensor


def attack(
    net: Network | nn.Module,
    x: Array,
    y: Array | None,
    ball: Ball,
    *,
    steps: int = 100,
    restarts: int = 5,
    seed: int = 0,
) -> Attack:
    """Projected gradient descent on the margin with a shrinking step, from x itself and from random points.

    The random points of a sample depend on `seed` and its position only. Gradients are taken with respect to inputs
    alone, so no parameter's `.grad` changes.
    """
    network, given = as_inputs(net, x)
    graph, inputs = network.bind(), given.to(network.dtype)
    region = ball.at(inputs)
    with torch.no_grad():
        label = as_labels(y, graph.forward(inputs).argmax(1), classes_of(graph))
    best = inputs.clone()
    with torch.no_grad():
        lowest = margin_of(graph.forward(best), label)
    for restart in range(max(restarts, 1)):
        start = inputs if restart == 0 else _random_points(region, seed, restart)
        points = descend(graph, region, label, start, steps=steps, step=0.5)
        with torch.no_grad():
            margin = margin_of(graph.forward(points), label)
        better = margin < lowest
        lowest = torch.where(better, margin, lowest)
        best = torch.where(_over(better, best), points, best)
    return Attack(best, lowest <= 0, lowest)


def descend(
    graph: Graph,
    region: Region,
    label: Tensor,
    start: Tensor,
    *,
    steps: int,
    step: float,
    fixed: bool = False,
) -> Tensor:
    """Steepest descent of the margin in the ball's own norm; `step` is in units of eps, shrinking unless `fixed`."""
    points = start.detach().clone()
    for k in range(steps):
        points.requires_grad_(True)
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(margin_of(graph.forward(points), label).sum(), points)
        size = step if fixed else step * 0.5 * (1 + math.cos(math.pi * k / steps))
        with torch.no_grad():
            move = steepest(slope, region.norm) * _over(region.radius * size, points)
            points = region.project(points - move)
    return points.detach()


def steepest(slope: Tensor, norm: float) -> Tensor:
    """The direction of unit length in the norm along which the form with these coefficients rises most."""
    if math.isinf(norm):
        return slope.sign()
    # Close to p = 1 the exact direction moves one coordinate at a time, which searches badly.
    power = 1 / (max(norm, 1.5) - 1)
    top = _over(slope.abs().flatten(1).amax(1).clamp(min=1e-30), slope)
    direction = slope.sign() * (slope.abs() / top) ** power
    length = power_norm(direction.flatten(1).abs(), norm).clamp(min=1e-30)
    return direction / _over(length, direction)


def margin_of(outputs: Tensor, label: Tensor) -> Tensor:
    """`z_label - max of the others`, `[batch]`."""
    own = outputs.gather(1, label[:, None]).squeeze(1)
    return own - outputs.scatter(1, label[:, None], -torch.inf).amax(1)


def _random_points(region: Region, seed: int, restart: int) -> Tensor:
    """A random point for each sample, drawn from its own stream."""
    draws = []
    for position in range(len(region.x)):
        generator = torch.Generator().manual_seed(hash((seed, restart, position)) % 2**63)
        draws.append(torch.rand(region.x.shape[1:], generator=generator, dtype=torch.float64))
    noise = torch.stack(draws).to(region.x) * 2 - 1
    return region.project(region.x + noise * _over(region.radius, region.x))


def _over(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.dim() - 1))
