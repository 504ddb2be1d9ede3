"""What the example networks of the ops are made of. Nothing here runs unless an example is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from polycert.forms import Shape


@dataclass(frozen=True)
class Example:
    """A tiny classifier that contains an op: its name, the shape of a sample, and how it is made."""

    name: str
    shape: Shape
    make: Callable[[], nn.Module]
    slow: bool = False  # a variant of another example: only the slow tests run all invariants over it
    target: str = ""  # the op that it calls by its own name

    def __str__(self) -> str:
        return self.name


class Fn(nn.Module):
    """A module with layers `a`, `b`, … whose forward is a function of the module and x."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, layer in zip("abcdef", layers, strict=False):
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        """Return the function's value."""
        return self.function(self, x)


class FunctionLayer(nn.Module):
    """A function without weights as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Return the function's value."""
        return self.function(x)


def mlp(activation: nn.Module) -> nn.Module:
    """Return two hidden layers with an activation."""
    return nn.Sequential(nn.Linear(5, 6), activation, nn.Linear(6, 5), activation, nn.Linear(5, 3))


def op_named(target: str) -> Callable[..., Any]:
    """Return the op of a name such as `aten.relu.default`."""
    space, name, overload = target.split(".")
    found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, space), name), overload)
    return found


def short(target: str) -> str:
    """Return `relu` for `aten.relu.default`, and `mul.Scalar` for `aten.mul.Scalar`."""
    return target.partition(".")[2].removesuffix(".default")


def activated(target: str, *args: Any, name: str = "", slow: bool = False) -> Example:
    """Return a network of two hidden layers whose activation is an op, called by its own name."""

    def make() -> nn.Module:
        return mlp(FunctionLayer(lambda z: op_named(target)(z, *args)))

    return Example(name or short(target), (5,), make, slow, target)


def through(name: str, shape: Shape, function: Callable[[Tensor], Any], slow: bool = False) -> Example:
    """Return a network with a function, or the first of its results, between two linear layers."""

    def hidden(layer: nn.Module, x: Tensor) -> Tensor:
        made = function(layer(x))
        flat: Tensor = (made[0] if isinstance(made, (list, tuple)) else made).flatten(1)
        return flat

    def make() -> nn.Module:
        first = nn.Linear(shape[-1], shape[-1])
        size = hidden(first, torch.zeros(2, *shape)).shape[1]
        return Fn(lambda m, x: m.b(hidden(m.a, x)), first, nn.Linear(size, 3))

    return Example(name, shape, make, slow)


def calls(target: str, *args: Any, shape: Shape = (5,)) -> Example:
    """Return a network with an op, called by its own name, between two linear layers."""
    return replace(through(short(target), shape, lambda z: op_named(target)(z, *args), slow=True), target=target)


def classified(shape: Shape, *layers: nn.Module, classes: int = 3) -> nn.Module:
    """Return the layers with a linear one behind them."""
    body = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        size = body.eval()(torch.zeros(1, *shape)).numel()
    return nn.Sequential(*body.train(), nn.Linear(size, classes))


def conv(shape: Shape, *args: Any, classes: int = 3, **options: Any) -> nn.Module:
    """Return a convolution, ReLU and a linear layer, for inputs of the given shape."""
    return classified(shape, nn.Conv2d(shape[0], *args, **options), nn.ReLU(), classes=classes)


def pooled(shape: Shape, layer: nn.Module) -> nn.Module:
    """Return a convolution, ReLU, a layer and a linear layer."""
    return classified(shape, nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), layer)


def with_statistics(norm: Any) -> nn.Module:
    """Return a batch norm with random statistics and weights: nothing is at its default."""
    with torch.no_grad():
        norm.running_mean.copy_(torch.randn_like(norm.running_mean) * 0.3)
        norm.running_var.copy_(torch.rand_like(norm.running_var) + 0.3)
        norm.weight.copy_(torch.randn_like(norm.weight))
        norm.bias.copy_(torch.randn_like(norm.bias) * 0.3)
    found: nn.Module = norm
    return found
