"""What an op must know: its value, its interval, and how linear forms pass through it backward and forward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Union

import torch
from torch import Tensor

from polycert.forms import Differences, Form, Identity, Selected, Shape, Windowed
from polycert.sets.interval import Interval
from polycert.sets.rounding import Rounding

if TYPE_CHECKING:
    from polycert.rules.decomposition import Decomposition


@cache
def _remembers(kind: type) -> bool:
    """Whether objects of a class keep what they have computed."""
    return any(isinstance(value, cached_property) for base in kind.__mro__ for value in vars(base).values())


class Op(ABC):
    """One operation of a graph; `out_shape` is without the batch."""

    out_shape: Shape

    @abstractmethod
    def forward(self, *inputs: Tensor) -> Tensor:
        """The value, `[batch, *out_shape]`."""

    @abstractmethod
    def interval(self, *inputs: Interval, rounding: Rounding | None = None) -> Interval:
        """Bounds of the value from bounds of the inputs."""

    @abstractmethod
    def magnitude(self, *inputs: Tensor) -> Tensor:
        """An upper bound of the value's size from upper bounds of the inputs' sizes, up to rounding."""

    def fresh(self) -> Op:
        """The same op without cached properties, if it has such: the weights that they are derived from may change.

        Never one that another graph holds: what is derived without gradients would be found by those who need them.
        """
        own: Any = self
        return replace(own) if _remembers(type(self)) else self


class Linear(Op):
    """An op that is affine in all its inputs together."""

    @abstractmethod
    def pull(self, form: Form) -> list[Form]:
        """A form over the output as forms over the inputs, without the bias."""

    @abstractmethod
    def push(self, *columns: Tensor) -> Tensor:
        """The linear part applied to `[n, *shape]` of each input."""

    @abstractmethod
    def widen(self, *radii: Tensor) -> Tensor:
        """The linear part with absolute coefficients: how far the output moves if the inputs move this far."""

    @property
    @abstractmethod
    def forward_terms(self) -> int:
        """The most terms in a sum of the linear part."""

    @property
    @abstractmethod
    def backward_terms(self) -> int:
        """The most terms in a sum of its adjoint."""

    @property
    @abstractmethod
    def bias(self) -> Tensor | None:
        """The constant part `[1, *out_shape]`, if any."""

    @property
    def bias_magnitude(self) -> Tensor | None:
        """Size of the bias and of what it was computed from."""
        return None if self.bias is None else self.bias.abs()

    @abstractmethod
    def pull_error(self, form: Form, magnitudes: Sequence[Tensor], rounding: Rounding) -> Tensor | None:
        """Per unit of |coefficient|, the rounding error of `pull` weighed by the inputs' sizes; None if exact."""


class Affine(Linear):
    """An affine op with one input; subclasses give the linear part, its adjoint and its absolute value."""

    in_shape: Shape
    stored_weights: bool = True  # its coefficients are stored numbers, not results of arithmetic

    @property
    @abstractmethod
    def terms(self) -> tuple[int, int]:
        """The most terms in a sum of the linear part, and of its adjoint; 1 if it only multiplies, 0 if exact."""

    @abstractmethod
    def adjoint(self, rows: Tensor) -> Tensor:
        """`[n, *out_shape]` to `[n, *in_shape]` by the transposed linear part."""

    @abstractmethod
    def absolute(self, values: Tensor) -> Tensor:
        """The linear part with absolute coefficients, `[n, *in_shape]` to `[n, *out_shape]`."""

    @property
    def forward_terms(self) -> int:
        """See `terms`."""
        return self.terms[0]

    @property
    def backward_terms(self) -> int:
        """See `terms`."""
        return self.terms[1]

    def widen(self, *radii: Tensor) -> Tensor:
        """See `absolute`."""
        return self.absolute(radii[0])

    def forward(self, *inputs: Tensor) -> Tensor:
        """The linear part plus the bias."""
        value = self.push(inputs[0])
        return value if self.bias is None else value + self.bias

    def interval(self, *inputs: Interval, rounding: Rounding | None = None) -> Interval:
        """Centre and radius: `W c + b -+ |W| r`."""
        (given,) = inputs
        centre, radius = given.middle(rounding is not None)
        middle, spread = self.forward(centre), self.absolute(radius)
        if rounding is not None:
            spread = spread + 3 * rounding.gamma(self.terms[0]) * self.magnitude(given.magnitude) + rounding.tiny
        return Interval(middle - spread, middle + spread)

    def magnitude(self, *inputs: Tensor) -> Tensor:
        """`|W| m + |b|`."""
        value = self.absolute(inputs[0])
        return value if self.bias_magnitude is None else value + self.bias_magnitude

    def pull(self, form: Form) -> list[Form]:
        """By whatever structure the form and the op share."""
        return [form.pull(self)]

    def pull_error(self, form: Form, magnitudes: Sequence[Tensor], rounding: Rounding) -> Tensor | None:
        """`gamma |W| m`: the adjoint's sums are wrong by `gamma |a| |W|` at most."""
        if self.terms[1] == 0 or (form.exact and self.stored_weights):
            return None
        return rounding.gamma(self.terms[1]) * self.absolute(magnitudes[0])

    def pull_identity(self, form: Identity) -> Form:
        """Written out unless the op knows better."""
        return form.dense().pull(self)

    def pull_selected(self, form: Selected) -> Form:
        """Written out unless the op knows better."""
        return form.dense().pull(self)

    def pull_windowed(self, form: Windowed) -> Form:
        """Written out unless the op knows better."""
        return form.dense().pull(self)

    def pull_differences(self, form: Differences) -> Form:
        """Written out unless the op knows better."""
        return form.dense().pull(self)


