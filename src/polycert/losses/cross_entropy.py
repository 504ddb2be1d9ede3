"""Cross-entropy on clean and on attacked inputs."""

from __future__ import annotations

from torch import Tensor

from polycert.graph import Graph
from polycert.losses.loss import ATTACK_STEP, Loss, attacked, check_attack, clean
from polycert.losses.random_draws import Draws
from polycert.sets.ball import Region


class Plain(Loss):
    """Cross-entropy on the clean inputs; the ball is not looked at."""

    def value(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """`CE(x)`."""
        return clean(graph, region.x, y, draws)


class AT(Loss):
    """Adversarial training: half clean, half attacked cross-entropy.

    Args:
        attack_steps: steps of projected gradient descent from a random start.
        attack_step: the size of one, in units of eps.
    """

    def __init__(self, *, attack_steps: int = 10, attack_step: float = ATTACK_STEP) -> None:
        super().__init__()
        check_attack(attack_steps, attack_step)
        self.attack_steps, self.attack_step = attack_steps, attack_step

    def value(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """`(CE(x) + CE(x')) / 2`."""
        points = attacked(graph, region, y, draws, self.attack_steps, self.attack_step)
        return (clean(graph, region.x, y, draws) + clean(graph, points, y, draws)) / 2
