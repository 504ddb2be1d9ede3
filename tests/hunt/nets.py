"""The networks that are hunted: the cases of all rules, combinations, and chains. Weights come later."""
# ruff: noqa: E501 (one line per network, however long)

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polycert as pc
from polycert.rules.examples import Fn, FunctionLayer, with_statistics
from tests.helpers.cases import CASES, Case, fresh
from tests.hunt.numbers import TYPES, tensor
from tests.hunt.oracle import Oracle


def chain(sizes: tuple[int, ...], function: Callable[[Tensor], Tensor]) -> nn.Module:
    """Linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for k in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[k], sizes[k + 1]), FunctionLayer(function)]
    return nn.Sequential(*layers[:-1])


LINEAR = [Case(f"linear-{n}", (n,), lambda n=n: nn.Linear(n, 2)) for n in (1, 2, 3, 5, 8, 20, 60)]
MORE = [
    *LINEAR,
    *(Case(f"chain-{'-'.join(map(str, sizes))}", (sizes[0],), lambda sizes=sizes: chain(sizes, F.relu))
      for sizes in ((1, 2), (1, 1, 2), (2, 3, 2), (3, 4, 4, 3), (2, 2, 2, 2, 2), (4, 6, 2))),
    Case("chain-leaky", (2,), lambda: chain((2, 3, 3, 2), lambda z: F.leaky_relu(z, 0.01))),
    Case("stacked", (1,), lambda: nn.Sequential(nn.Linear(1, 8), nn.Linear(8, 1), nn.ReLU(), nn.Linear(1, 2))),
    Case("stacked-plain", (2,), lambda: nn.Sequential(nn.Linear(2, 8, bias=False), nn.Linear(8, 2))),
    Case("norm-stacked", (2,), lambda: nn.Sequential(with_statistics(nn.BatchNorm1d(2)), nn.Linear(2, 2))),
    Case("constants-tiny", (2,), lambda: Fn(lambda m, x: m.b(m.a(x) * 1e-46 * 1e38 / 1e40 * 1e39), nn.Linear(2, 2), nn.Linear(2, 2))),
    Case("constants-added", (2,), lambda: Fn(lambda m, x: m.b((m.a(x).relu() + 1e-46) * 1e38 - F.pad(x, (0, 1), value=1e-46)[:, 1:] * 1e38), nn.Linear(2, 2), nn.Linear(2, 2))),
    Case("chain-tanh", (2,), lambda: chain((2, 3, 2), torch.tanh)),
    Case("chain-sigmoid", (1,), lambda: chain((1, 2, 2), torch.sigmoid)),
    Case("softmax-last", (3,), lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.Softmax(1))),
    Case("divided", (3,), lambda: Fn(lambda m, x: m.b((m.a(x) / m.c.weight[0]).relu()), nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 1))),
]  # fmt: skip


# Layers without an activation between them, and numbers that are computed from others: where underflow can hide.
THIN = (
    "stacked",
    "stacked-plain",
    "norm-stacked",
    "constants-tiny",
    "constants-added",
    "scalars",
    "divided",
    "pad-value",
)
NETS = {case.name: case for case in (*CASES, *MORE)}


@dataclass(frozen=True)
class Net:
    """One traced module; its tensors are overwritten for every case."""

    module: nn.Module
    network: pc.Network
    oracle: Oracle

    def load(self, weights: dict[str, list[str]]) -> None:
        """Put numbers into all parameters and buffers."""
        own = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        with torch.no_grad():
            for name, values in weights.items():
                own[name].copy_(tensor(values).reshape(own[name].shape))

    @property
    def double(self) -> nn.Module:
        """A copy in float64, for directions of descent."""
        return copy.deepcopy(self.module).double()


@cache
def shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Of the floating-point tensors of a network."""
    module = fresh(NETS[name])
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {key: tuple(value.shape) for key, value in named.items() if value.is_floating_point()}


@cache
def traced(name: str, dtype: str) -> Net:
    """A network of the list in a type, traced once by polycert and once for the oracle."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = NETS[name]
        module = fresh(case, TYPES[dtype])
        return Net(module, pc.capture(module, case.shape), Oracle(module, case.shape))
