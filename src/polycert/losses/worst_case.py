"""Losses on the worst case that bounds allow: KW, IBP, CROWN-IBP, and their mixtures with an adversarial loss."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from polycert.bounding.backward import LOWER, Bound, Pass, final_by_backward
from polycert.bounding.methods import final_by_interval, get_method, passes
from polycert.certification.envelope import margin_rows
from polycert.graph import Graph
from polycert.losses.loss import ATTACK_STEP, Loss, check_relaxation, clean, require
from polycert.losses.random_draws import Draws
from polycert.sets.ball import Region


class WorstCase(Loss):
    """Cross-entropy of the worst logits that lower bounds of the margins allow, on B' samples of the batch."""

    @abstractmethod
    def margins(self, graph: Graph, region: Region, y: Tensor) -> Tensor:
        """Lower bounds of the margins over the region, `[batch, classes - 1]`."""

    def worst(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """The mean worst-case cross-entropy over the sub-sample."""
        part = draws.choose(region.x, self.subsample, "subsample")
        if not len(part.positions):  # the whole sub-sample is with other processes
            return 0 * graph.forward(region.x).sum()
        at = part.positions
        return part.mean(worst_case(self.margins(graph, region[at], y[at])))


class KW(WorstCase):
    """The worst case by backward bounds with one slope (Wong and Kolter 2018; for ReLU this is Fast-Lin).

    Args:
        method, relaxation: the bound method and its relaxation.
        subsample: B', how many samples of the batch, drawn at random, are bounded; None for all.
    """

    def __init__(self, *, method: str = "crown", relaxation: str = "parallel", subsample: int | None = None) -> None:
        super().__init__(subsample=subsample)
        check_relaxation(relaxation, method)
        self.method, self.relaxation = method, relaxation

    def value(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """`CE(worst case)`."""
        return self.worst(graph, region, y, draws)

    def margins(self, graph: Graph, region: Region, y: Tensor) -> Tensor:
        """Lower bounds of the margins by the chosen method."""
        return _backward_margins(graph, region, y, self.method, self.relaxation)


class IBP(WorstCase):
    """Interval bound propagation (Gowal et al. 2018), mixed with the clean loss.

    Args:
        kappa: weight of the clean loss in [0, 1]; ramped from 1 to 1/2 or 0 over training.
        subsample: B', as in `KW`.
    """

    def __init__(self, *, kappa: float = 0.5, subsample: int | None = None) -> None:
        super().__init__(subsample=subsample)
        require(0 <= kappa <= 1, "kappa must be in [0, 1]", kappa)
        self.kappa = kappa

    def value(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """`kappa CE(x) + (1 - kappa) CE(worst case)`; a part with weight 0 is not computed."""
        if self.kappa == 0:
            return self.worst(graph, region, y, draws)
        fit = self.kappa * clean(graph, region.x, y, draws)
        return fit if self.kappa == 1 else fit + (1 - self.kappa) * self.worst(graph, region, y, draws)

    def margins(self, graph: Graph, region: Region, y: Tensor) -> Tensor:
        """Lower bounds by intervals, after fusion of the margins with the last affine layers."""
        return _interval_margins(graph, _interval_pass(graph, region), y)


class CrownIBP(IBP):
    """CROWN-IBP (Zhang et al. 2020): backward bounds with interval pre-activation bounds, mixed with IBP.

    Args:
        kappa: weight of the clean loss.
        beta: weight of the backward bounds in [0, 1]; ramped from 1 to 0 over training.
        subsample: B', as in `KW`.
    """

    def __init__(self, *, kappa: float = 0.5, beta: float = 1.0, subsample: int | None = None) -> None:
        super().__init__(kappa=kappa, subsample=subsample)
        require(0 <= beta <= 1, "beta must be in [0, 1]", beta)
        self.beta = beta

    def margins(self, graph: Graph, region: Region, y: Tensor) -> Tensor:
        """`beta lb(crown-ibp) + (1 - beta) lb(ibp)`; both use the same intervals."""
        run = _interval_pass(graph, region)
        if self.beta == 0:
            return _interval_margins(graph, run, y)
        form, _ = margin_rows(graph, y)
        backward = _lower(region, final_by_backward(run, form, LOWER))
        if self.beta == 1:
            return backward
        return self.beta * backward + (1 - self.beta) * _interval_margins(graph, run, y)


class Mixture(WorstCase):
    """A convex mixture of the adversarial loss and the worst case (in the manner of De Palma et al. 2024).

    Args:
        mix: weight of the worst case in [0, 1].
        attack_steps, attack_step: steps of the attack, and the size of one in units of eps.
        subsample: B', as in `KW`.
    """

    def __init__(
        self,
        *,
        mix: float = 0.5,
        attack_steps: int = 10,
        attack_step: float = ATTACK_STEP,
        subsample: int | None = None,
    ) -> None:
        super().__init__(attack_steps=attack_steps, attack_step=attack_step, subsample=subsample)
        require(0 <= mix <= 1, "mix must be in [0, 1]", mix)
        self.mix = mix

    def value(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """`(1 - mix) CE(x') + mix CE(worst case)`."""
        points = self.attacked(graph, region, y, draws)
        return (1 - self.mix) * clean(graph, points, y, draws) + self.mix * self.worst(graph, region, y, draws)


class MTLIBP(Mixture):
    """MTL-IBP: the mixture with the worst case of `IBP`."""

    def margins(self, graph: Graph, region: Region, y: Tensor) -> Tensor:
        """Lower bounds by intervals, as in `IBP`."""
        return _interval_margins(graph, _interval_pass(graph, region), y)


class MTLKW(Mixture):
    """MTL-KW: the mixture with the worst case of `KW`, whose bounds are tighter and cost more."""

    def margins(self, graph: Graph, region: Region, y: Tensor) -> Tensor:
        """Lower bounds by backward passes with one slope, as in `KW`."""
        return _backward_margins(graph, region, y, "crown", "parallel")


def _backward_margins(graph: Graph, region: Region, y: Tensor, method: str, relaxation: str) -> Tensor:
    run = passes(graph, region, method, relaxation)[0]
    form, _ = margin_rows(graph, y)
    return _lower(region, get_method(method).final(run, form, LOWER))


def _interval_pass(graph: Graph, region: Region) -> Pass:
    return passes(graph, region, "crown-ibp", "parallel")[0]


def _interval_margins(graph: Graph, run: Pass, y: Tensor) -> Tensor:
    form, _ = margin_rows(graph, y)
    return _lower(run.region, final_by_interval(run, form, LOWER))


def _lower(region: Region, bound: Bound) -> Tensor:
    """The least values of linear lower bounds over the region, `[batch, rows]`."""
    return region.concretise(bound.form, joint=True)[0] + bound.offset


def worst_case(margins: Tensor) -> Tensor:
    """The cross-entropy of the logits 0 for the label and `-margin` for each other class, `[batch]`.

    With lower bounds of the margins over a set, this is an upper bound of the cross-entropy in the set.
    """
    zero = torch.zeros_like(margins[:, :1])
    return torch.cat([zero, -margins], 1).logsumexp(1)
