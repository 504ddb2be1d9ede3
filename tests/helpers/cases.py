"""The registry that the invariants run over: one line per op, method, norm. A new one needs one line here."""
# ruff: noqa: E501 (one line per case, however long)

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polycert as pc
from polycert.bounding.methods import passes
from polycert.sets.interval import Interval


@dataclass(frozen=True)
class Case:
    """A tiny classifier that exercises one op."""

    name: str
    shape: tuple[int, ...]
    make: Callable[[], nn.Module]

    @property
    def slow(self) -> bool:
        """Whether it runs with the slow tests: a variant of a case that does not."""
        return self.name in SLOW

    def __str__(self) -> str:
        return self.name

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode()) % 10_000


class Fn(nn.Module):
    """Layers as attributes `a`, `b`, ... and a forward given as a function of them and x."""

    def __init__(self, forward: Callable[[Fn, Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, layer in zip("abcdef", layers, strict=False):
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Normalise(nn.Module):
    """`(x - mean) / std` with buffers per channel."""

    def __init__(self, channels: int, rank: int) -> None:
        super().__init__()
        shape = (1, channels, *(1,) * (rank - 1))
        self.register_buffer("mean", torch.rand(shape))
        self.register_buffer("std", torch.rand(shape) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class Elementwise(nn.Module):
    """A function without weights as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def seen(norm: nn.Module) -> nn.Module:
    """A batch norm with a history: nothing is at its default."""
    with torch.no_grad():
        norm.running_mean.copy_(torch.randn_like(norm.running_mean) * 0.3)
        norm.running_var.copy_(torch.rand_like(norm.running_var) + 0.3)
        norm.weight.copy_(torch.randn_like(norm.weight))
        norm.bias.copy_(torch.randn_like(norm.bias) * 0.3)
    return norm


def mlp(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), activation, nn.Linear(6, 5), activation, nn.Linear(5, 3))


def conv(shape: tuple[int, int, int], *args: int, classes: int = 3, **options: object) -> nn.Module:
    """Convolution, ReLU, linear, for inputs of the given shape."""
    layer = nn.Conv2d(shape[0], *args, **options)
    size = layer(torch.zeros(1, *shape)).numel()
    return nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.Linear(size, classes))


def pooled(layer: nn.Module, size: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), layer, nn.Flatten(), nn.Linear(size, 3))


def block(skip: nn.Module, stride: int, size: int) -> nn.Module:
    """A residual convolution block: relu(conv(relu(conv x)) + skip x), with a stem before it."""
    return Fn(
        lambda m, x: m.e((m.c(m.b(m.a(x).relu()).relu()) + m.d(m.a(x).relu())).relu().flatten(1)),
        nn.Conv2d(1, 2, 3, padding=1),
        nn.Conv2d(2, 2, 3, stride=stride, padding=1),
        nn.Conv2d(2, 2, 3, padding=1),
        skip,
        nn.Linear(size, 3),
    )


CASES = [
    Case("linear", (6,), lambda: nn.Linear(6, 4)),
    Case("linear-no-bias", (6,), lambda: nn.Sequential(nn.Linear(6, 4, bias=False), nn.ReLU(), nn.Linear(4, 2))),
    Case("linear-last-axis", (3, 4), lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(9, 3))),
    Case("matmul", (5,), lambda: Fn(lambda m, x: m.a((x @ m.b.weight).relu()), nn.Linear(4, 3), nn.Linear(4, 5))),
    Case("relu", (5,), lambda: mlp(nn.ReLU())),
    Case("leaky-0.1", (5,), lambda: mlp(nn.LeakyReLU(0.1))),
    Case("leaky--0.3", (5,), lambda: mlp(nn.LeakyReLU(-0.3))),
    Case("leaky-1.7", (5,), lambda: mlp(nn.LeakyReLU(1.7))),
    Case("sigmoid", (5,), lambda: mlp(nn.Sigmoid())),
    Case("tanh", (5,), lambda: mlp(nn.Tanh())),
    Case("arctan", (5,), lambda: mlp(Elementwise(torch.arctan))),
    Case("erf", (5,), lambda: mlp(Elementwise(torch.erf))),
    Case("activation-last", (4,), lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh())),
    Case("activation-first", (4,), lambda: nn.Sequential(Elementwise(F.relu), nn.Linear(4, 2))),
    Case("conv-plain", (2, 4, 4), lambda: conv((2, 4, 4), 3, 3)),
    Case("conv-padding", (1, 5, 5), lambda: conv((1, 5, 5), 2, 3, padding=1)),
    Case("conv-same", (1, 4, 5), lambda: conv((1, 4, 5), 2, (3, 1), padding="same")),
    Case("conv-stride", (1, 6, 7), lambda: conv((1, 6, 7), 3, 3, stride=2)),
    Case("conv-left-over", (1, 7, 6), lambda: conv((1, 7, 6), 3, 2, stride=3, padding=(1, 0))),
    Case("conv-uneven", (1, 6, 5), lambda: conv((1, 6, 5), 2, (2, 3), stride=(2, 1), padding=(0, 2))),
    Case("conv-dilation", (1, 6, 6), lambda: conv((1, 6, 6), 2, 2, dilation=3, padding=1)),
    Case("conv-groups", (4, 3, 4), lambda: conv((4, 3, 4), 6, 2, groups=2, classes=5)),
    Case("conv-depthwise", (3, 4, 4), lambda: conv((3, 4, 4), 3, 3, groups=3, stride=2, padding=1, bias=False)),
    Case("conv-stack", (1, 6, 6), lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, stride=2), nn.ReLU(), conv((2, 3, 3), 3, 2))),
    Case("residual-add", (5,), lambda: Fn(lambda m, x: m.c(x + m.b(m.a(x).relu())), nn.Linear(5, 4), nn.Linear(4, 5), nn.Linear(5, 3))),
    Case("residual-sub", (5,), lambda: Fn(lambda m, x: m.c(m.b(m.a(x).tanh()) - x), nn.Linear(5, 4), nn.Linear(4, 5), nn.Linear(5, 3))),
    Case("three-branches", (4,), lambda: Fn(lambda m, x: m.d((m.a(x) + m.b(x) + m.c(x)).relu()), *(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, 3))),
    Case("twice", (4,), lambda: Fn(lambda m, x: m.b((m.a(x) + m.a(x)).relu() - m.a(x).relu()), nn.Linear(4, 4), nn.Linear(4, 3))),
    Case("block-identity", (1, 5, 5), lambda: block(nn.Identity(), 1, 50)),
    Case("block-strided", (1, 5, 5), lambda: block(nn.Conv2d(2, 2, 1, stride=2), 2, 18)),
    Case("normalise", (2, 3, 3), lambda: nn.Sequential(Normalise(2, 3), conv((2, 3, 3), 2, 2, padding=1))),
    Case("scalars", (5,), lambda: Fn(lambda m, x: m.b((3 * (m.a(1 - 2 * x) - 0.4) / 0.7 + 0.1).relu()), nn.Linear(5, 4), nn.Linear(4, 3))),
    Case("negative", (4,), lambda: Fn(lambda m, x: m.b(-(m.a(-x).relu())), nn.Linear(4, 4), nn.Linear(4, 2))),
    Case("batch-norm-1d", (5,), lambda: nn.Sequential(nn.Linear(5, 4), seen(nn.BatchNorm1d(4)), nn.ReLU(), nn.Linear(4, 3))),
    Case("batch-norm-2d", (2, 4, 4), lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), seen(nn.BatchNorm2d(3)), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))),
    Case("batch-norm-first", (2, 3, 3), lambda: nn.Sequential(seen(nn.BatchNorm2d(2)), conv((2, 3, 3), 2, 2))),
    Case("avg-pool", (1, 5, 5), lambda: pooled(nn.AvgPool2d(2), 8)),
    Case("avg-pool-padding", (1, 5, 5), lambda: pooled(nn.AvgPool2d(3, stride=2, padding=1), 18)),
    Case("adaptive-avg-pool", (1, 4, 6), lambda: pooled(nn.AdaptiveAvgPool2d((2, 3)), 12)),
    Case("max-pool", (1, 4, 4), lambda: pooled(nn.MaxPool2d(2), 8)),
    Case("max-pool-overlap", (1, 5, 5), lambda: pooled(nn.MaxPool2d(3, stride=2, padding=1), 18)),
    Case("max-pool-1d", (2, 6), lambda: nn.Sequential(nn.MaxPool1d(3, stride=2), nn.Flatten(), nn.Linear(4, 3))),
    Case("conv-1d", (2, 6), lambda: nn.Sequential(nn.Conv1d(2, 3, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(9, 3))),
    Case("transposed", (2, 3, 3), lambda: nn.Sequential(nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1, output_padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))),
    Case("transposed-groups", (2, 2, 3), lambda: nn.Sequential(nn.ConvTranspose2d(2, 4, 2, groups=2, dilation=2, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(80, 3))),
    Case("transposed-1d", (2, 3), lambda: nn.Sequential(nn.ConvTranspose1d(2, 2, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(14, 3))),
    Case("clamp", (5,), lambda: mlp(Elementwise(lambda z: z.clamp(-0.2, 0.4)))),
    Case("relu6-like", (5,), lambda: mlp(nn.Hardtanh(0.0, 0.5))),
    Case("abs", (5,), lambda: mlp(Elementwise(torch.abs))),
    Case("gelu", (5,), lambda: mlp(nn.GELU())),
    Case("gelu-tanh", (5,), lambda: mlp(nn.GELU("tanh"))),
    Case("silu", (5,), lambda: mlp(nn.SiLU())),
    Case("softplus", (5,), lambda: mlp(nn.Softplus())),
    Case("elu", (5,), lambda: mlp(nn.ELU())),
    Case("exp", (5,), lambda: mlp(Elementwise(torch.exp))),
    Case("square", (5,), lambda: mlp(Elementwise(torch.square))),
    Case("maximum", (5,), lambda: Fn(lambda m, x: m.c(torch.maximum(m.a(x), m.b(x)) - torch.minimum(m.a(x), m.b(x).relu())), nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(4, 3))),
    Case("product", (5,), lambda: Fn(lambda m, x: m.c(m.a(x) * m.b(x).tanh()), nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(4, 3))),
    Case("concat", (5,), lambda: Fn(lambda m, x: m.b(torch.cat([x, m.a(x).relu()], 1)), nn.Linear(5, 4), nn.Linear(9, 3))),
    Case("concat-channels", (1, 4, 4), lambda: Fn(lambda m, x: m.c(torch.cat([m.a(x).relu(), m.b(x)], 1).relu().flatten(1)), nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(1, 1, 1), nn.Linear(48, 3))),
    Case("stack", (4,), lambda: Fn(lambda m, x: m.b(torch.stack([x, m.a(x).relu()], 2).flatten(1)), nn.Linear(4, 4), nn.Linear(8, 3))),
    Case("slice", (3, 6), lambda: Fn(lambda m, x: m.a((x[:, 1:, ::2] - x[:, 0, 1:4].unsqueeze(1)).relu().flatten(1)), nn.Linear(6, 3))),
    Case("split", (6,), lambda: Fn(lambda m, x: m.b(m.a(x).chunk(2, 1)[0].relu() - m.a(x).split([3, 3], 1)[1]), nn.Linear(6, 6), nn.Linear(3, 3))),
    Case("pad", (1, 3, 3), lambda: Fn(lambda m, x: m.a(F.pad(F.pad(x, (1, 0, 2, 1)).relu(), (0, -1), value=0.3).flatten(1)), nn.Linear(18, 3))),
    Case("pad-value", (5,), lambda: Fn(lambda m, x: m.a(F.pad(x, (1, 2), value=0.7).relu()), nn.Linear(8, 3))),
    Case("flip", (2, 3), lambda: Fn(lambda m, x: m.a((x.flip(2) - x).relu().flatten(1)), nn.Linear(6, 3))),
    Case("mean", (2, 3, 4), lambda: Fn(lambda m, x: m.b(m.a(x).relu().mean((2, 3))), nn.Conv2d(2, 3, 2), nn.Linear(3, 3))),
    Case("sum", (2, 4), lambda: Fn(lambda m, x: m.b(m.a(x).relu().sum(1, keepdim=True).squeeze(1) + x.sum(1)), nn.Linear(4, 4), nn.Linear(4, 3))),
    Case("broadcast", (3, 1), lambda: Fn(lambda m, x: m.b((m.a(x) + x * m.c.weight).relu().flatten(1)), nn.Linear(1, 4), nn.Linear(12, 3), nn.Linear(4, 3))),
    Case("softmax-inside", (4,), lambda: Fn(lambda m, x: m.b(m.a(x).softmax(1)), nn.Linear(4, 4), nn.Linear(4, 3))),
    Case("attention", (3, 4), lambda: Fn(lambda m, x: m.c(((m.a(x) @ m.b(x).transpose(1, 2)).softmax(2) @ x).flatten(1)), nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(12, 3))),
    Case("rnn", (3, 2), lambda: Fn(lambda m, x: m.b(m.a(x)[0][:, -1]), nn.RNN(2, 3, num_layers=2, batch_first=True), nn.Linear(3, 3))),
    Case("rnn-relu", (3, 2), lambda: Fn(lambda m, x: m.b(m.a(x)[0][:, -1]), nn.RNN(2, 3, nonlinearity="relu", bias=False, batch_first=True), nn.Linear(3, 3))),
    Case("gru", (3, 2), lambda: Fn(lambda m, x: m.b(m.a(x)[0][:, -1]), nn.GRU(2, 3, batch_first=True), nn.Linear(3, 3))),
    Case("lstm", (2, 2), lambda: Fn(lambda m, x: m.b(m.a(x)[0].flatten(1)), nn.LSTM(2, 2, batch_first=True), nn.Linear(4, 3))),
    Case("lstm-cell", (2, 2), lambda: Fn(lambda m, x: m.b(m.a(x[:, 1], m.a(x[:, 0]))[0]), nn.LSTMCell(2, 3), nn.Linear(3, 3))),
    Case("gru-cell", (2, 2), lambda: Fn(lambda m, x: m.b(m.a(x[:, 1], m.a(x[:, 0]))), nn.GRUCell(2, 3), nn.Linear(3, 3))),
    Case("reshape", (2, 6), lambda: Fn(lambda m, x: m.b(m.a(x.reshape(-1, 3, 2, 2)).relu().flatten(1)), nn.Conv2d(3, 2, 2, padding=1), nn.Linear(18, 3))),
    Case("permute", (2, 3, 4), lambda: Fn(lambda m, x: m.b(m.a(x.permute(0, 2, 3, 1)).relu().transpose(1, 2).flatten(1)), nn.Linear(2, 2), nn.Linear(24, 3))),
    Case("permute-conv", (4, 4, 2), lambda: Fn(lambda m, x: m.b(m.a(x.permute(0, 3, 1, 2)).relu().permute(0, 2, 3, 1).flatten(1)), nn.Conv2d(2, 2, 2), nn.Linear(18, 3))),
    Case("dropout", (5,), lambda: nn.Sequential(nn.Dropout(0.4), nn.Linear(5, 4), nn.ReLU(), nn.Dropout(0.4), nn.Linear(4, 3))),
]  # fmt: skip

# Variants of the cases above and long compositions of them.
SLOW = {
    *("max-pool-overlap", "max-pool-1d", "conv-1d", "transposed-groups", "transposed-1d", "relu6-like", "abs"),
    *("gelu-tanh", "silu", "elu", "exp", "square", "maximum", "concat-channels", "stack", "pad", "flip", "sum"),
    *("broadcast", "softmax-inside", "attention", "rnn", "rnn-relu", "gru", "lstm-cell", "gru-cell"),
}

CONVOLUTIONS = [case for case in CASES if case.name.startswith(("conv", "block", "avg", "adaptive", "batch-norm-2d"))]

METHODS = ["ibp", "forward", "crown", "crown-ibp", "alpha-crown"]
RELAXATIONS = ["parallel", "adaptive", "best"]
NORMS = [1, 1.5, 2, 3, math.inf]
EPS = {1: 0.6, 1.5: 0.4, 2: 0.3, 3: 0.2, math.inf: 0.08}
BOXES = [(None, None), (0.0, 1.0)]
DTYPES = [torch.float32, torch.float64]

# What makes sense together: ibp has no slopes to choose, forward needs one slope; alpha-crown starts from any.
PAIRS = [
    (method, relaxation)
    for method in METHODS
    for relaxation in RELAXATIONS
    if relaxation == "parallel" or "crown" in method
]


class Ready(NamedTuple):
    """A captured case. Shared between tests: read only."""

    module: nn.Module
    net: pc.Network
    x: Tensor
    ball: Callable[..., pc.Ball]


def fresh(case: Case, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The case's module with its own seed, in evaluation mode; the global generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        return case.make().to(dtype).eval()


def inputs(case: Case, dtype: torch.dtype, count: int = 3) -> Tensor:
    """Samples in the box [0, 1], some entries on its border."""
    generator = torch.Generator().manual_seed(case.seed + 1)
    spread = torch.rand(count, *case.shape, generator=generator) * 1.4 - 0.2
    return spread.clamp(0, 1).to(dtype)


@cache
def ready(case: Case, dtype: torch.dtype = torch.float64) -> Ready:
    module = fresh(case, dtype)
    return Ready(module, pc.capture(module, case.shape), inputs(case, dtype), ball)


def in_double(module: nn.Module) -> nn.Module:
    """The same weights, evaluated in float64."""
    return copy.deepcopy(module).double()


def ball(norm: float, boxed: bool = True, **options: object) -> pc.Ball:
    """The registry's radius for a norm, with the unit box or without."""
    low, high = BOXES[int(boxed)]
    return pc.Ball(**{"norm": norm, "eps": EPS[norm], "low": low, "high": high, **options})


def hidden(net: pc.Network, x: Tensor, set_: pc.Ball, index: int, method: str = "crown") -> Interval:
    """The bounds that a method finds for one node on its way."""
    with torch.no_grad():
        return passes(net.bind(), set_.at(x), method, "parallel")[0].interval(index)


def first_hidden(net: pc.Network) -> int:
    """The input of the first activation, or the output if there is none."""
    graph = net.bind()
    return graph.nodes[graph.activations[0]].inputs[0] if graph.activations else graph.output
