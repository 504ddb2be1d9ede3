"""Transposed convolutions: the adjoint of a convolution, used forward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from polycert.forms import Shape
from polycert.rules.base import Affine
from polycert.rules.convolution import Conv2d


@dataclass(frozen=True, eq=False)
class ConvTranspose2d(Affine):
    """`base` maps the output's space to the input's; its transpose is this op."""

    base: Conv2d
    offset: Tensor | None

    @property
    def in_shape(self) -> Shape:  # type: ignore[override]
        """What `base` gives."""
        return self.base.out_shape

    @property
    def out_shape(self) -> Shape:  # type: ignore[override]
        """What `base` takes."""
        return self.base.in_shape

    @property
    def terms(self) -> tuple[int, int]:
        """Those of the convolution, the other way round."""
        return (self.base.terms[1], self.base.terms[0])

    @cached_property
    def bias(self) -> Tensor | None:
        """One offset per channel."""
        return None if self.offset is None else self.offset.reshape(1, -1, 1, 1).expand(1, *self.out_shape)

    def push(self, *columns: Tensor) -> Tensor:
        """The transposed convolution without its offset."""
        return self.base.adjoint(columns[0])

    def adjoint(self, rows: Tensor) -> Tensor:
        """The convolution."""
        return self.base.push(rows)

    @cached_property
    def _absolute_base(self) -> Conv2d:
        return replace(self.base, weight=self.base.weight.abs())

    def absolute(self, values: Tensor) -> Tensor:
        """With absolute weights."""
        return self._absolute_base.adjoint(values)