class Lines(NamedTuple):
    """`lower_slope z + lower_offset - error <= f(z) <= upper_slope z + upper_offset + error` on the unit's interval.

    `error` covers rounding and the library's functions; None without rigour.
    """

    lower_slope: Tensor
    lower_offset: Tensor
    upper_slope: Tensor
    upper_offset: Tensor
    error: Tensor | None = None

    @property
    def shared(self) -> bool:
        """Whether both lines have one slope (the paper's relaxation)."""
        return self.lower_slope is self.upper_slope

    def part(self, samples: Tensor) -> Lines:
        """The same for some of the samples; a shared slope stays shared."""
        lower_slope, lower_offset, upper_offset = (
            t[samples] for t in (self.lower_slope, self.lower_offset, self.upper_offset)
        )
        upper_slope = lower_slope if self.shared else self.upper_slope[samples]
        error = None if self.error is None else self.error[samples]
        return Lines(lower_slope, lower_offset, upper_slope, upper_offset, error)

    @property
    def middle(self) -> Tensor:
        """Halfway between the lines at 0."""
        return (self.upper_offset + self.lower_offset) / 2

    @property
    def half_gap(self) -> Tensor:
        """Half their distance at 0; exactly 0 where a piecewise linear unit is straight."""
        return (self.upper_offset - self.lower_offset) / 2

    def reach(self, given: Interval, rounding: Rounding | None) -> Interval:
        """All values between the two lines on the interval."""
        low = torch.minimum(self.lower_slope * given.lower, self.lower_slope * given.upper) + self.lower_offset
        high = torch.maximum(self.upper_slope * given.lower, self.upper_slope * given.upper) + self.upper_offset
        if rounding is None:
            return Interval(low, high)
        slope = torch.maximum(self.lower_slope.abs(), self.upper_slope.abs())
        offset = torch.maximum(self.lower_offset.abs(), self.upper_offset.abs())
        error = 2 * rounding.gamma(2) * (slope * given.magnitude + offset) + rounding.tiny
        error = error if self.error is None else error + self.error
        return Interval(low - error, high + error)


class Pieces(NamedTuple):
    """A piecewise linear function of one variable: the slopes of its pieces, and where one ends."""

    value: float  # at 0, of the line of the first piece
    slopes: tuple[float, ...]
    ends: tuple[float, ...]  # one fewer

    @property
    def slope(self) -> float:
        """Left of all bends."""
        return self.slopes[0]

    @property
    def bends(self) -> tuple[tuple[float, float], ...]:
        """`(at, change)` of each: the function is `value + slope z + sum change max(z - at, 0)`, up to rounding."""
        return tuple((at, b - a) for at, (a, b) in zip(self.ends, pairwise(self.slopes), strict=True))


class Activation(Op):
    """A function applied to each entry. Relaxations choose slopes; `extent` makes any slope sound."""

    out_shape: Shape

    @property
    def pieces(self) -> Pieces | None:
        """The function's linear pieces, if it is made of such; the exact certifier branches on them."""
        return None

    @property
    def piecewise_linear(self) -> bool:
        """Whether it is made of linear pieces."""
        return self.pieces is not None

    @abstractmethod
    def chord(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Slope of the line through both ends of the interval; finite gradients when they meet."""

    @abstractmethod
    def adaptive(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """CROWN's slopes of the lower and the upper line."""

    @abstractmethod
    def offset_range(self, slope: Tensor, lower: Tensor, upper: Tensor) -> Interval:
        """Smallest and largest value of `f(z) - slope z` on the interval."""

    def parallel(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Interval]:
        """The chord's slope, and the extent for it."""
        slope = self.chord(lower, upper)
        return slope, self.offset_range(slope, lower, upper)

    @abstractmethod
    def peak(self, lower: Tensor, upper: Tensor) -> Tensor:
        """An upper bound of |f| on the interval."""

    def sizes(self, slope: Tensor, given: Interval) -> Tensor:
        """The sizes of the numbers that `extent` adds up: what its rounding is relative to.

        A slope that is a number of the model's code may be too small for the type.
        """
        return self.peak(given.lower, given.upper) + (slope.abs() + torch.finfo(slope.dtype).tiny) * given.magnitude

    def stable(self, given: Interval) -> Tensor | None:
        """Where the function is straight on the interval, so that a tighter interval changes nothing; None: nowhere."""
        return None

    def magnitude(self, *inputs: Tensor) -> Tensor:
        """From the symmetric interval."""
        return self.peak(-inputs[0], inputs[0])


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
