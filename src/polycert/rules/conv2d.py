"""Convolutions and transposed convolutions.

The rows of a convolution live in windows, and a convolution of windows gives windows. A transposed convolution is the
adjoint of a convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polycert.forms import Form, Identity, Patches, Selected, SelectedPatches, Shape, Windowed
from polycert.rules.conv_adjoint import ConvGeometry, Overlaid, Pair, Transposed, dilated, interleaved
from polycert.rules.op import Affine, OnnxFile
from polycert.runtime.execution import apply

WIDE = 3  # windows wider than so many kernels are widened as images
SMALL_IMAGE = 2**14  # entries in all windows: with more, the library's own convolution is as fast or faster


@dataclass(frozen=True, eq=False)
class Conv2d(Affine):
    """A convolution with any stride, padding, dilation and number of groups."""

    weight: Tensor  # [out, in / groups, kh, kw]
    offset: Tensor | None
    in_shape: Shape
    out_shape: Shape
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    @property
    def terms(self) -> tuple[int, int]:
        """One term for each entry of a kernel forward, and for each output that sees a pixel backward."""
        out, per_group, kh, kw = self.weight.shape
        return (per_group * kh * kw, out // self.groups * kh * kw)

    @property
    def bias(self) -> Tensor | None:
        """One offset per channel."""
        return None if self.offset is None else self.offset.reshape(1, -1, 1, 1).expand(1, *self.out_shape)

    def _apply(self, values: Tensor, weight: Tensor, offset: Tensor | None = None) -> Tensor:
        """Convolve images with these weights: `[n, *in_shape]` to `[n, *out_shape]`."""
        if values.shape[0] == 1 and self.groups == 1 and self._window_entries <= SMALL_IMAGE:
            return self._apply_to_one(values, weight, offset)
        return F.conv2d(values, weight, offset, self.stride, self.padding, self.dilation, self.groups)

    def _apply_to_one(self, values: Tensor, weight: Tensor, offset: Tensor | None) -> Tensor:
        """Convolve a single small image as a product: the library takes longer to prepare than this to compute."""
        seen = F.unfold(values, weight.shape[2:], self.dilation, self.padding, self.stride).squeeze(0)
        rows = weight.flatten(1)
        found = rows @ seen if offset is None else torch.addmm(offset.unsqueeze(1), rows, seen)
        return found.reshape(1, *self.out_shape)

    @property
    def _window_entries(self) -> int:
        """Entries in all windows of an image together."""
        return self.terms[0] * self.out_shape[1] * self.out_shape[2]

    def push(self, *columns: Tensor) -> Tensor:
        """Return the convolution without its offset."""
        return self._apply(columns[0], self.weight)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the convolution."""
        return self._apply(inputs[0], self.weight, self.offset)

    def absolute(self, values: Tensor) -> Tensor:
        """Return the convolution with absolute weights."""
        return self._apply(values, self.weight.abs())

    @cached_property
    def _geometry(self) -> ConvGeometry:
        return ConvGeometry(self.in_shape, self.stride, self.padding, self.dilation, self.groups)

    @cached_property
    def _interleaved(self) -> Tensor | None:
        return interleaved(self.weight, self._geometry)

    def adjoint(self, rows: Tensor) -> Tensor:
        """Return the transposed convolution, `[n, *out_shape]` to `[n, *in_shape]`."""
        image: Tensor = apply(Transposed, rows, self.weight, self._interleaved, self._geometry)
        return image

    def pull_identity(self, form: Identity) -> Form:
        """Return the kernel as a window on the output's grid.

        All positions and samples share it, if they share the form's factor.
        """
        coef = self.kernel.transpose(1, 2)[None, None]  # [1, 1, out, kh, in, kw]
        factor = form.factor
        if factor is not None:
            same = len(factor) == 1 and factor.stride()[2:] == (0, 0)  # one for each channel, as in a batch norm
            factor = factor[:, :, :1, :1] if same else factor
            coef = coef * factor.flatten(2).transpose(1, 2)[..., None, None, None]
        grid = (self.out_shape[1], self.out_shape[2])
        return Patches(coef, self.in_shape, grid, self.stride, self.padding, masked=self.padding == (0, 0))

    def pull_selected(self, form: Selected) -> Form:
        """Return the kernels of the chosen channels as windows at the chosen points."""
        channel, line, column = form.points()
        coef, grid = form.times(self.kernel.transpose(1, 2)[channel]), (self.out_shape[1], self.out_shape[2])
        masked = self.padding == (0, 0)
        return SelectedPatches(coef, self.in_shape, grid, self.stride, self.padding, masked, form.index, line, column)

    def pull_windowed(self, form: Windowed) -> Form:
        """Return the form's windows widened by the kernel, or dense rows if windows would be larger than the image."""
        reach = self.reach(form.window)
        if reach[0] > self.in_shape[1] and reach[1] > self.in_shape[2]:
            return form.dense().pull(self)  # the window would be larger than the image
        (sh, sw), (ph, pw) = self.stride, self.padding
        start = (form.start[0] * sh + ph, form.start[1] * sw + pw)
        return replace(
            form,
            coef=self._widen_windows(form.mask().coef, reach),
            shape=self.in_shape,
            stride=(form.stride[0] * sh, form.stride[1] * sw),
            start=start,
            masked=start == (0, 0),
        )

    def reach(self, window: Pair) -> Pair:
        """Return how many lines and columns of the input a window over the output sees."""
        kernel = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.weight.shape[2:], strict=True)]
        return ((window[0] - 1) * self.stride[0] + kernel[0], (window[1] - 1) * self.stride[1] + kernel[1])

    def _widen_windows(self, coef: Tensor, reach: Pair) -> Tensor:
        """Return windows over the output `[..., kh, C', kw]` as windows over the input."""
        # A line's matrix is the kernel with zeros on both sides, which is slow for wide windows only.
        widen = self._widen_images if reach[1] > WIDE * self.reach((1, 1))[1] else self._widen_lines
        wide = widen(coef.flatten(0, -4), reach)
        return wide.reshape(*coef.shape[:-3], reach[0], self.in_shape[0], reach[1])

    def _widen_images(self, coef: Tensor, reach: Pair) -> Tensor:
        """Widen each window by the transposed convolution."""
        geometry = self._geometry._replace(in_shape=(self.in_shape[0], *reach), padding=(0, 0))
        rows = coef.transpose(1, 2)
        wide: Tensor = apply(Transposed, rows, self.weight, self._interleaved, geometry)
        return wide.transpose(1, 2)

    def _widen_lines(self, coef: Tensor, reach: Pair) -> Tensor:
        """Widen the windows by one line at a time.

        Wherever a line is in a window, it weighs the same lines of the input, only further down. So all lines share a
        matrix.
        """
        line = self.in_shape[0] * reach[1]
        matrix, step = self._line_matrix(coef.shape[-1]), self.stride[0] * line
        wide: Tensor = apply(Overlaid, coef.flatten(2), matrix, step, reach[0] * line)
        return wide

    def _line_matrix(self, width: int) -> Tensor:
        """Return the weights of one line of a window on the input: `[C' * width, kernel height * C * reach]`."""
        if width not in self._line_matrices:
            reach = self.reach((1, width))[1]
            # The line repeats with a period of a row and a stride. So each row begins one stride further to the right.
            line = F.pad(self.kernel.transpose(1, 2), (0, reach + self.stride[1] - self.kernel.shape[3]))
            repeated = line.unsqueeze(3).expand(-1, -1, -1, width, -1).flatten(3)
            rows = repeated[..., : width * reach].unflatten(3, (width, reach))  # [C', kh, C, width, reach]
            self._line_matrices[width] = rows.permute(0, 3, 1, 2, 4).reshape(self.out_shape[0] * width, -1)
        return self._line_matrices[width]

    @cached_property
    def _line_matrices(self) -> dict[int, Tensor]:
        return {}

    @cached_property
    def kernel(self) -> Tensor:
        """The weights with groups and dilation written out: `[out, in, kh, kw]`."""
        weight = dilated(self.weight, self.dilation)
        if self.groups == 1:
            return weight
        out, per_group = weight.shape[:2]
        owner = torch.arange(out, device=weight.device) // (out // self.groups)
        member = torch.arange(self.in_shape[0], device=weight.device) // per_group
        tiled = weight.repeat(1, self.groups, 1, 1)
        return tiled * (owner[:, None] == member[None, :]).to(weight.dtype)[..., None, None]

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """Write a convolution with its weights."""
        return file.op("Conv", *inputs, *self.stored(file, self.offset), **self.sliding)

    def stored(self, file: OnnxFile, offset: Tensor | None) -> list[str]:
        """Store the kernel, and an offset if there is one. Return their names."""
        return [file.store(self.weight)] + ([] if offset is None else [file.store(offset)])

    @property
    def sliding(self) -> dict[str, Any]:
        """The attributes of the ONNX op."""
        pads = self.padding * 2
        return {"strides": self.stride, "pads": pads, "dilations": self.dilation, "group": self.groups}


