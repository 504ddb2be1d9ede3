"""The base class of losses, the attack of training, and the cross-entropy on clean and on attacked inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod

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

ATTACK_STEP = 0.2  # in units of eps: ten steps cross the ball


class Loss(nn.Module, ABC):
    """A training objective: `loss(net, x, y, ball)` is the scalar to minimise.

    Args:
        attack_steps, attack_step: steps of the attack, for losses that attack, and the size of one in units of eps.
        subsample: B', how many samples of the batch, drawn at random, are bounded; None for all.

    Args of a call:
        net: from `capture`; its parameters get the gradients.
        x, y: inputs `[batch, *input_shape]` and labels `[batch]`.
        ball: the set around each sample.
        draws: the source of random numbers; torch's global generator by default.
    """

    def __init__(
        self, *, attack_steps: int = 10, attack_step: float = ATTACK_STEP, subsample: int | None = None
    ) -> None:
        super().__init__()
        require(attack_steps >= 1, "attack_steps must be at least 1", attack_steps)
        require(attack_step > 0, "attack_step must be above 0", attack_step)
        rule = "subsample must be at least 1, or None for the whole batch"
        require(subsample is None or subsample >= 1, rule, subsample)
        self.attack_steps, self.attack_step, self.subsample = attack_steps, attack_step, subsample

    def forward(self, net: Network, x: Tensor, y: Tensor, ball: Ball, draws: Draws | None = None) -> Tensor:
        """The objective, a scalar."""
        if draws is not None:  # the trainer calls, and has checked its samples
            return self.value(net.trainable(), ball.at(x), y, draws)
        graph, inputs, labels = _checked(net, x, y)
        return self.value(graph, ball.at(inputs), labels, TorchDraws())

    @abstractmethod
    def value(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """The objective, a scalar, on a graph with live parameters."""

    def attacked(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """The points `[batch, *input_shape]` that the attack of training finds with this loss's steps."""
        return attacked(graph, region, y, draws, self.attack_steps, self.attack_step)


class Plain(Loss):
    """Cross-entropy on the clean inputs; the ball has no effect."""

    def __init__(self) -> None:
        super().__init__()

    def value(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """`CE(x)`."""
        return clean(graph, region.x, y, draws)


class AT(Loss):
    """Adversarial training: the mean of clean and attacked cross-entropy.

    Args:
        attack_steps: steps of projected gradient descent from a random start.
        attack_step: the size of one, in units of eps.
    """

    def __init__(self, *, attack_steps: int = 10, attack_step: float = ATTACK_STEP) -> None:
        super().__init__(attack_steps=attack_steps, attack_step=attack_step)

    def value(self, graph: Graph, region: Region, y: Tensor, draws: Draws) -> Tensor:
        """`(CE(x) + CE(x')) / 2`."""
        points = self.attacked(graph, region, y, draws)
        return (clean(graph, region.x, y, draws) + clean(graph, points, y, draws)) / 2


def _checked(net: Network, x: Tensor, y: Tensor) -> tuple[Graph, Tensor, Tensor]:
    """The graph with live parameters, the inputs in its type, and the labels; raises `PolycertError` otherwise."""
    if not isinstance(net, Network):
        raise PolycertError("a loss takes a captured network: capture the module once, net = pc.capture(module, shape)")
    network, given = as_inputs(net, x)
    inputs, graph = given.to(network.dtype), network.trainable()
    require(y is not None, "labels are needed", y)
    return graph, inputs, as_labels(y, inputs.new_empty(len(inputs)), classes_of(graph))


def require(holds: bool, rule: str, got: object) -> None:
    """Raise `PolycertError` with the rule for a hyper-parameter unless it holds."""
    if not holds:
        raise PolycertError(f"{rule}, got {got}")


def check_relaxation(name: str, method: str) -> None:
    """Raise `PolycertError` unless method and relaxation exist, and the relaxation is a single one."""
    get_method(method)
    require(len(get_relaxations(name, method)) == 1, "a loss needs one relaxation, parallel or adaptive", name)


def clean(graph: Graph, x: Tensor, y: Tensor, draws: Draws) -> Tensor:
    """The mean cross-entropy over the batch, of all processes."""
    return draws.choose(x, None, "all").mean(F.cross_entropy(graph.forward(x), y, reduction="none"))


def attacked(graph: Graph, region: Region, y: Tensor, draws: Draws, steps: int, step: float = ATTACK_STEP) -> Tensor:
    """The points `[batch, *input_shape]` of an attack: from a random start in the set, steps of `step` eps.

    It descends the margin, while Madry et al. 2018 ascend the cross-entropy. For two classes both have the same
    direction, but the gradient of the cross-entropy vanishes where the network is sure. Only inputs get gradients.
    """
    noise = draws.uniform(region.x, "attack") * 2 - 1
    if region.norm < float("inf"):  # a random direction, and a random distance up to eps
        length = power_norm(noise.flatten(1).abs(), region.norm).clamp(min=1e-30)
        factor = draws.uniform(noise.flatten(1)[:, :1], "attack length").squeeze(1) / length
        noise = noise * over(factor, noise)
    start = region.project(region.x + noise * over(region.radius, region.x))
    return pgd_attack(graph, region, y, start, steps=steps, step=step, fixed=True)
