"""Attacks on samples that no bound has proved, and the smallest counterexample of each sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.attacks.pgd import apgd_attack, attack_region, likelihood_of, margin_of, pgd_attack
from polycert.evaluation.settings import EvaluationQuestion, EvaluationSettings, Stage
from polycert.graph import Graph
from polycert.runtime import keyed_random
from polycert.runtime.threads import Progress, over_batches
from polycert.sets.ball import Region
from polycert.sets.geometry import power_norm

PGD_STEPS, PGD_STEP, PGD_START = 20, 0.1, 0.1  # the paper's: step and standard deviation of the start, in eps
PGD_TEXT = "20 steps of eps/10 on the cross-entropy, Gaussian start of std eps/10, one restart"
HALVINGS = 12  # along the segment from a counterexample to the sample
ROUNDS, ROUND_STEPS = 3, 20  # attacks on ever smaller balls


def describe(steps: int, restarts: int, seed: int) -> str:
    """Both attacks in words, for the record."""
    strong = f"then {steps} steps with momentum on the margin, {restarts} restarts (x, random, targeted), seed {seed}"
    return f"PGD: {PGD_TEXT}; PGD_strong: {strong}; neither on samples that bounds prove"


class AttackResults(NamedTuple):
    """What attacks within eps found, all `[n]` but the points: a wrong prediction is its own counterexample."""

    pgd: Tensor  # bool: the paper's attack
    attacked: Tensor  # bool: any attack
    points: Tensor  # [n, *shape]: a counterexample where attacked


def attack_all(task: EvaluationQuestion, proved: Tensor, stage: Stage) -> AttackResults:
    """The paper's PGD, and a stronger attack where it fails; proved samples cannot fall and are left alone."""
    graph = task.network.bind()
    region = task.ball.at(task.x.to(graph.dtype))
    with torch.no_grad():
        outputs = torch.cat([graph.forward(part) for part in region.x.split(task.batch)])
    pgd, points = margin_of(outputs, task.y) <= 0, region.x.clone()
    fell = _fallen(task, graph, region, ~proved & ~pgd, points, _paper_attack, partial(stage, "PGD"))
    pgd = pgd | fell
    fell = _fallen(task, graph, region, ~proved & ~pgd, points, _strong_attack, partial(stage, "a stronger attack"))
    return AttackResults(pgd, pgd | fell, points)


