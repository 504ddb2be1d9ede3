"""Training objectives: `loss(net, x, y, ball)` is the whole scalar to minimise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polycert.attacks import descend
from polycert.envelope import Envelope, envelopes
from polycert.errors import PolycertError
from polycert.graph import Graph, Network
from polycert.methods import get_method, get_relaxations
from polycert.sets import Ball, Region


class Plain(nn.Module):
    """Cross-entropy on the clean inputs."""

    def forward(self, net: Network, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        """Mean cross-entropy; the ball is not looked at."""
        return F.cross_entropy(net.bind().forward(x), y)


class PER(nn.Module):
    """Polyhedral envelope regularisation: cross-entropy plus a hinge on the smallest signed distances (Eq. (6)).

    Args:
        method: linearisation, `crown` (C-PER) or `forward` (I-PER).
        alpha: distances of at least alpha are far enough.
        gamma: weight of the term.
        terms: T, how many of the smallest distances count.
        at: PER+at (Algorithm 2): half of the cross-entropy on attacked inputs, distances from those.
        subsample: B', the number of samples of the batch, drawn at random, on which the term is computed; None for all.
        relaxation: how activations are enclosed.
        attack_steps: steps of the attack in training, each of eps / 5.

    Example:
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
    ) -> None:
        super().__init__()
        if not get_method(method).sloped:
            raise PolycertError(f"PER needs linear bounds with a slope, which {method!r} has not: use crown or forward")
        get_relaxations(relaxation, method)
        if not alpha > 0 or not gamma >= 0 or terms < 1 or (subsample is not None and subsample < 1):
            raise PolycertError("PER needs alpha > 0, gamma >= 0, terms >= 1 and subsample >= 1 (or None)")
        self.method, self.relaxation = method, relaxation
        self.alpha, self.gamma, self.terms = alpha, gamma, terms
        self.at, self.subsample, self.attack_steps = at, subsample, attack_steps

    def forward(self, net: Network, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        """Cross-entropy (half of it on attacked points with `at`) + the mean PER term."""
        graph = net.trainable()
        region = ball.at(x)
        fit = F.cross_entropy(graph.forward(x), y)
        points = x
        if self.at:
            points = attacked(graph, region, y, self.attack_steps)
            fit = (fit + F.cross_entropy(graph.forward(points), y)) / 2
        chosen = self._choose(x)
        envelope = self.envelope(graph, region[chosen], y[chosen])
        return fit + self.regulariser(envelope, points[chosen])

    def envelope(self, graph: Graph, region: Region, y: Tensor) -> Envelope:
        """The envelope of the first relaxation, differentiable."""
        return envelopes(graph, region, y, self.method, self.relaxation, None)[0]

    def regulariser(self, envelope: Envelope, points: Tensor) -> Tensor:
        """`gamma * sum over the T smallest of max(0, 1 - d / alpha)`, averaged over the samples (Eq. (6))."""
        distances = envelope.distances_from(points)
        smallest = distances.topk(min(self.terms, distances.shape[1]), dim=1, largest=False).values
        return self.gamma * (1 - smallest / self.alpha).clamp(min=0).sum(1).mean()

    def _choose(self, x: Tensor) -> Tensor:
        count = len(x) if self.subsample is None else min(self.subsample, len(x))
        everything = torch.arange(len(x), device=x.device)
        return everything if count == len(x) else torch.randperm(len(x), device=x.device)[:count]


def attacked(graph: Graph, region: Region, y: Tensor, steps: int) -> Tensor:
    """Training attack: a random start in the set, then fixed steps of eps / 5; no parameter's gradient is touched."""
    noise = torch.rand_like(region.x) * 2 - 1
    start = region.project(region.x + noise * region.radius.reshape(-1, *(1,) * (region.x.dim() - 1)))
    return descend(graph, region, y, start, steps=steps, step=0.2, fixed=True)
