"""Attacks on samples that no bound has proved, and the smallest counterexample of each sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.attacks.minimal_norm import MinimalNorm, SmallestCounterexamples, falls
from polycert.attacks.pgd import attack_region, likelihood_of, margin_of, over, pgd_attack
from polycert.evaluation.settings import EvaluationQuestion, EvaluationSettings, Stage
from polycert.graph import Graph
from polycert.runtime import keyed_random
from polycert.runtime.execution import Progress, over_batches
from polycert.sets.ball import Region

PGD_STEPS, PGD_STEP, PGD_START = 20, 0.1, 0.1  # the paper's: step and standard deviation of the start, in eps
PGD_TEXT = "20 steps of eps/10 on the cross-entropy, Gaussian start of std eps/10, one restart"


def describe(steps: int, restarts: int, seed: int) -> str:
    """Both attacks in words, for the record."""
    strong = f"then {steps} steps with momentum on the margin, {restarts} restarts (x, random, targeted), seed {seed}"
    return f"PGD: {PGD_TEXT}; PGD_strong: {strong}; neither on samples that bounds prove"


class AttackResults(NamedTuple):
    """What attacks within eps found, all `[n]` but the points: a wrong prediction is its own counterexample."""

    pgd: Tensor  # bool: the paper's attack
    attacked: Tensor  # bool: any attack
    points: Tensor  # [n, *shape]: a counterexample where attacked


def attack_all(question: EvaluationQuestion, proved: Tensor, stage: Stage) -> AttackResults:
    """The paper's PGD, and a stronger attack where it fails; proved samples cannot fall and are left alone."""
    graph = question.network.bind()
    region = question.ball.at(question.x.to(graph.dtype))
    with torch.no_grad():
        outputs = torch.cat([graph.forward(part) for part in region.x.split(question.batch)])
    pgd, points = margin_of(outputs, question.y) <= 0, region.x.clone()
    fell = _fallen(question, graph, region, ~proved & ~pgd, points, _paper_attack, partial(stage, "PGD"))
    pgd = pgd | fell
    fell = _fallen(question, graph, region, ~proved & ~pgd, points, _strong_attack, partial(stage, "a stronger attack"))
    return AttackResults(pgd, pgd | fell, points)


def _fallen(
    question: EvaluationQuestion,
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
        found = attack(graph, region[some], question.y[some], question.index[some.cpu()], question.settings)
        broken = falls(graph, found, question.y[some])
        fell[some], points[some[broken]] = broken, found[broken]

    fell = torch.zeros_like(wanted)
    share = -(-len(left) // question.threads)  # few samples are spread over the threads
    over_batches(work, len(left), max(min(share, question.batch), 1), question.threads, progress)
    return fell


def _paper_attack(graph: Graph, region: Region, label: Tensor, index: Tensor, settings: EvaluationSettings) -> Tensor:
    start = _gaussian_start(region, settings.seed, index)
    return pgd_attack(graph, region, label, start, steps=PGD_STEPS, step=PGD_STEP, fixed=True, objective=likelihood_of)


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
    size = PGD_START * over(region.radius, region.x)
    return region.project(region.x + size * normal.reshape(region.x.shape).to(region.x))


def smallest(
    question: EvaluationQuestion, hits: AttackResults, proved_radius: Tensor, stage: Stage
) -> SmallestCounterexamples:
    """Counterexamples at any radius up to `upper`, drawn as near as an attack gets them; never below what is proved."""
    graph, double = question.network.bind(), question.network.bind(torch.float64)
    region = question.ball.at(question.x.to(graph.dtype))
    known = proved_radius.nan_to_num(nan=0.0).to(question.x.device)
    found = over_batches(
        lambda here: MinimalNorm(graph, double, region[here], question.y[here]).run(
            hits.points[here], hits.attacked[here], known[here], question.settings.upper
        ),
        len(question),
        question.batch,
        question.threads,
        lambda done, total: stage("nearing counterexamples", done, total),
    )
    return SmallestCounterexamples(*(torch.cat(parts) for parts in zip(*found, strict=True)))
