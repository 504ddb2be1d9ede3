"""Maximum margin regularisation (MMR): distances to the borders of the linear region that a sample is in."""

from __future__ import annotations

import torch
from torch import Tensor

from polycert.bounding.backward import LOWER, Pass, pull
from polycert.bounding.methods import passes
from polycert.certification.envelope import margin_rows
from polycert.errors import PolycertError
from polycert.forms import Form, Identity
from polycert.graph import Graph
from polycert.losses.loss import ATTACK_STEP, Loss, clean, require
from polycert.losses.random_draws import Draws
from polycert.rules import Activation
from polycert.sets.ball import Ball, Region
from polycert.sets.interval import Interval


class MMR(Loss):
    """Cross-entropy plus hinges on the distances to region and decision boundaries (Croce et al. 2019).

    With the activation pattern at x fixed the network is affine, so both kinds of boundary are hyperplanes. The network
    must be piecewise linear.

    Args:
        weight: lambda, the weight of the hinges.
        gamma_boundary, gamma_decision: the distances from which the hinges are 0.
        boundary_share: k_B as a share of all hidden units in (0, 1]: how many of the nearest boundaries count.
        decisions: k_D, how many of the nearest decision boundaries count.
        at: whether half of the batch, drawn at random, is attacked first.
        subsample: B', how many samples of the batch, drawn at random, get the term; None for all.
        attack_steps, attack_step: steps of the attack, and the size of one in units of eps.
    """

    def __init__(
        self,
        *,
        weight: float = 0.5,
        gamma_boundary: float = 0.2,
        gamma_decision: float = 0.2,
        boundary_share: float = 0.2,
        decisions: int = 10,
        at: bool = False,
        subsample: int | None = None,
        attack_steps: int = 10,
        attack_step: float = ATTACK_STEP,
    ) -> None:
        super().__init__(attack_steps=attack_steps, attack_step=attack_step, subsample=subsample)
        require(weight >= 0, "weight must be at least 0", weight)
        require(gamma_boundary > 0, "gamma_boundary must be above 0", gamma_boundary)
        require(gamma_decision > 0, "gamma_decision must be above 0", gamma_decision)
        require(0 < boundary_share <= 1, "boundary_share must be in (0, 1]", boundary_share)
        require(decisions >= 1, "decisions must be at least 1", decisions)
        self.weight, self.boundary_share, self.decisions = weight, boundary_share, decisions
        self.gamma_boundary, self.gamma_decision = gamma_boundary, gamma_decision
        self.at = at

    def value(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """`CE + lambda MMR`."""
        check_piecewise_linear(graph)
        points = self._points(graph, region, y, draws)
        fit = clean(graph, points, y, draws)
        part = draws.choose(points, self.subsample, "subsample")
        if not len(part.positions):  # the whole sub-sample is with other processes
            return fit
        chosen = points[part.positions]
        return fit + self.weight * part.mean(self.terms_of(graph, chosen, y[part.positions], region.norm))

    def terms_of(self, graph: Graph, x: Tensor, y: Tensor, norm: float) -> Tensor:
        """The sum of both mean hinges of each sample, `[batch]`."""
        boundary, decision = boundaries(graph, x, y, norm)
        units = max(1, round(self.boundary_share * boundary.shape[1]))
        return _hinge(boundary, units, self.gamma_boundary) + _hinge(decision, self.decisions, self.gamma_decision)

    def _points(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """The samples, half of them attacked if `at` is set."""
        if not self.at:
            return region.x
        half = draws.choose(region.x, (draws.size(region.x) + 1) // 2, "half").positions
        if not len(half):
            return region.x
        return region.x.index_copy(0, half, self.attacked(graph, region[half], y[half], draws.of(half)))


def boundaries(graph: Graph, x: Tensor, y: Tensor, norm: float) -> tuple[Tensor, Tensor]:
    """The distances `[batch, hidden units]` to the region's borders and, signed, `[batch, classes - 1]` to the classes.

    A backward pass in which the interval of every pre-activation is its value at x. There is no box.
    """
    values = graph.values(x)
    ball = Ball(norm, 1.0).at(x)
    run = passes(graph, ball, "crown", "parallel")[0]
    for index in graph.activations:
        source = graph.nodes[index].inputs[0]
        run.intervals[source] = Interval(values[source], values[source])
    hidden = []
    for index in graph.activations:
        source = graph.nodes[index].inputs[0]
        rows = Identity(graph.nodes[source].shape, run.like)
        hidden.append(values[source].flatten(1).abs() / _steepness(run, source, rows))
    form, others = margin_rows(graph, y)
    outputs = values[-1]
    margins = outputs.gather(1, y[:, None]) - outputs.gather(1, others)
    return torch.cat(hidden, 1), margins / _steepness(run, graph.output, form)


def check_piecewise_linear(graph: Graph) -> None:
    """Raise `PolycertError` unless all activations are piecewise linear, and there is at least one."""
    for index in graph.activations:
        node = graph.nodes[index]
        assert isinstance(node.op, Activation)
        if not node.op.piecewise_linear:
            raise PolycertError(
                f"MMR needs piecewise linear activations such as ReLU, but node {node.name!r} is smooth: "
                "use another loss, or another activation"
            )
    if not graph.activations:
        raise PolycertError("MMR needs a network with at least one activation: this one is linear")


def _steepness(run: Pass, index: int, rows: Form) -> Tensor:
    """The dual norms of rows as functions of the input, `[batch, rows]`: half their range over a ball of radius 1."""
    low, high = run.region.concretise(pull(run, index, rows, LOWER).forms[0])
    return ((high - low) / 2).clamp(min=1e-6)


def _hinge(distances: Tensor, count: int, enough: float) -> Tensor:
    """The mean of `max(0, 1 - d / enough)` over the `count` smallest distances of each sample, `[batch]`."""
    smallest = distances.topk(min(count, distances.shape[1]), dim=1, largest=False).values
    return (1 - smallest / enough).clamp(min=0).mean(1)
