"""Convolutions: their rows live in windows, and windows of windows are windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from polycert.forms import Form, Identity, Patches, Shape
from polycert.rules.base import Affine, Call, rule

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Conv2d(Affine):
    """A convolution of any stride, padding, dilation and number of groups."""

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
        """Forward over the kernel, backward over the outputs that see a pixel."""
        out, per_group, kh, kw = self.weight.shape
        return (per_group * kh * kw, out // self.groups * kh * kw)

    @cached_property
    def bias(self) -> Tensor | None:
        """One offset per channel."""
        return None if self.offset is None else self.offset.reshape(1, -1, 1, 1).expand(1, *self.out_shape)

    def _apply(self, values: Tensor, weight: Tensor, offset: Tensor | None = None) -> Tensor:
        return F.conv2d(values, weight, offset, self.stride, self.padding, self.dilation, self.groups)

    def push(self, *columns: Tensor) -> Tensor:
        """The convolution without its offset."""
        return self._apply(columns[0], self.weight)

    def forward(self, *inputs: Tensor) -> Tensor:
        """The convolution."""
        return self._apply(inputs[0], self.weight, self.offset)

    def absolute(self, values: Tensor) -> Tensor:
        """With absolute weights."""
        return self._apply(values, self._absolute_weight)

    @cached_property
    def _absolute_weight(self) -> Tensor:
        return self.weight.abs()

    def adjoint(self, rows: Tensor) -> Tensor:
        """The transposed convolution, back to the input's exact size."""
        kernel = self.weight.shape[2:]
        extra = [
            self.in_shape[k + 1]
            - ((self.out_shape[k + 1] - 1) * self.stride[k] - 2 * self.padding[k])
            - (self.dilation[k] * (kernel[k] - 1) + 1)
            for k in (0, 1)
        ]
        # What the stride leaves over can exceed the stride itself: then those pixels have no weight at all.
        inside = [min(e, max(s, d) - 1) for e, s, d in zip(extra, self.stride, self.dilation, strict=True)]
        out = F.conv_transpose2d(rows, self.weight, None, self.stride, self.padding, inside, self.groups, self.dilation)
        return F.pad(out, (0, extra[1] - inside[1], 0, extra[0] - inside[0]))

    def pull_identity(self, form: Identity) -> Form:
        """The kernel as a window on the output's grid, shared by all positions and samples."""
        return Patches(
            self.kernel.transpose(1, 2)[None, None],
            self.in_shape,
            (self.out_shape[1], self.out_shape[2]),
            self.stride,
            self.padding,
            masked=self.padding == (0, 0),
        )

    def pull_patches(self, form: Patches) -> Form:
        """A window of windows is a window: one product with the kernel's own small matrix."""
        reach = [(w - 1) * s + k for w, s, k in zip(form.window, self.stride, self.kernel.shape[2:], strict=True)]
        if reach[0] > self.in_shape[1] and reach[1] > self.in_shape[2]:
            return form.dense().pull(self)  # the window would be larger than the image
        (sh, sw), (ph, pw) = self.stride, self.padding
        start = (form.start[0] * sh + ph, form.start[1] * sw + pw)
        return Patches(
            self._widen_windows(form.mask().coef, (reach[0], reach[1])),
            self.in_shape,
            form.grid,
            (form.stride[0] * sh, form.stride[1] * sw),
            start,
            masked=start == (0, 0),
        )

    def _widen_windows(self, coef: Tensor, reach: Pair) -> Tensor:
        """Windows over the output `[..., kh, C', kw]` as windows over the input, one line of them at a time.

        A line of a window weighs the same lines of the input wherever it is, only further down: one matrix for all.
        """
        lines, channels, width = coef.shape[3:]
        eye = torch.eye(channels * width, dtype=coef.dtype, device=coef.device)
        spread = F.conv_transpose2d(eye.reshape(-1, channels, 1, width), self.kernel, stride=self.stride)
        matrix = spread.transpose(1, 2).flatten(1)  # [C' kw, kernel height * C * reach]
        flat, line = coef.flatten(4).flatten(0, 2), self.in_shape[0] * reach[1]
        wide = coef.new_zeros(flat.shape[0], reach[0] * line)
        for i in range(lines):
            begin = i * self.stride[0] * line
            wide[:, begin : begin + matrix.shape[1]].addmm_(flat[:, i], matrix)
        return wide.reshape(*coef.shape[:3], reach[0], self.in_shape[0], reach[1])

    @cached_property
    def kernel(self) -> Tensor:
        """The weights with groups and dilation written out: `[out, in, kh, kw]`."""
        weight = self.weight
        if self.groups > 1:
            out, per_group = weight.shape[:2]
            owner = torch.arange(out, device=weight.device) // (out // self.groups)
            member = torch.arange(self.in_shape[0], device=weight.device) // per_group
            tiled = weight.repeat(1, self.groups, 1, 1)
            weight = tiled * (owner[:, None] == member[None, :]).to(weight.dtype)[..., None, None]
        if self.dilation != (1, 1):
            kh, kw = ((d * (k - 1) + 1) for d, k in zip(self.dilation, weight.shape[2:], strict=True))
            wide = weight.new_zeros(*weight.shape[:2], kh, kw)
            wide[:, :, :: self.dilation[0], :: self.dilation[1]] = weight
            weight = wide
        return weight


def _pair(value: int | Sequence[int]) -> Pair:
    if isinstance(value, int):
        return (value, value)
    return (value[0], value[-1])


@rule("aten.conv2d.default", "aten.conv2d.padding", "aten.convolution.default")
def _conv2d(call: Call) -> Affine:
    weight = call.get(1, "weight")
    if weight.dim() != 4 or call.get(6, "transposed", False) is True:
        raise ValueError("only two-dimensional convolutions, not transposed, are supported")
    stride, dilation = _pair(call.get(3, "stride", 1)), _pair(call.get(5, "dilation", 1))
    padding = call.get(4, "padding", 0)
    if isinstance(padding, str):
        padding = same_padding(padding, weight, dilation)
    groups = call.args[8] if call.target == "aten.convolution.default" else call.get(6, "groups", 1)
    return Conv2d(
        weight,
        call.get(2, "bias"),
        call.in_shapes[0],
        call.out_shape,
        stride,
        _pair(padding),
        dilation,
        int(groups),
    )


def same_padding(name: str, weight: Tensor, dilation: Pair) -> Pair:
    """The padding that a name stands for."""
    if name == "valid":
        return (0, 0)
    total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    if any(t % 2 for t in total):
        raise ValueError("padding='same' with an even kernel is one-sided; pad the input instead")
    return (total[0] // 2, total[1] // 2)
