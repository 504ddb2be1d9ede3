"""Forms that live in windows of an image: the neurons of a convolution, seen from an earlier layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polycert.forms.base import Form, Pullable, Rows, Shape
from polycert.forms.dense import Dense, split_by_sign


@dataclass(frozen=True)
class Patches(Form):
    """Rows on a grid over an image, each within a window: a convolution's neurons.

    `coef`: `[batch or 1, positions or 1, out channels, height, channels, width of the window]`; the window of grid
    position (i, j) starts at pixel `(i * stride - start)`. `masked`: coefficients beyond the border are 0.
    Rows of the window come before channels so that a shift by rows is a shift in memory.
    """

    coef: Tensor
    shape: Shape
    grid: tuple[int, int]
    stride: tuple[int, int]
    start: tuple[int, int]
    masked: bool

    @property
    def window(self) -> tuple[int, int]:
        """Height and width of the window."""
        return self.coef.shape[-3], self.coef.shape[-1]

    @property
    def length(self) -> int:
        """Coefficients of a window."""
        return math.prod(self.coef.shape[3:])

    def coefficients(self) -> Tensor:
        """`[batch or 1, positions or 1, out channels, terms]`."""
        return self.coef.flatten(3)

    def align(self, values: Tensor) -> Tensor:
        """`[batch, positions, 1, terms]`."""
        return self._windows(values).unsqueeze(2)

    def collect(self, sums: Tensor) -> Tensor:
        """Positions and channels to the order of the node that the rows are entries of."""
        return sums.transpose(1, 2).flatten(1)

    def dot(self, values: Tensor) -> Tensor:
        """A convolution where the coefficients are shared, else one small product a position."""
        return self.collect(_grid_dot(self.coefficients(), self._windows(values)))

    def abs_dot(self, values: Tensor) -> Tensor:
        """As `dot` with absolute coefficients."""
        return self.abs_dots(values)[0]

    def abs_dots(self, *values: Tensor) -> list[Tensor]:
        """The absolute coefficients are made once."""
        coef = self.coefficients().abs()
        return [self.collect(_grid_dot(coef, self._windows(v))) for v in values]

    def scale(self, factor: Tensor) -> Patches:
        """Elementwise; the border's factor is 0, which masks."""
        return replace(self.with_coefficients(self.coefficients() * self.align(factor)), masked=True)

    def split_scale(self, positive: Tensor, negative: Tensor) -> Patches:
        """Elementwise, by the sign of each coefficient."""
        coef = split_by_sign(self.coefficients(), self.align(positive), self.align(negative))
        return replace(self.with_coefficients(coef), masked=True)

    def pull(self, op: Pullable) -> Form:
        """The op may keep the window."""
        return op.pull_patches(self)

    def dense(self) -> Dense:
        """Scatter every window to its place."""
        channels, height, width = self.shape
        index = torch.arange(1, math.prod(self.shape) + 1, device=self.coef.device, dtype=torch.float64)
        # Entry 0 collects what lies beyond the border.
        place = self._windows(index.reshape(1, *self.shape)).long()
        coef = self.coefficients()
        coef = coef.expand(-1, place.shape[1], -1, -1)
        place = place.unsqueeze(2).expand_as(coef)
        full = coef.new_zeros(*coef.shape[:3], channels * height * width + 1).scatter_add(3, place, coef)
        full = full[..., 1:].transpose(1, 2)
        return Dense(full.reshape(coef.shape[0], -1, channels, height, width))

    def negative(self) -> Patches:
        """Elementwise."""
        return replace(self, coef=-self.coef)

    def plus(self, other: Form) -> Form:
        """In windows if both are on the same grid, else dense."""
        fitting = other.patches_like(self)
        if fitting is None:
            return self.dense().plus(other)
        start = tuple(max(a, b) for a, b in zip(self.start, fitting.start, strict=True))
        end = tuple(max(n - s for n, s in ((f.window[k], f.start[k]) for f in (self, fitting))) for k in (0, 1))
        mine, theirs = (f._embedded((start[0], start[1]), (end[0], end[1])) for f in (self, fitting))
        return replace(mine, coef=mine.coef + theirs.coef, masked=mine.masked and theirs.masked)

    def patches_like(self, other: Patches) -> Patches | None:
        """Itself if the grids agree."""
        return self if (self.grid, self.stride) == (other.grid, other.stride) else None

    def with_coefficients(self, coef: Tensor) -> Patches:
        """In the same windows."""
        return replace(self, coef=coef.unflatten(3, self.coef.shape[3:]))

    @property
    def windowed(self) -> bool:
        """Rows on a grid can be combined position by position."""
        return True

    def combine(self, rows: Rows) -> Dense:
        """Linear combinations of these rows: one small product a position, then overlapping windows are added.

        Sample by sample, so that products are still in the cache when they are added; and with the rows last, so that
        windows are added in long contiguous runs.
        """
        (gh, gw), outs = self.grid, self.coef.shape[2]
        coef = self.coefficients().transpose(2, 3)  # [batch or 1, positions or 1, terms, outs]
        left = rows.coef.unflatten(2, (outs, gh * gw)).permute(0, 3, 2, 1).contiguous()  # [.., positions, outs, rows]
        factor = None if rows.factor is None else rows.factor.unflatten(1, (outs, gh * gw)).transpose(1, 2)
        images: list[Tensor] = []
        for sample in range(max(len(coef), rows.batch)):
            weights = left[sample if len(left) > 1 else 0]
            if factor is not None:
                weights = weights * factor[sample].unsqueeze(2)
            product = coef[sample if len(coef) > 1 else 0] @ weights
            windows = product.reshape(gh, gw, *self.coef.shape[3:], product.shape[2])
            images.append(Overlap.apply(windows, self.stride))  # type: ignore[no-untyped-call]
        return Dense(self._on_image(torch.stack(images)))

    def _on_image(self, image: Tensor) -> Tensor:
        """`[batch, height, channels, width, rows]` of the grid's extent as coefficients over the image."""
        (top, left), (_, height, width) = self.start, self.shape
        bottom, right = height + top - image.shape[1], width + left - image.shape[3]
        cropped = F.pad(image.transpose(1, 2), (0, 0, -left, right, -top, bottom))
        return cropped.contiguous().permute(0, 4, 1, 2, 3)

    def columns(self, index: Tensor) -> Tensor | None:
        """Coefficients of all rows at some entries of each sample, `[batch, count] -> [batch, count, rows]`.

        Only for windows shared by all positions and samples, else None.
        """
        if self.coef.shape[:2] != (1, 1):
            return None
        (kh, kw), (gh, gw), outs = self.window, self.grid, self.coef.shape[2]
        channel, pixel = index // (self.shape[1] * self.shape[2]), index % (self.shape[1] * self.shape[2])
        ys, in_y = _touching(pixel // self.shape[2], gh, kh, self.stride[0], self.start[0])
        xs, in_x = _touching(pixel % self.shape[2], gw, kw, self.stride[1], self.start[1])
        place = ys.position.unsqueeze(3) * gw + xs.position.unsqueeze(2)  # [batch, entries, ty, tx]
        tap = (ys.tap.unsqueeze(3) * self.shape[0] + channel[..., None, None]) * kw + xs.tap.unsqueeze(2)
        valid = (in_y.unsqueeze(3) & in_x.unsqueeze(2)).flatten(2)
        weights = self.coefficients()[0, 0].T[tap.flatten(2)] * valid.unsqueeze(3)  # [batch, count, taps, outs]
        weights = weights.transpose(2, 3)
        empty = weights.new_zeros(*index.shape, outs, gh * gw)
        target = place.flatten(2).unsqueeze(2).expand_as(weights)
        return empty.scatter_add(3, target, weights).flatten(2)

    def inside(self) -> Patches:
        """Zeros beyond the border."""
        return self.mask()

    def mask(self) -> Patches:
        """The same with explicit zeros beyond the border."""
        return self if self.masked else self.scale(self.coef.new_ones(1, *self.shape))

    def _embedded(self, start: tuple[int, int], end: tuple[int, int]) -> Patches:
        """In a larger window that reaches from `-start` to `end` around the grid's points."""
        before = (start[0] - self.start[0], start[1] - self.start[1])
        after = (end[0] + self.start[0] - self.window[0], end[1] + self.start[1] - self.window[1])
        return replace(self, coef=F.pad(self.coef, (before[1], after[1], 0, 0, before[0], after[0])), start=start)

    def _windows(self, values: Tensor) -> Tensor:
        """`[batch, channels, height, width]` to `[batch, positions, terms]`, 0 beyond the border."""
        (kh, kw), (sh, sw), (top, left) = self.window, self.stride, self.start
        height, width = (self.grid[0] - 1) * sh + kh, (self.grid[1] - 1) * sw + kw
        bottom, right = max(0, height - top - self.shape[1]), max(0, width - left - self.shape[2])
        # The grid may end before the image, or lie in the border altogether: pad first, then cut.
        padded = F.pad(values, (left, right, top, bottom))[..., :height, :width]
        tiles = padded.unfold(2, kh, sh).unfold(3, kw, sw)
        return tiles.permute(0, 2, 3, 4, 1, 5).flatten(3).flatten(1, 2)


class Touching(NamedTuple):
    """Grid positions whose window holds a pixel, and where in the window, `[..., most]`."""

    position: Tensor
    tap: Tensor


def _touching(pixel: Tensor, grid: int, window: int, stride: int, start: int) -> tuple[Touching, Tensor]:
    """For each pixel of one axis, the windows that hold it; invalid places are marked and point at 0."""
    most = -(-window // stride)
    last = torch.div(pixel + start, stride, rounding_mode="floor")
    position = last.unsqueeze(-1) - torch.arange(most, device=pixel.device)
    tap = (pixel + start).unsqueeze(-1) - position * stride
    valid = (position >= 0) & (position < grid) & (tap < window)
    return Touching(torch.where(valid, position, 0), torch.where(valid, tap, 0)), valid


def _grid_dot(coef: Tensor, windows: Tensor) -> Tensor:
    """`[batch or 1, positions or 1, rows, n] . [batch or 1, positions, n]` -> `[batch, positions, rows]`."""
    if coef.shape[:2] == (1, 1):
        return windows @ coef[0, 0].T
    if coef.shape[0] == 1:
        return (windows.transpose(0, 1) @ coef[0].transpose(1, 2)).transpose(0, 1)
    return (coef @ windows.unsqueeze(3)).squeeze(3)


class Overlap(torch.autograd.Function):
    """Add windows `[gh, gw, kh, channels, kw, rows]` up where they overlap: `[height, channels, width, rows]`.

    The gradient is the windows of the gradient.
    """

    @staticmethod
    def forward(ctx: Any, windows: Tensor, stride: tuple[int, int]) -> Tensor:
        """First along the lines of the grid, then down."""
        (sh, sw), (gh, gw, kh, channels, kw, rows) = stride, windows.shape
        ctx.stride, ctx.window = stride, (kh, kw)
        bands = windows.new_zeros(gh, kh, channels, (gw - 1) * sw + kw, rows)
        for j in range(gw):
            bands[:, :, :, j * sw : j * sw + kw] += windows[:, j]
        image = windows.new_zeros((gh - 1) * sh + kh, *bands.shape[2:])
        for i in range(gh):
            image[i * sh : i * sh + kh] += bands[i]
        return image

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Take the windows out again."""
        (sh, sw), (kh, kw) = ctx.stride, ctx.window
        tiles = gradient.unfold(0, kh, sh).unfold(2, kw, sw)  # [gh, channels, gw, rows, kh, kw]
        return tiles.permute(0, 2, 4, 1, 5, 3), None
