"""What an evaluation measures on each sample: proofs by bounds, the largest radius, attacks, and counterexamples."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polycert.attacks.minimal_norm import MinimalNorm, SmallestCounterexamples, falls
from polycert.attacks.pgd import attack_region, likelihood_of, margin_of, over, pgd_attack
from polycert.bounding.methods import passes
from polycert.certification.certify import Certifier, certify
from polycert.certification.radius import RadiusSearch
from polycert.evaluation.settings import EvaluationQuestion, EvaluationSettings, Stage
from polycert.graph import Graph
from polycert.records.certificates import Certificates, Radii
from polycert.records.figures import COUNTS, SEARCHES
from polycert.rules import Activation
from polycert.runtime import keyed_random
from polycert.runtime.execution import Progress, over_batches, plain_products
from polycert.sets.ball import Region

Columns = dict[str, Tensor]
# The paper's PGD; its step and the standard deviation of its start are in units of eps.
PGD_STEPS, PGD_STEP, PGD_START = 20, 0.1, 0.1
PGD_TEXT = "20 steps of eps/10 on the cross-entropy, Gaussian start of std eps/10, one restart"


@dataclass(frozen=True, eq=False)
class Measurements:
    """The measurements of some samples as arrays."""

    columns: dict[str, np.ndarray]  # [n] each
    points: np.ndarray  # [n, *shape]: the nearest counterexample, NaN where there is none; one entry if not asked for
    counterexamples: np.ndarray  # [n, *shape]: a counterexample within eps where `attacked`
    seconds: dict[str, float]
    resumed: dict[str, int] = field(default_factory=dict)  # what an earlier run had found already

    def __len__(self) -> int:
        return len(self.columns["label"])


def measure(question: EvaluationQuestion, stage: Stage) -> Measurements:
    """Return all measurements of some samples."""
    seconds: dict[str, float] = {}
    with _clock(seconds, "bounds"):
        found = bound(question, stage)
    proved = found["certified"] | found["certified_crown"] | found["certified_ibp"]
    with _clock(seconds, "search"):
        found |= search(question, found["radius"].cpu(), stage)
    with _clock(seconds, "attack"):
        attacks = attack_all(question, proved, stage)
    points = torch.full_like(question.x[:1], torch.nan)
    if question.settings.samples:
        with _clock(seconds, "nearing"):
            radius = torch.fmax(found["largest"].to(question.x.device), found["radius"])
            nearest = smallest(question, attacks, radius, stage)
        found["attack_radius"], points = nearest.radius, nearest.points
    found |= {"index": question.index, "proved": proved, "pgd": attacks.pgd, "attacked": attacks.attacked}
    columns = {name: values.cpu().numpy() for name, values in found.items()}
    return Measurements(columns, _plain(points), _plain(attacks.points), seconds)


def _plain(points: Tensor) -> np.ndarray:
    return points.float().cpu().numpy()


@contextmanager
def _clock(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Put the time that the block takes into `seconds`."""
    begin = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - begin


def joined(parts: list[Measurements]) -> Measurements:
    """Return the measurements of several slices as one; seconds and counts add up."""
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    seconds = {name: sum(part.seconds[name] for part in parts) for name in parts[0].seconds}
    points = np.concatenate([part.points for part in parts])
    counterexamples = np.concatenate([part.counterexamples for part in parts])
    resumed = sum((Counter(part.resumed) for part in parts), Counter())
    return Measurements(columns, points, counterexamples, seconds, dict(resumed))


def bound(question: EvaluationQuestion, stage: Stage) -> Columns:
    """Return what the paper's relaxation, CROWN's, and intervals prove at eps, and the counts of units, `[n]` each."""
    lin = _certify(question, "crown", "parallel", stage)
    crown = _certify(question, "crown", "adaptive", stage)
    ibp = _certify(question, "ibp", "parallel", stage)
    found = {name: getattr(lin, name) for name in ("label", "prediction", "nearest", "margin", "radius", "certified")}
    found |= {"certified_crown": crown.certified, "certified_ibp": ibp.certified}
    counts = count_units(question, stage)
    return found if counts is None else found | dict(zip(COUNTS, counts.unbind(1), strict=True))


