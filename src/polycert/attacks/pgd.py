"""Gradient attacks (PGD, APGD) on the set around each sample. Gradients of parameters are never touched."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polycert.certification.envelope import classes_of
from polycert.errors import PolycertError
from polycert.graph import Graph, Network
from polycert.graph.fingerprint import network_digest
from polycert.graph.inputs import as_inputs, as_labels
from polycert.records.provenance import SampleRecords, box_text
from polycert.sets.ball import Array, Ball, Region
from polycert.sets.geometry import power_norm


class WorstPoints(NamedTuple):
    """The worst point found for each sample, whether it has another class or ties, and its margin."""

    inputs: Tensor  # [n, *input_shape]
    success: Tensor  # [n]
    margin: Tensor  # [n]


@dataclass(frozen=True, eq=False, kw_only=True)
class Attack(SampleRecords):
    """What an attack found about each sample.

    Attributes:
        index: position of the sample in its data set.
        label: the class that was checked.
        prediction: the model's own class.
        inputs: the worst point found, `[n, *input_shape]`; it is not in a frame.
        success: whether it has another class, or ties.
        margin: its margin.
        eps, norm, box, steps, restarts, seed: what was asked; network, version: as in `Provenance`.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ("index", "label", "prediction", "success", "margin", "eps")
    ASKED: ClassVar[tuple[str, ...]] = ("steps", "restarts", "seed")

    index: Tensor
    label: Tensor
    prediction: Tensor
    inputs: Tensor
    success: Tensor
    margin: Tensor
    eps: Tensor
    steps: int
    restarts: int
    seed: int


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
    """Search for the point of each sample's set with the least margin.

    Each restart is a projected descent with momentum whose step halves when it makes too little progress (as in APGD).
    The first starts at x, the others at random points. From the third on each descends the margin to one other class,
    the one with the largest score first. The random points of a sample depend on `seed` and its position only.
    Gradients are taken with respect to inputs alone, so no parameter's `.grad` changes.

    Examples:
        >>> hits = attack(torch.nn.Linear(2, 2), torch.rand(3, 2), None, Ball(eps=0.5), steps=10)
        >>> hits.success.shape
        torch.Size([3])
    """
    if steps < 1 or restarts < 1:
        raise PolycertError(f"an attack needs steps and restarts of at least 1, got {steps} and {restarts}")
    network, inputs = as_inputs(net, x)
    return attack_samples(network, inputs, y, ball, torch.arange(len(inputs)), steps, restarts, seed)


def attack_samples(
    network: Network, x: Tensor, y: Array | None, ball: Ball, index: Tensor, steps: int, restarts: int, seed: int
) -> Attack:
    """`attack` on checked samples, with their positions `index` in the data set."""
    graph = network.bind()
    inputs = x.to(graph.dtype)
    with torch.no_grad():
        prediction = graph.forward(inputs).argmax(1)
    label, region = as_labels(y, prediction, classes_of(graph)), ball.at(inputs)
    hits = attack_region(graph, region, label, index, steps=steps, restarts=restarts, seed=seed)
    return Attack(
        index=index,
        label=label,
        prediction=prediction,
        **hits._asdict(),
        eps=region.eps,
        norm=region.norm,
        box=box_text(ball.low, ball.high),
        steps=steps,
        restarts=restarts,
        seed=seed,
        network=network_digest(network),
    )


def attack_region(
    graph: Graph,
    region: Region,
    label: Tensor,
    position: Tensor,
    *,
    steps: int,
    restarts: int,
    seed: int,
    until_success: bool = False,
    deadline: float = math.inf,
) -> WorstPoints:
    """`attack` on the sets of a batch, until a moment of `time.monotonic()`.

    With `until_success`, restarts skip samples that have a counterexample.
    """
    best = region.x.clone()
    with torch.no_grad():
        outputs = graph.forward(best)
    lowest, order = margin_of(outputs, label), _other_classes(outputs, label)
    for restart in range(max(restarts, 1)):
        index = (lowest > 0).nonzero().squeeze(1) if until_success else torch.arange(len(best), device=best.device)
        if len(index) == 0 or time.monotonic() > deadline:
            break
        here = region[index]
        start = here.x if restart == 0 else _random_points(here, seed, restart, position[index.to(position.device)])
        target = None if restart < 2 else order[index, (restart - 2) % order.shape[1]]
        points, margin = apgd_attack(graph, here, label[index], start, target=target, steps=steps, deadline=deadline)
        better = margin < lowest[index]
        lowest[index] = torch.where(better, margin, lowest[index])
        best[index] = torch.where(over(better, points), points, best[index])
    return WorstPoints(best, lowest <= 0, lowest)


