"""What bounds prove about each sample at eps: the columns Lin, CROWN, IBP and PEC, and the counts of hidden units."""

from __future__ import annotations

import torch
from torch import Tensor

from polycert.bounding.methods import passes
from polycert.bounding.precision import plain_products
from polycert.certification.certify import certify
from polycert.evaluation.settings import EvaluationQuestion, Stage
from polycert.graph import Graph
from polycert.records.certificates import Certificates
from polycert.rules import Activation
from polycert.runtime.threads import over_batches
from polycert.sets.ball import Region

COUNTS = ("unstable", "active", "inactive")
Columns = dict[str, Tensor]


def bound(task: EvaluationQuestion, stage: Stage) -> Columns:
    """What the paper's relaxation, CROWN's, and intervals prove."""
    lin = proved(task, "crown", "parallel", stage)
    crown = proved(task, "crown", "adaptive", stage)
    ibp = proved(task, "ibp", "parallel", stage)
    found = {name: getattr(lin, name) for name in ("label", "prediction", "nearest", "margin", "radius", "certified")}
    found |= {"certified_crown": crown.certified, "certified_ibp": ibp.certified}
    counts = count_units(task, stage)
    return found if counts is None else found | dict(zip(COUNTS, counts.unbind(1), strict=True))


def proved(task: EvaluationQuestion, method: str, relaxation: str, stage: Stage) -> Certificates:
    """One method at eps."""
    return certify(
        task.network,
        task.x,
        task.y,
        task.ball,
        method=method,
        relaxation=relaxation,
        rigorous=task.settings.rigorous,
        batch_size=task.batch,
        threads=task.threads,
        progress=lambda done, total: stage(f"{method} {relaxation}", done, total),
    )


def count_units(task: EvaluationQuestion, stage: Stage) -> Tensor | None:
    """Unstable, active and inactive units of each sample by `crown`, `[n, 3]`; None unless all are piecewise linear.

    Unstable: a bend lies strictly between the unit's bounds. Active: the unit stays right of its first bend.
    """
    graph = task.network.bind()
    ops = [graph.nodes[k].op for k in graph.activations]
    if not ops or not all(isinstance(op, Activation) and op.piecewise_linear for op in ops):
        return None
    region = task.ball.at(task.x.to(graph.dtype))
    with plain_products(graph.device):
        parts = over_batches(
            lambda here: _count(graph, region[here]),
            len(task),
            task.batch,
            task.threads,
            lambda done, total: stage("counting units", done, total),
        )
    return torch.cat(parts)


@torch.no_grad()
def _count(graph: Graph, region: Region) -> Tensor:
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
