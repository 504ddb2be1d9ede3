"""What an op must know: its value, its interval, and how linear forms pass through it backward and forward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from polycert.forms import Differences, Form, Identity, Selected, Shape, Windowed
from polycert.sets.interval import Interval, Rounding


@cache
def _has_cached_properties(kind: type) -> bool:
    """Whether objects of a class keep what they have computed."""
    return any(isinstance(value, cached_property) for base in kind.__mro__ for value in vars(base).values())


class OnnxFile(Protocol):
    """An ONNX file under construction. Both functions return the name of what they append."""

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append one ONNX op."""

    def store(self, values: Tensor | list[int]) -> str:
        """Append a constant."""


class Op(ABC):
    """One operation of a graph; `out_shape` is without the batch."""

    out_shape: Shape
    onnx: ClassVar[str] = ""  # the ONNX op that computes the same without constants; others override `write`

    @abstractmethod
    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the value, `[batch, *out_shape]`."""

    @abstractmethod
    def interval(self, *inputs: Interval, rounding: Rounding | None = None) -> Interval:
        """Return bounds of the value from bounds of the inputs."""

    @abstractmethod
    def magnitude(self, *inputs: Tensor) -> Tensor:
        """Return an upper bound of the value's size from upper bounds of the inputs' sizes, up to rounding."""

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """Append ONNX ops that compute this op from the values of these names. Return the result's name."""
        if not self.onnx:
            raise ValueError(f"no way to write {type(self).__name__} as ONNX")
        return file.op(self.onnx, *inputs)

    def fresh(self) -> Op:
        """Return the same op without cached properties, because the weights that they are derived from may change.

        If there are any, it is a new object that no other graph holds. Otherwise a graph that needs gradients could
        find what another one has derived without them.
        """
        own: Any = self
        return replace(own) if _has_cached_properties(type(self)) else self


class Linear(Op):
    """An op that is affine in all its inputs together."""

    @abstractmethod
    def pull(self, form: Form) -> Sequence[Form | None]:
        """Return a form over the output as forms over the inputs, without the bias.

        It is None for an input whose coefficients are all 0, which is read for its bounds alone.
        """

    @abstractmethod
    def push(self, *columns: Tensor) -> Tensor:
        """Apply the linear part to `[n, *shape]` of each input."""

    @abstractmethod
    def widen(self, *radii: Tensor) -> Tensor:
        """Apply the linear part with absolute coefficients: how far the output moves if the inputs move this far."""

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
        """Return the rounding error of `pull` per unit of |coefficient|, weighed by the inputs' sizes.

        It is None if `pull` rounds nothing.
        """


class Affine(Linear):
    """An affine op with one input. Subclasses give the linear part, its adjoint and its absolute value."""

    in_shape: Shape
    stored_weights: bool = True  # its coefficients are stored numbers, not results of arithmetic

    @property
    @abstractmethod
    def terms(self) -> tuple[int, int]:
        """The most terms in a sum of the linear part, and of its adjoint; 1 if it only multiplies, 0 if exact."""

    @abstractmethod
    def adjoint(self, rows: Tensor) -> Tensor:
        """Apply the transposed linear part: `[n, *out_shape]` to `[n, *in_shape]`."""

    @abstractmethod
    def absolute(self, values: Tensor) -> Tensor:
        """Apply the linear part with absolute coefficients: `[n, *in_shape]` to `[n, *out_shape]`."""

    @property
    def forward_terms(self) -> int:
        """See `terms`."""
        return self.terms[0]

    @property
    def backward_terms(self) -> int:
        """See `terms`."""
        return self.terms[1]

    def widen(self, *radii: Tensor) -> Tensor:
        """Return `absolute` of the radii."""
        return self.absolute(radii[0])

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the linear part plus the bias."""
        value = self.push(inputs[0])
        return value if self.bias is None else value + self.bias

    def interval(self, *inputs: Interval, rounding: Rounding | None = None) -> Interval:
        """Return the interval `W c + b -+ |W| r` from the input's centre c and radius r."""
        (given,) = inputs
        centre, radius = given.middle(rounding is not None)
        middle, spread = self.forward(centre), self.absolute(radius)
        if rounding is not None:
            spread = spread + 3 * rounding.gamma(self.terms[0]) * self.magnitude(given.magnitude) + rounding.tiny
        return Interval(middle - spread, middle + spread)

    def magnitude(self, *inputs: Tensor) -> Tensor:
        """Return `|W| m + |b|`."""
        value = self.absolute(inputs[0])
        return value if self.bias_magnitude is None else value + self.bias_magnitude

    def pull(self, form: Form) -> list[Form]:
        """Let the form choose the rule that fits its structure."""
        return [form.pull(self)]

    def pull_error(self, form: Form, magnitudes: Sequence[Tensor], rounding: Rounding) -> Tensor | None:
        """Return `gamma |W| m`: the adjoint's sums are wrong by `gamma |a| |W|` at most."""
        if self.terms[1] == 0 or (form.exact and self.stored_weights):
            return None
        return rounding.gamma(self.terms[1]) * self.absolute(magnitudes[0])

    def pull_identity(self, form: Identity) -> Form:
        """Write the form out; ops that can do better override this."""
        return form.dense().pull(self)

    def pull_selected(self, form: Selected) -> Form:
        """Write the form out; ops that can do better override this."""
        return form.dense().pull(self)

    def pull_windowed(self, form: Windowed) -> Form:
        """Write the form out; ops that can do better override this."""
        return form.dense().pull(self)

    def pull_differences(self, form: Differences) -> Form:
        """Write the form out; ops that can do better override this."""
        return form.dense().pull(self)


class DecompositionStep(NamedTuple):
    """One op and the places of its inputs. The call's own inputs are counted first, then the steps before."""

    op: Op
    inputs: tuple[int, ...]


class Decomposition:
    """A call as several ops in order. The last one is the result, or `several` are for a call that gives a tuple."""

    def __init__(self, *in_shapes: Shape) -> None:
        self.shapes: list[Shape] = list(in_shapes)
        self.steps: list[DecompositionStep] = []
        self.several: tuple[int, ...] | None = None

    def add(self, op: Op, *inputs: int) -> int:
        """Append an op. Return the place of its result."""
        self.steps.append(DecompositionStep(op, inputs))
        self.shapes.append(op.out_shape)
        return len(self.shapes) - 1

    def follow(self, other: Decomposition, *inputs: int) -> int:
        """Append all steps of another decomposition, applied to these places. Return the place of its result."""
        places = list(inputs)
        for op, sources in other.steps:
            places.append(self.add(op, *(places[i] for i in sources)))
        return places[-1]
