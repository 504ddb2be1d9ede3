"""The registry of rules: what is declared of an op, once.

Everything that reads, writes, lists or tests ops asks here: capture, the ONNX reader, architectures and recipes, error
messages, the lists in the documentation, the invariants and the hunt.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union

import torch
from torch import Tensor, nn

from polycert.forms import Shape
from polycert.rules.examples import Example, activated, short
from polycert.rules.op import Op

if TYPE_CHECKING:
    from polycert.rules.op import Decomposition


class Arguments(tuple[Any, ...]):
    """Positional arguments that remember which of them were read."""

    def __new__(cls, values: Iterable[Any], read: set[int | str]) -> Arguments:
        """Keep the values and the set that notes which positions were read."""
        made = super().__new__(cls, values)
        made.read = read
        return made

    read: set[int | str]

    def __getitem__(self, place: Any) -> Any:
        """Return one argument or several."""
        found = super().__getitem__(place)
        self.read.update(range(*place.indices(len(self))) if isinstance(place, slice) else [place % len(self)])
        return found


@dataclass(frozen=True)
class Call:
    """One call in a traced program with its tensors resolved, as the builder of a rule sees it.

    `read` notes the arguments that the builder reads. All others must be at their defaults.
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
        """Return an argument by position or name."""
        if position < len(self.args):
            return self.args[position]
        self.read.add(name)
        return self.kwargs.get(name, default)


class Value:
    """A node of the graph among a call's arguments."""

    def __init__(self, index: int) -> None:
        self.index = index


# A rule gives an op, or several (see `Decomposition` in `rules/op.py`).
Builder = Callable[[Call], Union[Op, "Decomposition"]]
AnyBuilder = TypeVar("AnyBuilder", bound=Builder)
Family = Literal[
    "affine",
    "moves",
    "piecewise linear",
    "S-shaped",
    "convex",
    "bump",
    "smooth",
    "composed",
    "maximum",
    "product",
    "recurrent",
]
ACTIVATION_FAMILIES: tuple[Family, ...] = ("piecewise linear", "S-shaped", "convex", "bump", "smooth")


@dataclass(frozen=True, eq=False)
class Rule:
    """What is declared of an op. How it is written to ONNX files is a matter of the ops it becomes (`Op.write`)."""

    targets: tuple[str, ...]  # the names that `torch.export` gives it
    build: Builder
    family: Family
    onnx: tuple[str, ...]  # the ONNX ops that are read into it
    layers: Mapping[str, type[nn.Module]]  # by their names in architectures and recipes
    by_shape: frozenset[str]  # arguments that only choose the result's shape, which the program states beside the call
    examples: tuple[Example, ...]  # networks that together contain every target


RULES: dict[str, Rule] = {}  # by target


def rule(
    *targets: str,
    family: Family,
    onnx: Iterable[str] = (),
    layers: Mapping[str, type[nn.Module]] | None = None,
    by_shape: Iterable[str] = (),
    examples: Iterable[Example] = (),
) -> Callable[[AnyBuilder], AnyBuilder]:
    """Declare an op; the decorated function builds it.

    Examples that call an op by its own name add it to the targets. An activation without examples gets one for each
    target.
    """

    def register(builder: AnyBuilder) -> AnyBuilder:
        shown = tuple(examples)
        if not shown and family in ACTIVATION_FAMILIES:
            shown = tuple(activated(target, slow=target != targets[0]) for target in targets)
        names = tuple(dict.fromkeys((*targets, *(example.target for example in shown if example.target))))
        made = Rule(names, builder, family, tuple(onnx), layers or {}, frozenset(by_shape), shown)
        RULES.update(dict.fromkeys(names, made))
        return builder

    return register


def rules() -> list[Rule]:
    """Return all rules, each once."""
    return list(dict.fromkeys(RULES.values()))


def onnx_rules() -> dict[str, Rule]:
    """Return the rules by the names of the ONNX ops that are read into them."""
    return {name: found for found in rules() for name in found.onnx}


def layers(*families: Family) -> dict[str, type[nn.Module]]:
    """Return torch's layers of some families, or of all, by their names in architectures."""
    chosen = [found for found in rules() if not families or found.family in families]
    return {name: layer for found in chosen for name, layer in found.layers.items()}


def nearest(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Return the supported names that are written like the unknown ones, or all if one of these is like none."""
    names = sorted(set(known))
    alike = [difflib.get_close_matches(one, names, n=4, cutoff=0.5) for one in unknown]
    return ", ".join(sorted({name for found in alike for name in found}) if all(alike) else names)


def nearest_targets(unknown: Iterable[str]) -> str:
    """Return the supported ops whose names are most like the unknown targets."""
    return nearest((_plain(target) for target in unknown), map(_plain, RULES))


def _plain(target: str) -> str:
    return short(target).split(".")[0].strip("_")


@contextmanager
def scratch() -> Iterator[None]:
    """Forget at the end what was declared inside, for trying rules out."""
    before = dict(RULES)
    try:
        yield
    finally:
        RULES.clear()
        RULES.update(before)


def constant_rows(value: Tensor | float, shape: Shape, like: Tensor) -> Tensor:
    """Return a constant operand broadcast to `[1, *shape]`."""
    tensor = value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=like.dtype, device=like.device)
    if not tensor.is_floating_point():
        tensor = tensor.to(like)
    if tensor.dim() > len(shape) + 1 or (tensor.dim() == len(shape) + 1 and tensor.shape[0] != 1):
        raise ValueError(f"a constant of shape {tuple(tensor.shape)} does not fit samples of shape {shape}")
    if tensor.dim() <= len(shape):
        tensor = tensor.expand(shape).unsqueeze(0)
    return tensor.expand(1, *shape)