@dataclass(frozen=True, eq=False)
class ConvTranspose2d(Affine):
    """The transpose of `base`, which maps the output's space to the input's."""

    base: Conv2d
    offset: Tensor | None

    @property
    def in_shape(self) -> Shape:  # type: ignore[override]
        """The shape that `base` gives."""
        return self.base.out_shape

    @property
    def out_shape(self) -> Shape:  # type: ignore[override]
        """The shape that `base` takes."""
        return self.base.in_shape

    @property
    def terms(self) -> tuple[int, int]:
        """The terms of the convolution, backward and forward."""
        return (self.base.terms[1], self.base.terms[0])

    @property
    def bias(self) -> Tensor | None:
        """One offset per channel."""
        return None if self.offset is None else self.offset.reshape(1, -1, 1, 1).expand(1, *self.out_shape)

    def push(self, *columns: Tensor) -> Tensor:
        """Return the transposed convolution without its offset."""
        return self.base.adjoint(columns[0])

    def adjoint(self, rows: Tensor) -> Tensor:
        """Return the convolution."""
        return self.base.push(rows)

    def absolute(self, values: Tensor) -> Tensor:
        """Return the transposed convolution with absolute weights."""
        return replace(self.base, weight=self.base.weight.abs()).adjoint(values)

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """Write a transposed convolution, padded by what the output has beyond the windows."""
        base = self.base
        ends = zip(base.in_shape[1:], base.out_shape[1:], base.weight.shape[2:], strict=True)
        moves = zip(base.stride, base.padding, base.dilation, strict=True)
        extra = [
            size - ((n - 1) * s - 2 * p + d * (k - 1) + 1) for (size, n, k), (s, p, d) in zip(ends, moves, strict=True)
        ]
        stored = base.stored(file, self.offset)
        return file.op("ConvTranspose", *inputs, *stored, output_padding=extra, **base.sliding)
