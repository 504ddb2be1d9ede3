"""The registry of rules: which op, or which decomposition, a traced call becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, Union

import torch
from torch import Tensor

from polycert.forms import Shape
from polycert.rules.op import Op

if TYPE_CHECKING:
    from polycert.rules.op import Decomposition


class Arguments(tuple[Any, ...]):
    """Positional arguments that remember which of them were looked at."""

    def __new__(cls, values: Iterable[Any], read: set[int | str]) -> Arguments:
        """The values, and where to note the positions."""
        made = super().__new__(cls, values)
        made.read = read
        return made

    read: set[int | str]

    def __getitem__(self, place: Any) -> Any:
        """One of them or several."""
        found = super().__getitem__(place)
        self.read.update(range(*place.indices(len(self))) if isinstance(place, slice) else [place % len(self)])
        return found


@dataclass(frozen=True)
class Call:
    """One call in a traced program, with its tensors resolved: what a rule's builder sees.

    It notes in `read` which arguments the builder looks at: one that is not looked at must be at its default.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    in_shapes: tuple[Shape, ...]  # of the arguments that are nodes, without the batch
    out_shape: Shape
    like: Tensor  # carries the type and device of the weights
    training: bool = False  # the module that made the call is in training mode
    read: set[int | str] = field(default_factory=set, compare=False)  # positions and names

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", Arguments(tuple(self.args), self.read))

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        if position < len(self.args):
            return self.args[position]
        self.read.add(name)
        return self.kwargs.get(name, default)


class Value:
    """Stands for a node of the graph among a call's arguments."""

    def __init__(self, index: int) -> None:
        self.index = index


# A rule gives an op, or a recipe of several (see `rules/decomposition.py`).
Builder = Callable[[Call], Union[Op, "Decomposition"]]
RULES: dict[str, Builder] = {}
AnyBuilder = TypeVar("AnyBuilder", bound=Builder)


def rule(*targets: str) -> Callable[[AnyBuilder], AnyBuilder]:
    """Register the builder of an op for the names that `torch.export` gives it."""

    def register(builder: AnyBuilder) -> AnyBuilder:
        for target in targets:
            RULES[target] = builder
        return builder

    return register


def constant_rows(value: Tensor | float, shape: Shape, like: Tensor) -> Tensor:
    """A constant operand broadcast to `[1, *shape]`."""
    tensor = value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=like.dtype, device=like.device)
    if not tensor.is_floating_point():
        tensor = tensor.to(like)
    if tensor.dim() > len(shape) + 1 or (tensor.dim() == len(shape) + 1 and tensor.shape[0] != 1):
        raise ValueError(f"a constant of shape {tuple(tensor.shape)} does not fit samples of shape {shape}")
    if tensor.dim() <= len(shape):
        tensor = tensor.expand(shape).unsqueeze(0)
    return tensor.expand(1, *shape)
