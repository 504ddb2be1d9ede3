"""Terms that `Sum` adds to any loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from polycert.bounding.methods import get_method, passes
from polycert.errors import PolycertError
from polycert.graph import Graph, Network
from polycert.losses.loss import Loss, require
from polycert.losses.random_draws import Draws
from polycert.sets.ball import Ball, Region


class Sum(nn.Module):
    """The sum of several objectives, each of which has its own weight.

    Examples:
        >>> from polycert.losses import PER
        >>> loss = Sum(PER(alpha=0.15), L1(1e-6), Stability(1e-4))
    """

    def __init__(self, *losses: nn.Module) -> None:
        super().__init__()
        if not losses:
            raise PolycertError("a sum of losses needs at least one, got none")
        self.losses = nn.ModuleList(losses)

    def forward(self, net: Network, x: Tensor, y: Tensor, ball: Ball, draws: Draws | None = None) -> Tensor:
        """The sum of the objectives, a scalar."""
        return torch.stack([loss(net, x, y, ball, draws) for loss in self.losses]).sum()


class L1(nn.Module):
    """`weight * sum |w|` over all weights, without biases. Bounds are tighter with fewer and smaller weights."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        require(weight >= 0, "weight must be at least 0", weight)
        self.weight = weight

    def forward(self, net: Network, x: Tensor, y: Tensor, ball: Ball, draws: Draws | None = None) -> Tensor:
        """The term, a scalar, over the parameters with more than one axis."""
        sizes = [parameter.abs().sum() for parameter in net.parameters() if parameter.dim() > 1]
        if not sizes:
            raise PolycertError("L1 needs a network with weights to train: capture a module that has some")
        return self.weight * sum(sizes[1:], sizes[0])


class Stability(Loss):
    """ReLU stability (Xiao et al. 2019): units whose bounds contain 0 are pushed to one side.

    The term is `weight` times the mean over samples of the sum over units of `-tanh(1 + lower * upper)`. Exact proofs
    are cheaper with fewer unstable units.

    Args:
        weight: the weight of the term.
        method: the method of the pre-activation bounds.
        subsample: B', how many samples of the batch, drawn at random, are bounded; None for all.
    """

    def __init__(self, weight: float, *, method: str = "ibp", subsample: int | None = None) -> None:
        super().__init__(subsample=subsample)
        require(weight >= 0, "weight must be at least 0", weight)
        get_method(method)
        self.weight, self.method = weight, method

    def value(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """The term, a scalar; 0 for a network without activations."""
        part = draws.choose(region.x, self.subsample, "subsample")
        if not len(part.positions) or not graph.activations:
            return 0 * graph.forward(region.x).sum()
        run = passes(graph, region[part.positions], self.method, "parallel")[0]
        total = part.positions.new_zeros(len(part.positions)).to(region.x)
        for index in graph.activations:
            lower, upper = run.interval(graph.nodes[index].inputs[0])
            total = total - (1 + lower * upper).tanh().flatten(1).sum(1)
        return self.weight * part.mean(total)
