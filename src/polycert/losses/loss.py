"""What all losses share: one way to be called, attacked inputs; and cross-entropy on clean and on attacked inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polycert.attacks.pgd import over, pgd_attack
from polycert.bounding.methods import get_method, get_relaxations
from polycert.certification.envelope import classes_of
from polycert.errors import PolycertError
from polycert.graph import Graph, Network
from polycert.graph.inputs import as_inputs, as_labels
from polycert.losses.random_draws import Draws, TorchDraws
from polycert.sets.ball import Ball, Region
from polycert.sets.geometry import power_norm

ATTACK_STEP = 0.2  # of eps, in training; ten of them cross the ball


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
        if draws is not None:  # the trainer's, whose samples are checked once
            return self.value(net.trainable(), ball.at(x), y, draws)
        graph, inputs, labels = _checked(net, x, y)
        return self.value(graph, ball.at(inputs), labels, TorchDraws())

    @abstractmethod
    def value(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """The objective on a graph whose tensors are live."""


def _checked(net: Network, x: Tensor, y: Tensor) -> tuple[Graph, Tensor, Tensor]:
    """The live graph, inputs of its type and labels, or a clear error."""
    if not isinstance(net, Network):
        raise PolycertError("a loss takes a captured network: capture the module once, net = pc.capture(module, shape)")
    network, given = as_inputs(net, x)
    inputs, graph = given.to(network.dtype), network.trainable()
    require(y is not None, "labels are needed", y)
    return graph, inputs, as_labels(y, inputs.new_empty(len(inputs)), classes_of(graph))


def require(holds: bool, rule: str, got: object) -> None:
    """Refuse a hyper-parameter."""
    if not holds:
        raise PolycertError(f"{rule}, got {got}")


def check_subsample(count: int | None) -> None:
    """B' is a count of samples, or None for all."""
    require(count is None or count >= 1, "subsample must be at least 1, or None for the whole batch", count)


def check_relaxation(name: str, method: str) -> None:
    """A loss is about one enclosure of the activations, by a method that there is."""
    get_method(method)
    require(len(get_relaxations(name, method)) == 1, "a loss needs one relaxation, parallel or adaptive", name)


def clean(graph: Graph, x: Tensor, y: Tensor, draws: Draws) -> Tensor:
    """Mean cross-entropy over the batch."""
    return draws.choose(x, None, "all").mean(F.cross_entropy(graph.forward(x), y, reduction="none"))


def check_attack(steps: int, step: float) -> None:
    """An attack takes a step at least, and every step goes somewhere."""
    require(steps >= 1, "attack_steps must be at least 1", steps)
    require(step > 0, "attack_step must be above 0", step)


def attacked(graph: Graph, region: Region, y: Tensor, draws: Draws, steps: int, step: float = ATTACK_STEP) -> Tensor:
    """The attack of training: a random start in the set, then steps of `step` eps. Only inputs get gradients.

    It descends the margin, where Madry et al. 2018 ascend the cross-entropy: the same direction between two classes,
    and no loss of it where the network is sure.
    """
    spread = draws.uniform(region.x, "attack") * 2 - 1
    if region.norm < float("inf"):  # a random direction, and a random share of eps along it
        length = power_norm(spread.flatten(1).abs(), region.norm).clamp(min=1e-30)
        share = draws.uniform(spread.flatten(1)[:, :1], "attack length").squeeze(1) / length
        spread = spread * over(share, spread)
    start = region.project(region.x + spread * over(region.radius, region.x))
    return pgd_attack(graph, region, y, start, steps=steps, step=step, fixed=True)


def worst_case(margins: Tensor) -> Tensor:
    """Cross-entropy of the logits 0 for the label and `-margin` for each other class: `[batch]`.

    With lower bounds of the margins over a set this bounds the cross-entropy of every point of the set from above.
    """
    zero = torch.zeros_like(margins[:, :1])
    return torch.cat([zero, -margins], 1).logsumexp(1)


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
