"""The interface of linear forms, and the two forms with all coefficients: `Dense` and `Scaled`.

Products of rows with values have their own autograd function: torch's own gradients would be transposed, and slow.
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
    """An affine op with one input, as forms see it. Its bias is left out."""

    @property
    def in_shape(self) -> Shape:
        """The shape of the op's input, without the batch."""
        ...

    def adjoint(self, rows: Tensor) -> Tensor:
        """The transposed linear part, applied to `[n, *out_shape]`: `[n, *in_shape]`."""
        ...

    def pull_identity(self, form: Identity) -> Form:
        """The rows over the op's output as rows over its input: all rows of the weights."""
        ...

    def pull_selected(self, form: Selected) -> Form:
        """The same for some rows of the weights."""
        ...

    def pull_windowed(self, form: Windowed) -> Form:
        """The same for rows in windows of an image."""
        ...

    def pull_differences(self, form: Differences) -> Form:
        """The same for differences of outputs: differences of rows of the weights."""
        ...


class Form(ABC):
    """Rows of coefficients over a node's value `[batch, *shape]`."""

    shape: Shape

    @property
    @abstractmethod
    def length(self) -> int:
        """The most terms that a row's sum has; rounding-error terms need it."""

    @property
    def exact(self) -> bool:
        """Whether the coefficients stay free of rounding when the form is pulled through an affine op."""
        return False

    @abstractmethod
    def coefficients(self) -> Tensor:
        """All coefficients, with the terms of a row on the last axis: `[batch or 1, ..., terms]`."""

    @abstractmethod
    def align(self, values: Tensor) -> Tensor:
        """`values` `[batch, *shape]` arranged as `coefficients()` are; 0 beyond an image's border."""

    @abstractmethod
    def collect(self, sums: Tensor) -> Tensor:
        """The result of a reduction of `coefficients()` over the terms, rearranged to `[batch, rows]`."""

    @abstractmethod
    def dot(self, values: Tensor) -> Tensor:
        """Each row applied to `values` `[batch or 1, *shape]`: `[batch, rows]`."""

    @abstractmethod
    def abs_dot(self, values: Tensor) -> Tensor:
        """The absolute values of the coefficients applied to `values`: `[batch, rows]`."""

    def dots(self, values: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """`dot(values)` and `abs_dot(sizes)`, both `[batch, *shape]` or both `[1, *shape]`."""
        return self.dot(values), self.abs_dot(sizes)

    def relaxed(self, slope: Tensor, values: Tensor, sizes: Tensor) -> tuple[Form, Tensor, Tensor]:
        """`scale(slope)`, `dot(values)` and `abs_dot(sizes)`: what an activation with one slope needs."""
        return self.scale(slope), *self.dots(values, sizes)

    @abstractmethod
    def scale(self, factor: Tensor) -> Form:
        """Every coefficient times `factor` `[batch or 1, *shape]`."""

    @abstractmethod
    def split_scale(self, positive: Tensor, negative: Tensor) -> Form:
        """Positive coefficients times one factor, negative ones times another."""

    @abstractmethod
    def pull(self, op: Pullable) -> Form:
        """The same functions of the input of the affine op `op` that made this node, without its bias."""

    @abstractmethod
    def dense(self) -> Dense:
        """The same functions with all coefficients written out."""

    def view(self, shape: Shape) -> Form:
        """The same functions of the reshaped value."""
        return self.dense().view(shape)

    def negative(self) -> Form:
        """The form times -1."""
        return self.dense().negative()

    def plus(self, other: Form) -> Form:
        """The sum of two forms over the same node."""
        return self.dense().plus(other)

    def windows_like(self, other: Windowed) -> Windowed | None:
        """This form in windows at the same points as `other`, or None if it has no such windows."""
        return None

    def at(self, index: Tensor) -> Dense | None:
        """The coefficients at some entries `[batch, count]` of each sample alone, or None if that is not cheap."""
        return None

    def inside(self) -> Form:
        """The same with zeros beyond an image's border, so that norms of the coefficients are right."""
        return self

    def with_coefficients(self, coef: Tensor) -> Form:
        """A form of the same structure with other coefficients, arranged as `coefficients()` are."""
        return self.dense().with_coefficients(coef)


class FlatForm(Form):
    """A form whose `coefficients()` are `[batch or 1, rows, entries]`, with one for each entry of the node."""

    def coefficients(self) -> Tensor:
        """`[batch or 1, rows, entries]`."""
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
        """The values as `[batch, 1, entries]`."""
        return values.flatten(1).unsqueeze(1)

    def collect(self, sums: Tensor) -> Tensor:
        """The sums themselves: they are `[batch, rows]` already."""
        return sums


def rows_dot(coef: Tensor, values: Tensor) -> Tensor:
    """`coef` `[batch or 1, rows, n]` times `values` `[batch or 1, n]`: `[batch, rows]`. Shared parts are not copied."""
    if coef.shape[0] == 1:
        return F.linear(values, coef.squeeze(0))  # `coef[0]` would have a gradient full of zeros
    if values.shape[0] == 1:
        return coef @ values.squeeze(0)
    found: Tensor = apply(_RowsDot, coef, values, False)
    return found


def rows_abs_dot(coef: Tensor, values: Tensor) -> Tensor:
    """`rows_dot` with the absolute values of the coefficients."""
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


CACHE_NUMBERS = 2**20  # numbers that stay in the processor's cache


@dataclass(frozen=True)
class Dense(FlatForm):
    """All coefficients: `coef` is `[batch or 1, rows, *shape]`, where a leading 1 means that all samples share it."""

    coef: Tensor

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        """The shape of the node, without the batch."""
        return tuple(self.coef.shape[2:])

    @property
    def length(self) -> int:
        """The number of the node's entries."""
        return math.prod(self.shape)

    def coefficients(self) -> Tensor:
        """The coefficients as `[batch or 1, rows, entries]`."""
        return self.coef.flatten(2)

    def dot(self, values: Tensor) -> Tensor:
        """`[batch, rows]`; one matrix product for all samples if they share the coefficients."""
        return rows_dot(self.coefficients(), values.flatten(1))

    def abs_dot(self, values: Tensor) -> Tensor:
        """`[batch, rows]`; a few samples at a time, so that the absolute values stay in the cache."""
        coef, flat = self.coefficients(), values.flatten(1)
        samples = max(1, CACHE_NUMBERS // max(1, math.prod(coef.shape[1:])))
        if coef.shape[0] <= samples:
            return rows_abs_dot(coef, flat)
        parts = zip(coef.split(samples), flat.expand(coef.shape[0], -1).split(samples), strict=True)
        return torch.cat([rows_abs_dot(rows, given) for rows, given in parts])

    def scale(self, factor: Tensor) -> Form:
        """The scaled form; a `Scaled` one if all samples share the coefficients, but not the factor."""
        if self.coef.shape[0] == 1 and factor.shape[0] > 1:
            return Scaled(self.coef, factor)
        return Dense(self.coef * factor.unsqueeze(1))

    def with_coefficients(self, coef: Tensor) -> Dense:
        """A dense form with these coefficients `[batch or 1, rows, entries]`."""
        return Dense(coef.unflatten(2, self.shape))

    def at(self, index: Tensor) -> Dense | None:
        """The coefficients at these entries; None if they are shared, as they would be copied for each sample."""
        if self.coef.shape[0] != index.shape[0]:
            return None
        return Dense(self.coefficients().gather(2, index.unsqueeze(1).expand(-1, self.coef.shape[1], -1)))

    def split_scale(self, positive: Tensor, negative: Tensor) -> Dense:
        """Positive coefficients times one factor, negative ones times another."""
        return Dense(split_by_sign(self.coef, positive.unsqueeze(1), negative.unsqueeze(1)))

    def pull(self, op: Pullable) -> Dense:
        """The op's adjoint of all rows of all samples, as one batch."""
        return Dense(op.adjoint(self.coef.flatten(0, 1)).unflatten(0, self.coef.shape[:2]))

    def dense(self) -> Dense:
        """The form itself."""
        return self

    def view(self, shape: Shape) -> Dense:
        """The coefficients with the node's axes reshaped."""
        return Dense(self.coef.reshape(*self.coef.shape[:2], *shape))

    def negative(self) -> Dense:
        """All coefficients times -1."""
        return Dense(-self.coef)

    def plus(self, other: Form) -> Dense:
        """The sum of the coefficients."""
        return Dense(self.coef + other.dense().coef)


def split_by_sign(coef: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Positive coefficients times one factor, negative ones times another; an eighth of the time of `torch.where`."""
    below = -(-coef).relu()  # `clamp` would have a gradient at 0, and the sum would count both factors there
    return torch.addcmul((coef - below) * positive, below, negative)


@dataclass(frozen=True)
class Scaled(FlatForm):
    """Rows that all samples share, times one factor per sample and entry. The product is formed only where needed."""

    coef: Tensor  # [1, rows, *shape]
    factor: Tensor  # [batch, *shape]

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        """The shape of the node, without the batch."""
        return tuple(self.coef.shape[2:])

    @property
    def length(self) -> int:
        """The number of the node's entries, and one more for the product with the factor."""
        return math.prod(self.shape) + 1

    def dot(self, values: Tensor) -> Tensor:
        """`[batch, rows]`; the factor multiplies the values, so that one product serves all samples."""
        return rows_dot(self.coef.flatten(2), (self.factor * values).flatten(1))

    def abs_dot(self, values: Tensor) -> Tensor:
        """As `dot`, with absolute values of coefficients and factor."""
        return rows_abs_dot(self.coef.flatten(2), (self.factor.abs() * values).flatten(1))

    def scale(self, factor: Tensor) -> Scaled:
        """The same rows times the product of both factors."""
        return Scaled(self.coef, self.factor * factor)

    def dense(self) -> Dense:
        """The product of rows and factor."""
        return Dense(self.coef * self.factor.unsqueeze(1))

    def view(self, shape: Shape) -> Scaled:
        """Rows and factor with the node's axes reshaped."""
        return Scaled(self.coef.reshape(1, -1, *shape), self.factor.reshape(-1, *shape))
