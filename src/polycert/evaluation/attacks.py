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

# The paper's PGD; its step and the standard deviation of its start are in units of eps.
PGD_STEPS, PGD_STEP, PGD_START = 20, 0.1, 0.1
PGD_TEXT = "20 steps of eps/10 on the cross-entropy, Gaussian start of std eps/10, one restart"


def describe(steps: int, restarts: int, seed: int) -> str:
    """Return a description of both attacks for the record."""
    strong = f"then {steps} steps with momentum on the margin, {restarts} restarts (x, random, targeted), seed {seed}"
    return f"PGD: {PGD_TEXT}; PGD_strong: {strong}; neither on samples that bounds prove"


class AttackResults(NamedTuple):
    """The results of the attacks within eps. A misclassified sample is its own counterexample."""

    pgd: Tensor  # [n], bool: whether the paper's attack succeeds
    attacked: Tensor  # [n], bool: whether any attack succeeds
    points: Tensor  # [n, *shape]: a counterexample where `attacked`


def attack_all(question: EvaluationQuestion, proved: Tensor, stage: Stage) -> AttackResults:
    """Run the paper's PGD, and a stronger attack where it fails. Proved samples are not attacked."""
    graph = question.network.bind()
    region = question.ball.at(question.x.to(graph.dtype))
    with torch.no_grad():
        outputs = torch.cat([graph.forward(part) for part in region.x.split(question.batch)])
    pgd, points = margin_of(outputs, question.y) <= 0, region.x.clone()
    broken = _attack_each(question, graph, region, ~proved & ~pgd, points, _paper_attack, partial(stage, "PGD"))
    pgd = pgd | broken
    broken = _attack_each(
        question, graph, region, ~proved & ~pgd, points, _strong_attack, partial(stage, "a stronger attack")
    )
    return AttackResults(pgd, pgd | broken, points)


def _attack_each(
    question: EvaluationQuestion,
    graph: Graph,
    region: Region,
    wanted: Tensor,
    points: Tensor,
    attack: Callable[[Graph, Region, Tensor, Tensor, EvaluationSettings], Tensor],
    progress: Progress,
) -> Tensor:
    """Attack the samples that are `wanted`, and write counterexamples into `points`; returns which it broke, `[n]`."""
    left = wanted.nonzero().squeeze(1)

    def work(here: slice) -> None:
        some = left[here]
        found = attack(graph, region[some], question.y[some], question.index[some.cpu()], question.settings)
        success = falls(graph, found, question.y[some])
        broken[some], points[some[success]] = success, found[success]

    broken = torch.zeros_like(wanted)
    share = -(-len(left) // question.threads)  # spreads few samples over all threads
    over_batches(work, len(left), max(min(share, question.batch), 1), question.threads, progress)
    return broken


def _paper_attack(graph: Graph, region: Region, label: Tensor, index: Tensor, settings: EvaluationSettings) -> Tensor:
    """Return the last points of the paper's PGD, `[batch, *shape]`."""
    start = _gaussian_start(region, settings.seed, index)
    return pgd_attack(graph, region, label, start, steps=PGD_STEPS, step=PGD_STEP, fixed=True, objective=likelihood_of)


def _strong_attack(graph: Graph, region: Region, label: Tensor, index: Tensor, settings: EvaluationSettings) -> Tensor:
    """Return the best points of an attack with momentum and restarts, `[batch, *shape]`."""
    found = attack_region(
        graph,
        region,
        label,
        index,
        steps=settings.steps,
        restarts=settings.restarts,
        seed=settings.seed,
        until_success=True,
    )
    return found.inputs


def _gaussian_start(region: Region, seed: int, index: Tensor) -> Tensor:
    """Return normally distributed points around the samples, projected onto their sets, `[batch, *shape]`.

    A point depends only on the seed and the sample's position in the data set.
    """
    features = torch.arange(region.x[0].numel(), device=region.x.device)
    # The shift avoids 0, where the normal quantile is infinite.
    share = keyed_random.uniform(seed, "pgd", index.to(region.x.device)[:, None], features).double() + 2.0**-25
    normal = math.sqrt(2) * torch.erfinv(2 * share - 1)
    size = PGD_START * over(region.radius, region.x)
    return region.project(region.x + size * normal.reshape(region.x.shape).to(region.x))


def smallest(
    question: EvaluationQuestion, known: AttackResults, proved_radius: Tensor, stage: Stage
) -> SmallestCounterexamples:
    """Return a counterexample of each sample within `upper`, as near as attacks get; NaN where none was found.

    The attacks start from `known` counterexamples, and do not search the ball that is proved.
    """
    graph, double = question.network.bind(), question.network.bind(torch.float64)
    region = question.ball.at(question.x.to(graph.dtype))
    proved = proved_radius.nan_to_num(nan=0.0).to(question.x.device)
    found = over_batches(
        lambda here: MinimalNorm(graph, double, region[here], question.y[here]).run(
            known.points[here], known.attacked[here], proved[here], question.settings.upper
        ),
        len(question),
        question.batch,
        question.threads,
        lambda done, total: stage("nearing counterexamples", done, total),
    )
    return SmallestCounterexamples(*(torch.cat(parts) for parts in zip(*found, strict=True)))