def apgd_attack(
    graph: Graph,
    region: Region,
    label: Tensor,
    start: Tensor,
    *,
    target: Tensor | None,
    steps: int,
    deadline: float = math.inf,
) -> tuple[Tensor, Tensor]:
    """APGD (Croce and Hein 2020) on the margin, to the target class if there is one.

    Returns the points of least margin to all other classes, `[batch, *input_shape]`, and these margins.
    """
    points = previous = start.detach().clone()
    best, lowest = points, torch.full_like(region.radius, torch.inf)
    best_objective, step = lowest.clone(), 2 * region.radius
    improved = torch.zeros_like(step)
    earlier_objective, earlier_step, since = best_objective.clone(), step.clone(), 0
    checks = _checkpoints(steps)
    for k in range(steps + 1):
        objective, margin, slope = _objective(graph, points, label, target)
        with torch.no_grad():
            lower = margin < lowest
            lowest = torch.where(lower, margin, lowest)
            best = torch.where(over(lower, points), points, best)
            improved, best_objective = improved + (objective < best_objective), torch.minimum(objective, best_objective)
            since += 1
            if k in checks:
                stalled = (improved < 0.75 * since) | ((step == earlier_step) & (best_objective == earlier_objective))
                earlier_objective, earlier_step = best_objective.clone(), step.clone()
                step = torch.where(stalled, step / 2, step)
                points = torch.where(over(stalled, points), best, points)
                improved, since = torch.zeros_like(improved), 0
            descended = region.project(points - steepest(slope, region.norm) * over(step, points))
            moved = points + (0.75 * (descended - points) + 0.25 * (points - previous) if k else descended - points)
            points, previous = region.project(moved), points
        if time.monotonic() > deadline:
            break
    return best, lowest


def _objective(graph: Graph, points: Tensor, label: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The margin to the target class (or to all classes), the margin to all classes, and the gradient of the former."""
    with torch.enable_grad():
        leaf = points.detach().requires_grad_()
        outputs = graph.forward(leaf)
        margin = margin_of(outputs, label)
        objective = margin if target is None else _entry(outputs, label) - _entry(outputs, target)
        (slope,) = torch.autograd.grad(objective.sum(), leaf)
    return objective.detach(), margin.detach(), slope


def _checkpoints(steps: int) -> set[int]:
    """The steps at which the step size may halve: after 22 % of the steps, then in ever shorter periods."""
    found, at, period = set(), 0.0, 0.22
    while at + period < 1:
        at += period
        found.add(math.ceil(at * steps))
        period = max(period - 0.03, 0.06)
    return found


def _other_classes(outputs: Tensor, label: Tensor) -> Tensor:
    """The other classes in the order of falling scores, `[batch, classes - 1]`."""
    return outputs.scatter(1, label[:, None], -torch.inf).argsort(1, descending=True)[:, :-1]


def margin_of(outputs: Tensor, label: Tensor) -> Tensor:
    """The label's score minus the largest other score, `[batch]`."""
    return _entry(outputs, label) - outputs.scatter(1, label[:, None], -torch.inf).amax(1)


def likelihood_of(outputs: Tensor, label: Tensor) -> Tensor:
    """The log-likelihood of the label, `[batch]`: minus the cross-entropy, which Madry et al. 2018 ascend."""
    return -F.cross_entropy(outputs, label, reduction="none")


def pgd_attack(
    graph: Graph,
    region: Region,
    label: Tensor,
    start: Tensor,
    *,
    steps: int,
    step: float,
    fixed: bool = False,
    objective: Callable[[Tensor, Tensor], Tensor] = margin_of,
) -> Tensor:
    """The points after steepest descent of the objective in the ball's norm, `[batch, *input_shape]`.

    `step` is in units of eps. It shrinks along a cosine unless it is `fixed`.
    """
    points = start.detach().clone()
    for k in range(steps):
        points.requires_grad_(True)
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(objective(graph.forward(points), label).sum(), points)
        size = step if fixed else step * 0.5 * (1 + math.cos(math.pi * k / steps))
        with torch.no_grad():
            move = steepest(slope, region.norm) * over(region.radius * size, points)
            points = region.project(points - move)
    return points.detach()


def steepest(slope: Tensor, norm: float) -> Tensor:
    """The direction of norm 1 along which the linear function with this slope rises most."""
    if math.isinf(norm):
        return slope.sign()
    # For p near 1 the exact direction moves nearly one coordinate alone, which makes a poor search.
    power = 1 / (max(norm, 1.5) - 1)
    top = over(slope.abs().flatten(1).amax(1).clamp(min=1e-30), slope)
    direction = slope.sign() * (slope.abs() / top) ** power
    length = power_norm(direction.flatten(1).abs(), norm).clamp(min=1e-30)
    return direction / over(length, direction)


def _random_points(region: Region, seed: int, restart: int, position: Tensor) -> Tensor:
    """A random point for each sample, from a generator of its own."""
    draws = []
    for place in position.tolist():
        stream = np.random.SeedSequence([seed % 2**63, restart, place])
        draws.append(np.random.default_rng(stream).uniform(-1, 1, region.x.shape[1:]))
    noise = torch.from_numpy(np.stack(draws)).to(region.x)
    return region.project(region.x + noise * over(region.radius, region.x))


def _entry(outputs: Tensor, entry: Tensor) -> Tensor:
    """One entry of each row, `[batch]`."""
    return outputs.gather(1, entry[:, None]).squeeze(1)


def over(values: Tensor, like: Tensor) -> Tensor:
    """One value per sample, shaped to broadcast with the samples `like`."""
    return values.reshape(-1, *(1,) * (like.dim() - 1))
