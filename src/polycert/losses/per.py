"""Polyhedral envelope regularisation (PER), Eq. (6) and Algorithm 2."""

from __future__ import annotations

from torch import Tensor

from polycert.bounding.methods import get_method
from polycert.certification.envelope import Envelope, envelopes
from polycert.errors import PolycertError
from polycert.graph import Graph
from polycert.losses.loss import ATTACK_STEP, Loss, check_relaxation, clean, require
from polycert.losses.random_draws import Draws
from polycert.sets.ball import Region


class PER(Loss):
    """Cross-entropy plus a hinge on the smallest signed distances to the polyhedral envelope (Eq. (6)).

    Args:
        method: the bound method, `crown` (C-PER) or `forward` (I-PER).
        alpha: the distance from which the hinge is 0.
        gamma: the weight of the hinges.
        terms: T, how many of the smallest distances count.
        at: PER+at (Algorithm 2): half of the cross-entropy is on attacked points, and distances are from those.
        subsample: B', the number of samples of the batch, drawn at random, that have the term; None for all.
        relaxation: the lines around activations, `parallel` or `adaptive`.
        attack_steps, attack_step: steps of the attack in training, and the size of one in units of eps.

    Examples:
        >>> loss = PER(alpha=0.15, gamma=0.1)
    """

    def __init__(
        self,
        method: str = "crown",
        alpha: float = 0.15,
        gamma: float = 0.1,
        terms: int = 4,
        at: bool = False,
        subsample: int | None = None,
        *,
        relaxation: str = "parallel",
        attack_steps: int = 10,
        attack_step: float = ATTACK_STEP,
    ) -> None:
        super().__init__(attack_steps=attack_steps, attack_step=attack_step, subsample=subsample)
        if not get_method(method).sloped:
            raise PolycertError(f"PER needs linear bounds with a slope, which {method!r} has not: use crown or forward")
        check_relaxation(relaxation, method)
        require(alpha > 0, "alpha must be above 0", alpha)
        require(gamma >= 0, "gamma must be at least 0", gamma)
        require(terms >= 1, "terms must be at least 1", terms)
        self.method, self.relaxation = method, relaxation
        self.alpha, self.gamma, self.terms = alpha, gamma, terms
        self.at = at

    def value(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """The cross-entropy, half of it on attacked points with `at`, plus the mean PER term."""
        points = self.attacked(graph, region, y, draws) if self.at else region.x
        fit = clean(graph, region.x, y, draws)
        if self.at:
            fit = (fit + clean(graph, points, y, draws)) / 2
        part = draws.choose(region.x, self.subsample, "subsample")
        if not len(part.positions):  # the whole sub-sample is with other processes
            return fit
        envelope = self.envelope(graph, region[part.positions], y[part.positions])
        return fit + part.mean(self.terms_of(envelope, points[part.positions]))

    def envelope(self, graph: Graph, region: Region, y: Tensor) -> Envelope:
        """The envelope of each sample, differentiable in the parameters."""
        return envelopes(graph, region, y, self.method, self.relaxation, None)[0]

    def terms_of(self, envelope: Envelope, points: Tensor) -> Tensor:
        """`gamma * sum over the T smallest of max(0, 1 - d / alpha)` for each sample (Eq. (6))."""
        distances = envelope.distances_from(points)
        smallest = distances.topk(min(self.terms, distances.shape[1]), dim=1, largest=False).values
        return self.gamma * (1 - smallest / self.alpha).clamp(min=0).sum(1)
