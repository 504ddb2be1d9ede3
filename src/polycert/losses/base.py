"""What all losses share: one way to be called, attacked inputs, worst-case cross-entropy."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polycert.attacks import descend
from polycert.errors import PolycertError
from polycert.geometry import power_norm
from polycert.graph import Graph, Network
from polycert.losses.draws import Draws, TorchDraws
from polycert.sets import Ball, Region

ATTACK_STEP = 0.2  # of eps, in training


class Loss(nn.Module, ABC):
    """A training objective: `loss(net, x, y, ball)` is the whole scalar to minimise.

    Args of a call:
        net: from `capture`; its parameters get the gradients.
        x, y: inputs `[batch, *input_shape]` and labels `[batch]`.
        ball: the set around each sample that the objective is about.
        draws: where random numbers come from; torch's global generator by default.
    """

    def forward(self, net: Network, x: Tensor, y: Tensor, ball: Ball, draws: Draws | None = None) -> Tensor:
        """The objective, a scalar."""
        return self.value(net.trainable(), ball.at(x), y, draws or TorchDraws())

    @abstractmethod
    def value(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """The objective on a graph whose tensors are live."""


def require(holds: bool, rule: str, got: object) -> None:
    """Refuse a hyper-parameter."""
    if not holds:
        raise PolycertError(f"{rule}, got {got}")


def check_subsample(count: int | None) -> None:
    """B' is a count of samples, or None for all."""
    require(count is None or count >= 1, "subsample must be at least 1, or None for the whole batch", count)


def clean(graph: Graph, x: Tensor, y: Tensor, draws: Draws) -> Tensor:
    """Mean cross-entropy over the batch."""
    return draws.choose(x, None, "all").mean(F.cross_entropy(graph.forward(x), y, reduction="none"))


def attacked(graph: Graph, region: Region, y: Tensor, draws: Draws, steps: int) -> Tensor:
    """The attack of training: a random start in the set, then steps of eps / 5. Only inputs get gradients."""
    spread = draws.uniform(region.x, "attack") * 2 - 1
    if region.norm < float("inf"):  # a random direction, and a random share of eps along it
        length = power_norm(spread.flatten(1).abs(), region.norm).clamp(min=1e-30)
        share = draws.uniform(spread.flatten(1)[:, :1], "attack length").squeeze(1) / length
        spread = spread * over(share, spread)
    start = region.project(region.x + spread * over(region.radius, region.x))
    return descend(graph, region, y, start, steps=steps, step=ATTACK_STEP, fixed=True)


def over(values: Tensor, like: Tensor) -> Tensor:
    """One value per sample, shaped to multiply samples."""
    return values.reshape(-1, *(1,) * (like.dim() - 1))


def worst_case(margins: Tensor) -> Tensor:
    """Cross-entropy of the logits 0 for the label and `-margin` for each other class: `[batch]`.

    With lower bounds of the margins over a set this bounds the cross-entropy of every point of the set from above.
    """
    zero = torch.zeros_like(margins[:, :1])
    return torch.cat([zero, -margins], 1).logsumexp(1)
