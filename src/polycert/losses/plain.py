"""Cross-entropy on clean and on attacked inputs."""

from __future__ import annotations

from torch import Tensor

from polycert.graph import Graph
from polycert.losses.base import Loss, attacked, clean, require
from polycert.losses.draws import Draws
from polycert.sets import Region


class Plain(Loss):
    """Cross-entropy on the clean inputs; the ball is not looked at."""

    def value(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """`CE(x)`."""
        return clean(graph, region.x, y, draws)


class AT(Loss):
    """Adversarial training: half clean, half attacked cross-entropy.

    Args:
        attack_steps: steps of projected gradient descent, each of eps / 5, from a random start.
    """

    def __init__(self, *, attack_steps: int = 10) -> None:
        super().__init__()
        require(attack_steps >= 1, "attack_steps must be at least 1", attack_steps)
        self.attack_steps = attack_steps

    def value(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """`(CE(x) + CE(x')) / 2`."""
        points = attacked(graph, region, y, draws, self.attack_steps)
        return (clean(graph, region.x, y, draws) + clean(graph, points, y, draws)) / 2
