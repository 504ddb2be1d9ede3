"""The networks that the invariants run over: the examples that rules declare, and combinations of ops."""
# ruff: noqa: E501 (one line per case, however long)

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polycert as pc
from polycert.bounding.methods import passes
from polycert.rules import Example
from polycert.rules.examples import Fn, FunctionLayer, conv
from polycert.rules.registry import rules
from polycert.sets.interval import Interval

Case = Example


class Normalise(nn.Module):
    """`(x - mean) / std` with buffers per channel."""

    def __init__(self, channels: int, rank: int) -> None:
        super().__init__()
        shape = (1, channels, *(1,) * (rank - 1))
        self.register_buffer("mean", torch.rand(shape))
        self.register_buffer("std", torch.rand(shape) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


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


COMBINATIONS = [
    Case("activation-last", (4,), lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh())),
    Case("activation-first", (4,), lambda: nn.Sequential(FunctionLayer(F.relu), nn.Linear(4, 2))),
    Case("conv-stack", (1, 6, 6), lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, stride=2), nn.ReLU(), conv((2, 3, 3), 3, 2))),
    Case("residual-add", (5,), lambda: Fn(lambda m, x: m.c(x + m.b(m.a(x).relu())), nn.Linear(5, 4), nn.Linear(4, 5), nn.Linear(5, 3))),
    Case("residual-sub", (5,), lambda: Fn(lambda m, x: m.c(m.b(m.a(x).tanh()) - x), nn.Linear(5, 4), nn.Linear(4, 5), nn.Linear(5, 3))),
    Case("three-branches", (4,), lambda: Fn(lambda m, x: m.d((m.a(x) + m.b(x) + m.c(x)).relu()), *(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, 3))),
    Case("twice", (4,), lambda: Fn(lambda m, x: m.b((m.a(x) + m.a(x)).relu() - m.a(x).relu()), nn.Linear(4, 4), nn.Linear(4, 3))),
    Case("block-identity", (1, 5, 5), lambda: block(nn.Identity(), 1, 50)),
    Case("block-strided", (1, 5, 5), lambda: block(nn.Conv2d(2, 2, 1, stride=2), 2, 18)),
    Case("normalise", (2, 3, 3), lambda: nn.Sequential(Normalise(2, 3), conv((2, 3, 3), 2, 2, padding=1))),
    Case("scalars", (5,), lambda: Fn(lambda m, x: m.b((3 * (m.a(1 - 2 * x) - 0.4) / 0.7 + 0.1).relu()), nn.Linear(5, 4), nn.Linear(4, 3))),
    Case("maximum", (5,), lambda: Fn(lambda m, x: m.c(torch.maximum(m.a(x), m.b(x)) - torch.minimum(m.a(x), m.b(x).relu())), nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(4, 3))),
    Case("product", (5,), lambda: Fn(lambda m, x: m.c(m.a(x) * m.b(x).tanh()), nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(4, 3))),
    Case("concat-channels", (1, 4, 4), lambda: Fn(lambda m, x: m.c(torch.cat([m.a(x).relu(), m.b(x)], 1).relu().flatten(1)), nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(1, 1, 1), nn.Linear(48, 3))),
    Case("broadcast", (3, 1), lambda: Fn(lambda m, x: m.b((m.a(x) + x * m.c.weight).relu().flatten(1)), nn.Linear(1, 4), nn.Linear(12, 3), nn.Linear(4, 3))),
    Case("attention", (3, 4), lambda: Fn(lambda m, x: m.c(((m.a(x) @ m.b(x).transpose(1, 2)).softmax(2) @ x).flatten(1)), nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(12, 3))),
    Case("reshape-conv", (2, 6), lambda: Fn(lambda m, x: m.b(m.a(x.reshape(-1, 3, 2, 2)).relu().flatten(1)), nn.Conv2d(3, 2, 2, padding=1), nn.Linear(18, 3))),
    Case("permute-linear", (2, 3, 4), lambda: Fn(lambda m, x: m.b(m.a(x.permute(0, 2, 3, 1)).relu().transpose(1, 2).flatten(1)), nn.Linear(2, 2), nn.Linear(24, 3))),
    Case("permute-conv", (4, 4, 2), lambda: Fn(lambda m, x: m.b(m.a(x.permute(0, 3, 1, 2)).relu().permute(0, 2, 3, 1).flatten(1)), nn.Conv2d(2, 2, 2), nn.Linear(18, 3))),
]  # fmt: skip

# Only the slow tests run over these and over what the registry calls slow: variants, and long compositions.
SLOW = {
    *("max-pool-overlap", "max-pool-1d", "conv-1d", "transposed-groups", "transposed-1d", "relu6-like", "abs"),
    *("gelu-tanh", "silu", "elu", "exp", "square", "maximum", "concat-channels", "stack", "pad", "flip", "sum"),
    *("broadcast", "softmax-inside", "attention", "rnn", "rnn-relu", "gru", "lstm-cell", "gru-cell"),
}
CASES = [
    replace(case, slow=case.slow or case.name in SLOW)
    for case in (*(example for declared in rules() for example in declared.examples), *COMBINATIONS)
]

NAMED = {case.name: case for case in CASES}
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


def seed_of(case: Case) -> int:
    """A case's own."""
    return zlib.crc32(case.name.encode()) % 10_000


def fresh(case: Case, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The case's module with its own seed, in evaluation mode; the global generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(case))
        return case.make().to(dtype).eval()


def inputs(case: Case, dtype: torch.dtype, count: int = 3) -> Tensor:
    """Samples in the box [0, 1], some entries on its border."""
    generator = torch.Generator().manual_seed(seed_of(case) + 1)
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