def _fallen(
    task: EvaluationQuestion,
    graph: Graph,
    region: Region,
    wanted: Tensor,
    points: Tensor,
    attack: Callable[[Graph, Region, Tensor, Tensor, EvaluationSettings], Tensor],
    progress: Progress,
) -> Tensor:
    """Attack the samples wanted: which of them fell, `[n]`; their counterexamples are put into `points`."""
    left = wanted.nonzero().squeeze(1)

    def work(here: slice) -> None:
        some = left[here]
        found = attack(graph, region[some], task.y[some], task.index[some.cpu()], task.settings)
        broken = _broken(graph, found, task.y[some])
        fell[some], points[some[broken]] = broken, found[broken]

    fell = torch.zeros_like(wanted)
    share = -(-len(left) // task.threads)  # few samples are spread over the threads
    over_batches(work, len(left), max(min(share, task.batch), 1), task.threads, progress)
    return fell


def _paper_attack(graph: Graph, region: Region, label: Tensor, index: Tensor, settings: EvaluationSettings) -> Tensor:
    start = _gaussian_start(region, settings.seed, index)
    return pgd_attack(graph, region, label, start, steps=PGD_STEPS, step=PGD_STEP, fixed=True, aim=likelihood_of)


def _strong_attack(graph: Graph, region: Region, label: Tensor, index: Tensor, settings: EvaluationSettings) -> Tensor:
    hits = attack_region(
        graph,
        region,
        label,
        index,
        steps=settings.steps,
        restarts=settings.restarts,
        seed=settings.seed,
        until_success=True,
    )
    return hits.inputs


def _gaussian_start(region: Region, seed: int, index: Tensor) -> Tensor:
    """A normal point around each sample, brought into its set; a function of the seed and its position."""
    features = torch.arange(region.x[0].numel(), device=region.x.device)
    # Off the ends of [0, 1), where the normal quantile is infinite.
    share = keyed_random.uniform(seed, "pgd", index.to(region.x.device)[:, None], features).double() + 2.0**-25
    normal = math.sqrt(2) * torch.erfinv(2 * share - 1)
    size = PGD_START * _over(region.radius, region.x)
    return region.project(region.x + size * normal.reshape(region.x.shape).to(region.x))


def _broken(graph: Graph, points: Tensor, label: Tensor) -> Tensor:
    """Whether points have another class, or tie."""
    with torch.no_grad():
        return margin_of(graph.forward(points), label) <= 0


class SmallestCounterexamples(NamedTuple):
    """The nearest counterexample found for each sample: its norm `[n]` (float64), NaN where none is, and the point.

    It is one in float64: ties by the rounding of float32 alone would contradict proofs about the real-valued network.
    """

    radius: Tensor
    points: Tensor


def smallest(
    task: EvaluationQuestion, hits: AttackResults, proved_radius: Tensor, stage: Stage
) -> SmallestCounterexamples:
    """Counterexamples at any radius up to `upper`, drawn as near as an attack gets them; never below what is proved."""
    graph, double = task.network.bind(), task.network.bind(torch.float64)
    region = task.ball.at(task.x.to(graph.dtype))
    known = proved_radius.nan_to_num(nan=0.0).to(task.x.device)
    found = over_batches(
        lambda here: _Nearing(graph, double, region[here], task.y[here]).run(
            AttackResults(*(values[here] for values in hits)), known[here], task.settings.upper
        ),
        len(task),
        task.batch,
        task.threads,
        lambda done, total: stage("nearing counterexamples", done, total),
    )
    return SmallestCounterexamples(*(torch.cat(parts) for parts in zip(*found, strict=True)))


class _Nearing(NamedTuple):
    """Draws counterexamples of one batch towards their samples."""

    graph: Graph
    double: Graph
    region: Region
    label: Tensor

    def run(self, hits: AttackResults, proved: Tensor, upper: float) -> SmallestCounterexamples:
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

    def _attack(self, eps: Tensor, start: Tensor, wanted: Tensor) -> SmallestCounterexamples:
        """A descent in balls of these radii, for the samples wanted."""
        points, broken = self.region.x.clone(), torch.zeros_like(wanted)
        left = wanted.nonzero().squeeze(1)
        if len(left):
            here = replace(self.region[left], eps=eps[left].double())
            found, margin = apgd_attack(
                self.graph, here, self.label[left], here.project(start[left]), target=None, steps=ROUND_STEPS
            )
            points[left], broken[left] = found, margin <= 0
        return self._shrunk(points, broken)

    def _shrunk(self, points: Tensor, broken: Tensor) -> SmallestCounterexamples:
        """Halve the segment to the sample again and again, keeping the end that is broken."""
        x = self.region.x
        own = broken & self._falls(x)
        ends = torch.where(_over(own, x), x, points)
        broken = broken & self._falls(ends)
        nearest = torch.where(_over(broken, x), ends, torch.nan)
        low, high = torch.zeros_like(self.region.radius), torch.ones_like(self.region.radius)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            here = self.region.clip(x + _over(middle, x) * (ends - x))
            fell = broken & self._falls(here)
            nearest = torch.where(_over(fell, x), here, nearest)
            low, high = torch.where(fell, low, middle), torch.where(fell, middle, high)
        delta = (nearest.double() - x.double()).flatten(1).abs()
        return SmallestCounterexamples(power_norm(delta, self.region.norm), nearest)

    def _falls(self, points: Tensor) -> Tensor:
        """Whether points have another class in float64."""
        return _broken(self.double, points.double(), self.label)


def _nearer(first: SmallestCounterexamples, second: SmallestCounterexamples) -> SmallestCounterexamples:
    """The better of two for each sample; NaN is none."""
    take = (second.radius < first.radius) | first.radius.isnan()
    points = torch.where(_over(take, first.points), second.points, first.points)
    return SmallestCounterexamples(torch.where(take, second.radius, first.radius), points)


def _over(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.dim() - 1))
