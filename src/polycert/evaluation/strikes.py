"""Attacks on samples that no bound has proved, and the smallest counterexample of each sample."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from polycert import noise
from polycert.attacks import descend, descend_with_momentum, likelihood_of, margin_of, strike
from polycert.evaluation.task import Stage, Task
from polycert.geometry import power_norm
from polycert.graph import Graph
from polycert.parallel import over_batches
from polycert.sets import Region

PGD_STEPS, PGD_STEP, PGD_START = 20, 0.1, 0.1  # the paper's: step and standard deviation of the start, in eps
PGD_TEXT = "20 steps of eps/10 on the cross-entropy, Gaussian start of std eps/10, one restart"
HALVINGS = 20  # along the segment from a counterexample to the sample
ROUNDS, ROUND_STEPS = 3, 20  # attacks on ever smaller balls


def describe(steps: int, restarts: int, seed: int) -> str:
    """Both attacks in words, for the record."""
    strong = f"then {steps} steps with momentum on the margin, {restarts} restarts (x, random, targeted), seed {seed}"
    return f"PGD: {PGD_TEXT}; PGD_strong: {strong}; neither on samples that bounds prove"


class Hits(NamedTuple):
    """What attacks within eps found, all `[n]` but the points: a wrong prediction is its own counterexample."""

    pgd: Tensor  # bool: the paper's attack
    attacked: Tensor  # bool: any attack
    points: Tensor  # [n, *shape]: a counterexample where attacked


def attack_all(task: Task, proved: Tensor, stage: Stage) -> Hits:
    """The paper's PGD, and a stronger attack where it fails; proved samples cannot fall and are left alone."""
    graph = task.network.bind()
    region = task.ball.at(task.x.to(graph.dtype))
    found = over_batches(
        lambda here: _hits(task.part(here), graph, region[here], proved[here]),
        len(task),
        task.batch,
        task.threads,
        lambda done, total: stage("attacking", done, total),
    )
    return Hits(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _hits(task: Task, graph: Graph, region: Region, proved: Tensor) -> Hits:
    with torch.no_grad():
        pgd = margin_of(graph.forward(region.x), task.y) <= 0
    points, attacked = region.x.clone(), pgd.clone()
    left = (~proved & ~pgd).nonzero().squeeze(1)
    if len(left):
        here, label = region[left], task.y[left]
        found = descend(
            graph,
            here,
            label,
            _gaussian_start(here, task.settings.seed, task.index[left.cpu()]),
            steps=PGD_STEPS,
            step=PGD_STEP,
            fixed=True,
            aim=likelihood_of,
        )
        points[left], pgd[left] = found, _broken(graph, found, label)
        attacked |= pgd
    left = (~proved & ~attacked).nonzero().squeeze(1)
    if len(left):
        options = task.settings
        hits = strike(
            graph,
            region[left],
            task.y[left],
            task.index[left.cpu()],
            steps=options.steps,
            restarts=options.restarts,
            seed=options.seed,
            until_success=True,
        )
        points[left], attacked[left] = hits.inputs, hits.success
    return Hits(pgd, attacked, points)


def _gaussian_start(region: Region, seed: int, index: Tensor) -> Tensor:
    """A normal point around each sample, brought into its set; a function of the seed and its position."""
    features = torch.arange(region.x[0].numel(), device=region.x.device)
    # Off the ends of [0, 1), where the normal quantile is infinite.
    share = noise.uniform(seed, "pgd", index.to(region.x.device)[:, None], features).double() + 2.0**-25
    normal = math.sqrt(2) * torch.erfinv(2 * share - 1)
    size = PGD_START * region.radius.reshape(-1, *(1,) * (region.x.dim() - 1))
    return region.project(region.x + size * normal.reshape(region.x.shape).to(region.x))


def _broken(graph: Graph, points: Tensor, label: Tensor) -> Tensor:
    """Whether points have another class, or tie."""
    with torch.no_grad():
        return margin_of(graph.forward(points), label) <= 0


class Smallest(NamedTuple):
    """The nearest counterexample found for each sample: its norm `[n]` (float64), NaN where none is, and the point."""

    radius: Tensor
    points: Tensor


def smallest(task: Task, hits: Hits, proved_radius: Tensor, stage: Stage) -> Smallest:
    """Counterexamples at any radius up to `upper`, drawn as near as an attack gets them; never below what is proved."""
    graph = task.network.bind()
    region = task.ball.at(task.x.to(graph.dtype))
    known = proved_radius.nan_to_num(nan=0.0).to(task.x.device)
    found = over_batches(
        lambda here: _Nearing(graph, region[here], task.y[here]).run(
            Hits(*(values[here] for values in hits)), known[here], task.settings.upper
        ),
        len(task),
        task.batch,
        task.threads,
        lambda done, total: stage("nearing counterexamples", done, total),
    )
    return Smallest(*(torch.cat(parts) for parts in zip(*found, strict=True)))


class _Nearing(NamedTuple):
    """Draws counterexamples of one batch towards their samples."""

    graph: Graph
    region: Region
    label: Tensor

    def run(self, hits: Hits, proved: Tensor, upper: float) -> Smallest:
        """From those found within eps, or else within `upper`, by attacks on balls halfway to what is proved."""
        best = self._shrunk(hits.points, hits.attacked)
        far = self._attack(torch.full_like(proved, upper), self.region.x, ~hits.attacked)
        best = _nearer(best, far)
        low = proved.double()
        for _ in range(ROUNDS):
            middle = (low + best.radius) / 2
            tried = best.radius > 0  # NaN: nothing to start from
            found = self._attack(middle, best.points, tried)
            low = torch.where(found.radius.isnan() & tried, middle, low)
            best = _nearer(best, found)
        return best

    def _attack(self, eps: Tensor, start: Tensor, wanted: Tensor) -> Smallest:
        """A descent in balls of these radii, for the samples wanted."""
        points, broken = self.region.x.clone(), torch.zeros_like(wanted)
        left = wanted.nonzero().squeeze(1)
        if len(left):
            here = replace(self.region[left], eps=eps[left].double())
            found, margin = descend_with_momentum(
                self.graph, here, self.label[left], here.project(start[left]), target=None, steps=ROUND_STEPS
            )
            points[left], broken[left] = found, margin <= 0
        return self._shrunk(points, broken)

    def _shrunk(self, points: Tensor, broken: Tensor) -> Smallest:
        """Halve the segment to the sample again and again, keeping the end that is broken."""
        x, wide = self.region.x, (-1, *(1,) * (points.dim() - 1))
        low, high = torch.zeros_like(self.region.radius), torch.ones_like(self.region.radius)
        nearest = torch.where(broken.reshape(wide), points, torch.nan)
        own = broken & _broken(self.graph, x, self.label)
        nearest = torch.where(own.reshape(wide), x, nearest)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            here = self.region.clip(x + middle.reshape(wide) * (points - x))
            fell = broken & ~own & _broken(self.graph, here, self.label)
            nearest = torch.where(fell.reshape(wide), here, nearest)
            low, high = torch.where(fell, low, middle), torch.where(fell, middle, high)
        delta = (nearest.double() - x.double()).flatten(1).abs()
        return Smallest(power_norm(delta, self.region.norm), nearest)


def _nearer(first: Smallest, second: Smallest) -> Smallest:
    """The better of two for each sample; NaN is none."""
    take = (second.radius < first.radius) | first.radius.isnan()
    wide = take.reshape(-1, *(1,) * (first.points.dim() - 1))
    return Smallest(torch.where(take, second.radius, first.radius), torch.where(wide, second.points, first.points))