def _certify(question: EvaluationQuestion, method: str, relaxation: str, stage: Stage) -> Certificates:
    """Return what one method proves at eps."""
    return certify(
        question.network,
        question.x,
        question.y,
        question.ball,
        method=method,
        relaxation=relaxation,
        rigorous=question.settings.rigorous,
        batch_size=question.batch,
        threads=question.threads,
        progress=lambda done, total: stage(f"{method} {relaxation}", done, total),
    )


def count_units(question: EvaluationQuestion, stage: Stage) -> Tensor | None:
    """Return how many units of each sample `crown` shows to be unstable, active and inactive, `[n, 3]`.

    A unit is unstable if its activation bends strictly between its bounds, and active if it stays right of the first
    bend. The result is None unless all activations are piecewise linear.
    """
    graph = question.network.bind()
    ops = [graph.nodes[k].op for k in graph.activations]
    if not ops or not all(isinstance(op, Activation) and op.piecewise_linear for op in ops):
        return None
    region = question.ball.at(question.x.to(graph.dtype))
    with plain_products(graph.device):
        parts = over_batches(
            lambda here: _count(graph, region[here]),
            len(question),
            question.batch,
            question.threads,
            lambda done, total: stage("counting units", done, total),
        )
    return torch.cat(parts)


@torch.no_grad()
def _count(graph: Graph, region: Region) -> Tensor:
    """Return the counts of one batch, `[batch, 3]`."""
    (run,) = passes(graph, region, "crown", "parallel")
    run.prepare(graph.output)
    total = torch.zeros(len(region.x), 3, dtype=torch.long, device=region.x.device)
    for index in graph.activations:
        op = graph.nodes[index].op
        assert isinstance(op, Activation)
        assert op.pieces is not None
        lower, upper = (end.flatten(1) for end in run.interval(graph.nodes[index].inputs[0]))
        bends = [at for at, _ in op.pieces.bends]
        unstable = torch.stack([(lower < at) & (upper > at) for at in bends]).any(0)
        active = ~unstable & (lower >= bends[0])
        inactive = ~unstable & ~active
        total += torch.stack([kind.sum(1) for kind in (unstable, active, inactive)], 1)
    return total


def search(question: EvaluationQuestion, radius: Tensor, stage: Stage) -> Columns:
    """Return the largest proved radius of each searched sample, and the evaluations of each strategy; NaN for others.

    The searches leave out rounding errors, as the paper's do. One more evaluation, at the radius found, covers them.
    The result is never below `radius`, which is proved at eps.
    """
    names = ("largest", *(f"evaluations_{name}" for name in SEARCHES))
    found = {name: torch.full((len(question),), torch.nan, dtype=torch.float64) for name in names}
    chosen = question.searched.nonzero().squeeze(1)
    if len(chosen) == 0:
        return found
    x, y = question.x[chosen], question.y[chosen]
    root, envelope = _searched(question, x, y, stage)
    sure = certify(
        question.network,
        x,
        y,
        question.ball.with_eps(root.radius),
        rigorous=question.settings.rigorous,
        batch_size=question.batch,
        threads=question.threads,
        progress=lambda done, total: stage("proving the radii", done, total),
    )
    halvings = bisections(question.settings.upper, question.settings.tolerance) * (root.evaluations > 0)
    values = (torch.maximum(sure.radius.cpu(), radius[chosen]), halvings, envelope.evaluations, root.evaluations)
    for name, value in zip(names, values, strict=True):
        found[name][chosen] = value.double().cpu()
    return found


def bisections(upper: float, tolerance: float) -> int:
    """Return how often [0, upper] is halved until it is no wider than the tolerance.

    This is the cost of bisection for every sample.

    Examples:
        >>> bisections(0.4, 1e-4)
        12
    """
    return max(math.ceil(math.log2(upper / tolerance)), 0)


def _searched(question: EvaluationQuestion, x: Tensor, y: Tensor, stage: Stage) -> list[Radii]:
    """Return the radii that the strategies `root` and `envelope` find."""
    ball, settings = question.ball.with_eps(question.settings.upper), question.settings
    search = RadiusSearch(
        Certifier(question.network, "crown", "parallel", rigorous=False), ball.at(x), settings.upper, settings.tolerance
    )
    return search.run(
        y,
        ["root", "envelope"],
        question.batch,
        question.threads,
        lambda done, total: stage("searching the largest radii", done, total),
    )


def describe_attacks(steps: int, restarts: int, seed: int) -> str:
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
