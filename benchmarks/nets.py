"""The networks of the benchmarks: released checkpoints where they are found, else random weights of the same shape."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import polycert as pc
from polycert.models.architectures import build, cnn, fc1

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
SHARED = Path(os.environ.get("POLYCERT_SHARED", Path(__file__).parents[2] / "shared"))


@dataclass(frozen=True)
class Subject:
    """A network, inputs and the ball around them."""

    name: str
    net: pc.Network
    x: Tensor
    y: Tensor
    ball: pc.Ball
    trained: bool


class Residual(nn.Module):
    """A residual block: two convolutions with batch norm, and a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.around = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both paths, after a ReLU."""
        return (self.second(self.first(x).relu()) + self.around(x)).relu()


def resnet() -> nn.Module:
    """Return a small residual network for CIFAR-10."""
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    body = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 32, 2)]
    return nn.Sequential(*stem, *body, nn.Flatten(), nn.Linear(32 * 8 * 8, 10))


def cnn7() -> nn.Module:
    """Return a network of five convolutions with batch norm and two dense layers for CIFAR-10."""
    layers: list[nn.Module] = []
    channels = 3
    for out, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (128, 1)):
        layers += [nn.Conv2d(channels, out, 3, stride, 1), nn.BatchNorm2d(out), nn.ReLU()]
        channels = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16 * 16, 512), nn.ReLU(), nn.Linear(512, 10))


def subject(name: str, count: int) -> Subject:
    """Return a network by name, with its first `count` inputs."""
    checkpoints = {
        "FC1": ("relu_linf__mnist_fc1/mnist_fc1_l1_c-per.npz", fc1, MNIST),
        "MNIST CNN": ("relu_linf__mnist_cnn/mnist_cnn_l1_c-per.npz", cnn, MNIST),
        "CIFAR CNN": ("relu_linf__cifar10_cnn/cifar_cnn_l1_c-perat.npz", cnn, CIFAR),
    }
    torch.manual_seed(0)
    if name in checkpoints:
        file, architecture, shape = checkpoints[name]
        trained = (SHARED / "zoo" / file).is_file()
        net = pc.load(SHARED / "zoo" / file) if trained else pc.capture(build(architecture(shape)), shape)
    else:
        shape, trained = CIFAR, False
        net = pc.capture(_with_statistics({"CNN7": cnn7, "ResNet": resnet}[name]()), shape)
    x, y = _inputs(shape, count)
    return Subject(name, net, x, y, pc.Ball(eps=0.1 if shape == MNIST else 2 / 255, low=0.0, high=1.0), trained)


def _with_statistics(module: nn.Module) -> nn.Module:
    """Return the module in evaluation mode, after its batch norms have seen a few batches."""
    module.train()
    with torch.no_grad():
        for _ in range(20):
            module(torch.rand(16, *CIFAR))
    return module.eval()


def _inputs(shape: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
    """Return the first inputs and labels of the data set of a shape; random ones if there is no CIFAR-10."""
    if shape == MNIST:
        sample = pc.data.load("mnist-sample", "test")
        return sample.x[:count], sample.y[:count]
    try:
        found = pc.data.load("cifar10", "test")
    except pc.PolycertError:
        return torch.rand(count, *shape), torch.randint(10, (count,))
    return found.x[:count], found.y[:count]
