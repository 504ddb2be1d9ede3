"""Ops that only move entries: reshape, flatten, permute; and those that do nothing in evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from polycert.forms import Form, Shape
from polycert.rules.op import Affine, Call, rule


class Exact(Affine):
    """An op whose linear part is free of rounding."""

    @property
    def terms(self) -> tuple[int, int]:
        """Nothing is added or multiplied."""
        return (0, 0)

    @property
    def bias(self) -> Tensor | None:
        """None."""
        return None

    def absolute(self, values: Tensor) -> Tensor:
        """Moving entries keeps their size."""
        return self.push(values)


@dataclass(frozen=True, eq=False)
class Reshape(Exact):
    """Any change of shape that keeps the memory order of a sample."""

    in_shape: Shape
    out_shape: Shape

    def push(self, *columns: Tensor) -> Tensor:
        """Reshape all but the first axis."""
        return columns[0].reshape(-1, *self.out_shape)

    def adjoint(self, rows: Tensor) -> Tensor:
        """Reshape back."""
        return rows.reshape(-1, *self.in_shape)

    def pull(self, form: Form) -> list[Form]:
        """Forms know how to reshape themselves."""
        return [form if self.in_shape == self.out_shape else form.view(self.in_shape)]


@dataclass(frozen=True, eq=False)
class Permute(Exact):
    """Axes of a sample in another order; `order` counts from the first axis after the batch."""

    in_shape: Shape
    out_shape: Shape
    order: tuple[int, ...]

    def push(self, *columns: Tensor) -> Tensor:
        """Permute all but the first axis."""
        return columns[0].permute(0, *(axis + 1 for axis in self.order))

    def adjoint(self, rows: Tensor) -> Tensor:
        """Permute back."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return rows.permute(0, *(axis + 1 for axis in back))


@rule(
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze.default",
    "aten.unsqueeze.default",
    "aten.contiguous.default",
    "aten.clone.default",
    "aten.detach.default",
    "aten.detach_.default",
    "aten.alias.default",
)
def _reshape(call: Call) -> Reshape:
    return Reshape(call.in_shapes[0], call.out_shape)


@rule("aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default")
def _dropout(call: Call) -> Reshape:
    if call.get(2, "train") is not False:
        raise ValueError("dropout that is on in evaluation (train=True) is random: a network must not be")
    return Reshape(call.in_shapes[0], call.out_shape)


@rule("aten.permute.default")
def _permute(call: Call) -> Permute:
    rank = len(call.out_shape) + 1
    dims = [d % rank for d in call.get(1, "dims")]
    if dims[0] != 0:
        raise ValueError("the batch axis must stay first")
    return Permute(call.in_shapes[0], call.out_shape, tuple(d - 1 for d in dims[1:]))


@rule("aten.transpose.int")
def _transpose(call: Call) -> Permute:
    rank = len(call.out_shape) + 1
    first, second = (call.get(k, name) % rank for k, name in ((1, "dim0"), (2, "dim1")))
    if 0 in (first, second):
        raise ValueError("the batch axis must stay first")
    order = list(range(rank - 1))
    order[first - 1], order[second - 1] = second - 1, first - 1
    return Permute(call.in_shapes[0], call.out_shape, tuple(order))
