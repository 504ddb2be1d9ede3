"""What every linear form can do, and the form that each can turn into: all coefficients written out.

Products of rows with values are taken sample by sample, with gradients that torch's own would give transposed
and slowly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from polycert.runtime.execution import apply

if TYPE_CHECKING:
    from polycert.forms.identity import Differences, Identity, Selected
    from polycert.forms.patches import Windowed

Shape = tuple[int, ...]


class Pullable(Protocol):
    """What a form needs to know of an affine op with one input."""

    @property
    def in_shape(self) -> Shape:
        """Shape of the op's input, without the batch."""
        ...

    def adjoint(self, rows: Tensor) -> Tensor:
        """Map `[n, *out_shape]` to `[n, *in_shape]` by the transposed linear part."""
        ...

    def pull_identity(self, form: Identity) -> Form:
        """The linear part's own rows."""
        ...

    def pull_selected(self, form: Selected) -> Form:
        """Some of the linear part's own rows."""
        ...

    def pull_windowed(self, form: Windowed) -> Form:
        """Windows through the op."""
        ...

    def pull_differences(self, form: Differences) -> Form:
        """Differences of outputs through the op."""
        ...


class Form(ABC):
    """Rows of coefficients over a node's value `[batch, *shape]`."""

    shape: Shape

    @property
    @abstractmethod
    def length(self) -> int:
        """How many terms a row's sum has at most (for rounding-error terms)."""

    @property
    def exact(self) -> bool:
        """Whether pulling it through an affine op is free of rounding."""
        return False

    @abstractmethod
    def coefficients(self) -> Tensor:
        """All coefficients, the terms of a row last: `[batch or 1, ..., terms]`."""

    @abstractmethod
    def align(self, values: Tensor) -> Tensor:
        """Arrange `values` `[batch, *shape]` beside `coefficients()`; nothing (0) beyond an image's border."""

    @abstractmethod
    def collect(self, sums: Tensor) -> Tensor:
        """Bring the result of a reduction over the terms to `[batch, rows]`."""

    @abstractmethod
    def dot(self, values: Tensor) -> Tensor:
        """Every row applied to `values` `[batch or 1, *shape]`: `[batch, rows]`."""

    @abstractmethod
    def abs_dot(self, values: Tensor) -> Tensor:
        """The rows' absolute values applied to `values`: `[batch, rows]`."""

    def dots(self, values: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """`dot(values)` and `abs_dot(sizes)`, both `[batch, *shape]` or both `[1, *shape]`."""
        return self.dot(values), self.abs_dot(sizes)

    def relaxed(self, slope: Tensor, values: Tensor, sizes: Tensor) -> tuple[Form, Tensor, Tensor]:
        """`scale(slope)`, `dot(values)` and `abs_dot(sizes)`: what rows meet at an activation with one slope."""
        return self.scale(slope), *self.dots(values, sizes)

    @abstractmethod
    def scale(self, factor: Tensor) -> Form:
        """Every coefficient times `factor` `[batch or 1, *shape]`."""

    @abstractmethod
    def split_scale(self, positive: Tensor, negative: Tensor) -> Form:
        """Positive coefficients times one factor, negative ones times another."""

    @abstractmethod
    def pull(self, op: Pullable) -> Form:
        """The same functions, seen from the input of the affine op that made this node (without its bias)."""

    @abstractmethod
    def dense(self) -> Dense:
        """The same form with every coefficient written out."""

    def view(self, shape: Shape) -> Form:
        """The same coefficients over a reshaped value."""
        return self.dense().view(shape)

    def negative(self) -> Form:
        """The form times -1."""
        return self.dense().negative()

    def plus(self, other: Form) -> Form:
        """The sum of two forms over the same node."""
        return self.dense().plus(other)

    def windows_like(self, other: Windowed) -> Windowed | None:
        """This form in windows at the same points as `other`, where that is possible."""
        return None

    def at(self, index: Tensor) -> Dense | None:
        """Only the coefficients at some entries `[batch, count]` of each sample, where that is cheap."""
        return None

    def inside(self) -> Form:
        """The same without coefficients that meet no value (beyond an image's border), for norms of rows."""
        return self

    def with_coefficients(self, coef: Tensor) -> Form:
        """The same structure with other coefficients, given as `coefficients()` gives them."""
        return self.dense().with_coefficients(coef)


class FlatForm(Form):
    """A form whose coefficients lie beside the node's entries in order, once written out."""

    def coefficients(self) -> Tensor:
        """All coefficients, `[batch or 1, rows, entries]`."""
        return self.dense().coefficients()

    def scale(self, factor: Tensor) -> Form:
        """Every coefficient times `factor` `[batch or 1, *shape]`."""
        return self.dense().scale(factor)

    def split_scale(self, positive: Tensor, negative: Tensor) -> Form:
        """Positive coefficients times one factor, negative ones times another."""
        return self.dense().split_scale(positive, negative)

    def pull(self, op: Pullable) -> Form:
        """The same functions of the input of the affine op `op`, without its bias."""
        return self.dense().pull(op)

    def align(self, values: Tensor) -> Tensor:
        """`[batch, 1, entries]`."""
        return values.flatten(1).unsqueeze(1)

    def collect(self, sums: Tensor) -> Tensor:
        """Already `[batch, rows]`."""
        return sums


def rows_dot(coef: Tensor, values: Tensor) -> Tensor:
    """`[batch or 1, rows, n] . [batch or 1, n]` without copying what is shared."""
    if coef.shape[0] == 1:
        return F.linear(values, coef.squeeze(0))  # `coef[0]` would have a gradient full of zeros
    if values.shape[0] == 1:
        return coef @ values.squeeze(0)
    found: Tensor = apply(_RowsDot, coef, values, False)
    return found


def rows_abs_dot(coef: Tensor, values: Tensor) -> Tensor:
    """As `rows_dot` with absolute coefficients."""
    if coef.shape[0] == 1 or values.shape[0] == 1:
        return rows_dot(coef.abs(), values)
    found: Tensor = apply(_RowsDot, coef, values, True)
    return found


class _RowsDot(torch.autograd.Function):
    """Products per sample, of the coefficients or of their absolute values, which backward computes anew."""

    @staticmethod
    def forward(ctx: Any, coef: Tensor, values: Tensor, absolute: bool) -> Tensor:
        ctx.save_for_backward(coef, values)
        ctx.absolute = absolute
        # The vector on the left: ten times faster than on the right.
        return (values.unsqueeze(1) @ (coef.abs() if absolute else coef).transpose(1, 2)).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        coef, values = ctx.saved_tensors
        by_coef = by_values = None
        if ctx.needs_input_grad[0]:
            by_coef = gradient.unsqueeze(2) * values.unsqueeze(1)
            by_coef = by_coef.mul_(coef.sgn()) if ctx.absolute else by_coef
        if ctx.needs_input_grad[1]:
            by_values = (gradient.unsqueeze(1) @ (coef.abs() if ctx.absolute else coef)).squeeze(1)
        return by_coef, by_values, None


CACHED = 2**20  # numbers


@dataclass(frozen=True)
class Dense(FlatForm):
    """`coef`: `[batch or 1, rows, *shape]`; a leading 1 is shared by all samples."""

    coef: Tensor

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        """Shape of the node, without the batch."""
        return tuple(self.coef.shape[2:])

    @property
    def length(self) -> int:
        """Entries of the node."""
        return math.prod(self.shape)

    def coefficients(self) -> Tensor:
        """`[batch or 1, rows, entries]`."""
        return self.coef.flatten(2)

    def dot(self, values: Tensor) -> Tensor:
        """One product for all samples where the coefficients are shared."""
        return rows_dot(self.coefficients(), values.flatten(1))

    def abs_dot(self, values: Tensor) -> Tensor:
        """As `dot` with absolute coefficients, a few samples' at a time: a copy of them all would leave the cache."""
        coef, flat = self.coefficients(), values.flatten(1)
        few = max(1, CACHED // max(1, math.prod(coef.shape[1:])))
        if coef.shape[0] <= few:
            return rows_abs_dot(coef, flat)
        beside = flat.expand(coef.shape[0], -1).split(few)
        return torch.cat([rows_abs_dot(part, v) for part, v in zip(coef.split(few), beside, strict=True)])

    def scale(self, factor: Tensor) -> Form:
        """Elementwise; put off where the coefficients are shared and the factor is not."""
        if self.coef.shape[0] == 1 and factor.shape[0] > 1:
            return Scaled(self.coef, factor)
        return Dense(self.coef * factor.unsqueeze(1))

    def with_coefficients(self, coef: Tensor) -> Dense:
        """Shaped as the node."""
        return Dense(coef.unflatten(2, self.shape))

    def at(self, index: Tensor) -> Dense | None:
        """Looked up; shared coefficients would be copied for each sample."""
        if self.coef.shape[0] != index.shape[0]:
            return None
        return Dense(self.coefficients().gather(2, index.unsqueeze(1).expand(-1, self.coef.shape[1], -1)))

    def split_scale(self, positive: Tensor, negative: Tensor) -> Dense:
        """Elementwise, by the sign of each coefficient."""
        return Dense(split_by_sign(self.coef, positive.unsqueeze(1), negative.unsqueeze(1)))

    def pull(self, op: Pullable) -> Dense:
        """All rows of all samples as one batch for the op's adjoint."""
        return Dense(op.adjoint(self.coef.flatten(0, 1)).unflatten(0, self.coef.shape[:2]))

    def dense(self) -> Dense:
        """Itself."""
        return self

    def view(self, shape: Shape) -> Dense:
        """Reshape the node's axes."""
        return Dense(self.coef.reshape(*self.coef.shape[:2], *shape))

    def negative(self) -> Dense:
        """Elementwise."""
        return Dense(-self.coef)

    def plus(self, other: Form) -> Dense:
        """Elementwise."""
        return Dense(self.coef + other.dense().coef)


def split_by_sign(coef: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Positive coefficients times one factor, negative ones times another."""
    return torch.where(coef >= 0, positive, negative) * coef


@dataclass(frozen=True)
class Scaled(FlatForm):
    """Rows shared by all samples times one factor per sample and entry, multiplied out only where needed."""

    coef: Tensor  # [1, rows, *shape]
    factor: Tensor  # [batch, *shape]

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        """Shape of the node, without the batch."""
        return tuple(self.coef.shape[2:])

    @property
    def length(self) -> int:
        """Entries of the node, and one product for the factor."""
        return math.prod(self.shape) + 1

    def dot(self, values: Tensor) -> Tensor:
        """The factor goes to the values: one product for all samples."""
        return rows_dot(self.coef.flatten(2), (self.factor * values).flatten(1))

    def abs_dot(self, values: Tensor) -> Tensor:
        """As `dot` with absolute coefficients."""
        return rows_abs_dot(self.coef.flatten(2), (self.factor.abs() * values).flatten(1))

    def scale(self, factor: Tensor) -> Scaled:
        """Factors multiply."""
        return Scaled(self.coef, self.factor * factor)

    def dense(self) -> Dense:
        """Multiplied out."""
        return Dense(self.coef * self.factor.unsqueeze(1))

    def view(self, shape: Shape) -> Scaled:
        """Reshape both."""
        return Scaled(self.coef.reshape(1, -1, *shape), self.factor.reshape(-1, *shape))
