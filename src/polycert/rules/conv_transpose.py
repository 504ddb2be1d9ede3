"""Transposed convolutions: the adjoint of a convolution, used forward."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from polycert.forms import Shape
from polycert.rules.conv1d import as_image, in_lines, pair_of
from polycert.rules.conv2d import Conv2d
from polycert.rules.decomposition import Decomposition
from polycert.rules.op import Affine, Call, rule


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

    @property
    def bias(self) -> Tensor | None:
        """One offset per channel."""
        return None if self.offset is None else self.offset.reshape(1, -1, 1, 1).expand(1, *self.out_shape)

    def push(self, *columns: Tensor) -> Tensor:
        """The transposed convolution without its offset."""
        return self.base.adjoint(columns[0])

    def adjoint(self, rows: Tensor) -> Tensor:
        """The convolution."""
        return self.base.push(rows)

    def absolute(self, values: Tensor) -> Tensor:
        """With absolute weights."""
        return replace(self.base, weight=self.base.weight.abs()).adjoint(values)


@rule("aten.conv_transpose2d.input", "aten.conv_transpose1d.default")
def _conv_transpose(call: Call) -> ConvTranspose2d | Decomposition:
    weight, offset, groups = call.get(1, "weight"), call.get(2, "bias"), call.get(6, "groups", 1)
    stride, padding, dilation = call.get(3, "stride", 1), call.get(4, "padding", 0), call.get(7, "dilation", 1)
    flat = weight.dim() == 3
    shapes = [as_image(shape) if flat else shape for shape in (call.in_shapes[0], call.out_shape)]
    pairs = [pair_of(value, flat, default) for value, default in ((stride, 1), (padding, 0), (dilation, 1))]
    kernel = weight.unsqueeze(2) if flat else weight
    base = Conv2d(kernel, None, shapes[1], shapes[0], pairs[0], pairs[1], pairs[2], int(groups))
    return in_lines(ConvTranspose2d(base, offset), call) if flat else ConvTranspose2d(base, offset)
