"""What bounds prove about each sample at eps (Lin, CROWN, IBP, PEC, unstable units), and the largest proved radius."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polycert.bounding.methods import passes
from polycert.certification.certify import Certifier, certify
from polycert.certification.radius import RadiusSearch
from polycert.evaluation.settings import EvaluationQuestion, Stage
from polycert.graph import Graph
from polycert.records.certificates import Certificates, Radii
from polycert.records.figures import COUNTS, SEARCHES
from polycert.rules import Activation
from polycert.runtime.execution import over_batches, plain_products
from polycert.sets.ball import Region

Columns = dict[str, Tensor]


def bound(question: EvaluationQuestion, stage: Stage) -> Columns:
    """Return what the paper's relaxation, CROWN's, and intervals prove at eps, and the counts of units, `[n]` each."""
    lin = proved(question, "crown", "parallel", stage)
    crown = proved(question, "crown", "adaptive", stage)
    ibp = proved(question, "ibp", "parallel", stage)
    found = {name: getattr(lin, name) for name in ("label", "prediction", "nearest", "margin", "radius", "certified")}
    found |= {"certified_crown": crown.certified, "certified_ibp": ibp.certified}
    counts = count_units(question, stage)
    return found if counts is None else found | dict(zip(COUNTS, counts.unbind(1), strict=True))


def proved(question: EvaluationQuestion, method: str, relaxation: str, stage: Stage) -> Certificates:
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
