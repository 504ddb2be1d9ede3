"""The largest radius that bounds can prove, and what three strategies of searching for it cost."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polycert.certification.certify import certify
from polycert.certification.radius import RadiusSearch
from polycert.certification.verdict import Certifier
from polycert.evaluation.certified import Columns
from polycert.evaluation.settings import EvaluationQuestion, Stage
from polycert.records.radii import Radii

STRATEGIES = ("bisection", "envelope", "root")


def search(task: EvaluationQuestion, radius: Tensor, stage: Stage) -> Columns:
    """The largest proved radius of each sample that is searched, and evaluations by strategy; NaN for the others.

    The searches themselves are fast ones, as in the paper. What they find is then proved with all rounding covered,
    in one evaluation at the radius found; `radius`, proved at eps, counts as well.
    """
    names = ("largest", *(f"evaluations_{name}" for name in STRATEGIES))
    found = {name: torch.full((len(task),), torch.nan, dtype=torch.float64) for name in names}
    chosen = task.searched.nonzero().squeeze(1)
    if len(chosen) == 0:
        return found
    x, y = task.x[chosen], task.y[chosen]
    root, envelope = _searched(task, x, y, stage)
    sure = certify(
        task.network,
        x,
        y,
        task.ball.with_eps(root.radius),
        rigorous=task.settings.rigorous,
        batch_size=task.batch,
        threads=task.threads,
        progress=lambda done, total: stage("proving the radii", done, total),
    )
    halvings = bisections(task.settings.upper, task.settings.tolerance) * (root.evaluations > 0)
    values = (torch.maximum(sure.radius.cpu(), radius[chosen]), halvings, envelope.evaluations, root.evaluations)
    for name, value in zip(names, values, strict=True):
        found[name][chosen] = value.double().cpu()
    return found


def bisections(upper: float, tolerance: float) -> int:
    """How often [0, upper] is halved until it is no wider than the tolerance: the cost of bisection, whatever it finds.

    Examples:
        >>> bisections(0.4, 1e-4)
        12
    """
    return max(math.ceil(math.log2(upper / tolerance)), 0)


def _searched(task: EvaluationQuestion, x: Tensor, y: Tensor, stage: Stage) -> list[Radii]:
    """By `root` and by `envelope`."""
    ball, settings = task.ball.with_eps(task.settings.upper), task.settings
    search = RadiusSearch(
        Certifier(task.network, "crown", "parallel", rigorous=False), ball.at(x), settings.upper, settings.tolerance
    )
    return search.run(
        y,
        ["root", "envelope"],
        task.batch,
        task.threads,
        lambda done, total: stage("searching the largest radii", done, total),
    )
