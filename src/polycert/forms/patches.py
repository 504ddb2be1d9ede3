"""Forms that live in windows of an image: all neurons of a convolution, or some of them, seen from an earlier layer."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from polycert.forms.form import Dense, Form, Pullable, Shape, split_by_sign

Pair = tuple[int, int]
Same = TypeVar("Same", bound="Windowed")


@dataclass(frozen=True)
class Windowed(Form):
    """Rows at points of a grid over an image, each within a window.

    `coef`: `[..., height, channels, width of the window]`; the window of grid point (i, j) starts at pixel
    `(i * stride - start)`. `masked`: coefficients beyond the border are 0. Lines of the window come before channels so
    that a shift by lines is a shift in memory.
    """

    coef: Tensor
    shape: Shape
    grid: Pair
    stride: Pair
    start: Pair
    masked: bool

    @abstractmethod
    def shares_points(self, other: Windowed) -> bool:
        """Whether both have their rows at the same points of the same grid, in the same order."""

    @property
    def window(self) -> Pair:
        """Height and width of the window."""
        return self.coef.shape[-3], self.coef.shape[-1]

    @property
    def length(self) -> int:
        """Coefficients of a window."""
        return math.prod(self.coef.shape[-3:])

    def coefficients(self) -> Tensor:
        """`[..., terms]`."""
        return self.coef.flatten(-3)

    def with_coefficients(self: Same, coef: Tensor) -> Same:
        """In the same windows."""
        return replace(self, coef=coef.unflatten(-1, self.coef.shape[-3:]))

    def scale(self: Same, factor: Tensor) -> Same:
        """Elementwise; the border's factor is 0, which masks."""
        return replace(self.with_coefficients(self.coefficients() * self.align(factor)), masked=True)

    def split_scale(self: Same, positive: Tensor, negative: Tensor) -> Same:
        """Elementwise, by the sign of each coefficient."""
        coef = split_by_sign(self.coefficients(), self.align(positive), self.align(negative))
        return replace(self.with_coefficients(coef), masked=True)

    def pull(self, op: Pullable) -> Form:
        """The op may keep the window."""
        return op.pull_windowed(self)

    def negative(self: Same) -> Same:
        """Elementwise."""
        return replace(self, coef=-self.coef)

    def plus(self, other: Form) -> Form:
        """In windows if both have their rows at the same points, else dense."""
        fitting = other.windows_like(self)
        return self.dense().plus(other) if fitting is None else self._plus(fitting)

    def _plus(self, other: Windowed) -> Windowed:
        start = tuple(max(a, b) for a, b in zip(self.start, other.start, strict=True))
        end = tuple(max(n - s for n, s in ((f.window[k], f.start[k]) for f in (self, other))) for k in (0, 1))
        mine, theirs = (f._embedded((start[0], start[1]), (end[0], end[1])) for f in (self, other))
        return replace(mine, coef=mine.coef + theirs.coef, masked=mine.masked and theirs.masked)

    def windows_like(self, other: Windowed) -> Windowed | None:
        """Itself if the points agree."""
        same = (self.grid, self.stride) == (other.grid, other.stride)
        return self if same and self.shares_points(other) else None

    def inside(self: Same) -> Same:
        """Zeros beyond the border."""
        return self.mask()

    def mask(self: Same) -> Same:
        """The same with explicit zeros beyond the border."""
        return self if self.masked else self.scale(self.coef.new_ones(1, *self.shape))

    def tiles(self, values: Tensor) -> Tensor:
        """`[batch, channels, height, width]` seen through all windows: `[batch, gh, gw, kh, channels, kw]`, a view."""
        (kh, kw), (sh, sw), (top, left) = self.window, self.stride, self.start
        height, width = (self.grid[0] - 1) * sh + kh, (self.grid[1] - 1) * sw + kw
        bottom, right = max(0, height - top - self.shape[1]), max(0, width - left - self.shape[2])
        # The grid may end before the image, or lie in the border altogether: pad first, then cut.
        padded = F.pad(values, (left, right, top, bottom))[..., :height, :width]
        return padded.unfold(2, kh, sh).unfold(3, kw, sw).permute(0, 2, 3, 4, 1, 5)

    def scattered(self, coef: Tensor, place: Tensor) -> Tensor:
        """Coefficients `[..., terms]` at their places among all entries of the image: `[..., entries]`.

        `place`: `[..., terms]`, counted from 1; 0 is beyond the border.
        """
        full = coef.new_zeros(*coef.shape[:-1], math.prod(self.shape) + 1)
        return full.scatter_add(-1, place.expand_as(coef), coef)[..., 1:]

    def _embedded(self: Same, start: Pair, end: Pair) -> Same:
        """In a larger window that reaches from `-start` to `end` around the grid's points."""
        before = (start[0] - self.start[0], start[1] - self.start[1])
        after = (end[0] + self.start[0] - self.window[0], end[1] + self.start[1] - self.window[1])
        return replace(self, coef=F.pad(self.coef, (before[1], after[1], 0, 0, before[0], after[0])), start=start)


def places(shape: Shape, like: Tensor) -> Tensor:
    """The entries of an image counted from 1, `[1, *shape]`; float64 holds them exactly."""
    count = math.prod(shape)
    return (like.new_ones(count).double().cumsum(0)).reshape(1, *shape)


@dataclass(frozen=True)
class Patches(Windowed):
    """A row for every point and output channel; `coef`: `[batch or 1, points or 1, channels, *window]`."""

    def shares_points(self, other: Windowed) -> bool:
        """All points, in order."""
        return isinstance(other, Patches)

    def align(self, values: Tensor) -> Tensor:
        """`[batch, points, 1, terms]`."""
        return self._windows(values).unsqueeze(2)

    def collect(self, sums: Tensor) -> Tensor:
        """Points and channels to the order of the node that the rows are entries of."""
        return sums.transpose(1, 2).flatten(1)

    def dot(self, values: Tensor) -> Tensor:
        """A convolution where the coefficients are shared, else one small product a point."""
        return self.collect(_grid_dot(self.coefficients(), self._windows(values)))

    def abs_dot(self, values: Tensor) -> Tensor:
        """As `dot` with absolute coefficients."""
        return self.collect(_grid_dot(self.coefficients().abs(), self._windows(values)))

    def dots(self, values: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Looked up together for a single sample; of many, what is looked up at a time should not double."""
        if values.shape[0] > 1:
            return super().dots(values, sizes)
        coef = self.coefficients()
        beside, around = self._windows(torch.cat((values, sizes))).split(1)
        return self.collect(_grid_dot(coef, beside)), self.collect(_grid_dot(coef.abs(), around))

    def dense(self) -> Dense:
        """Scatter every window to its place."""
        place = self.align(places(self.shape, self.coef)).long()
        coef = self.coefficients().expand(-1, place.shape[1], -1, -1)
        full = self.scattered(coef, place).transpose(1, 2)
        return Dense(full.reshape(coef.shape[0], -1, *self.shape))

    def _windows(self, values: Tensor) -> Tensor:
        """`[batch, points, terms]`, 0 beyond the border."""
        return self.tiles(values).flatten(3).flatten(1, 2)


def _grid_dot(coef: Tensor, windows: Tensor) -> Tensor:
    """`[batch or 1, points or 1, rows, n] . [batch or 1, points, n]` -> `[batch, points, rows]`."""
    if coef.shape[:2] == (1, 1):
        return windows @ coef.flatten(0, 2).T
    if coef.shape[0] == 1:
        return (windows.transpose(0, 1) @ coef.squeeze(0).transpose(1, 2)).transpose(0, 1)
    return (windows.unsqueeze(2) @ coef.transpose(2, 3)).squeeze(2)


@dataclass(frozen=True)
class SelectedPatches(Windowed):
    """Rows at points of the grid that differ from sample to sample; `coef`: `[batch, rows, *window]`."""

    selection: Tensor  # [batch, rows]: the entries that the rows are
    line: Tensor  # [batch, rows]: the grid point of each row
    column: Tensor

    def shares_points(self, other: Windowed) -> bool:
        """Both come from the same selection."""
        return isinstance(other, SelectedPatches) and other.selection is self.selection

    def align(self, values: Tensor) -> Tensor:
        """`[batch, rows, terms]`: each row's own window."""
        return self._aligned(values)[0]

    def _aligned(self, *values: Tensor) -> Tensor:
        """`align` of several values of one shape at once: `[values, batch, rows, terms]`."""
        batch = values[0].shape[0]
        stacked = values[0] if len(values) == 1 else torch.cat(values)
        windows = self.tiles(stacked).flatten(3).flatten(0, 2)  # of all points, so that each is a contiguous run
        point = self._point.expand(len(values), -1, -1)
        if stacked.shape[0] > 1:
            first = torch.arange(stacked.shape[0], device=stacked.device) * (self.grid[0] * self.grid[1])
            point = point + first.reshape(len(values), batch, 1)
        found: Tensor = windows.index_select(0, point.flatten()).unflatten(0, point.shape)
        return found

    @cached_property
    def _point(self) -> Tensor:
        """Each row's point, counted along the grid: `[batch, rows]`."""
        return self.line * self.grid[1] + self.column

    def collect(self, sums: Tensor) -> Tensor:
        """Already `[batch, rows]`."""
        return sums

    def dot(self, values: Tensor) -> Tensor:
        """Products and a sum."""
        return (self.coefficients() * self.align(values)).sum(2)

    def abs_dot(self, values: Tensor) -> Tensor:
        """As `dot` with absolute coefficients."""
        return (self.coefficients().abs() * self.align(values)).sum(2)

    def dots(self, values: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Looked up together for a single sample; of many, what is looked up at a time should not double."""
        if values.shape[0] > 1:
            return super().dots(values, sizes)
        return self._dots(*self._aligned(values, sizes))

    def relaxed(self, slope: Tensor, values: Tensor, sizes: Tensor) -> tuple[Form, Tensor, Tensor]:
        """As `dots`."""
        if values.shape[0] > 1:
            return super().relaxed(slope, values, sizes)
        factor, beside, around = self._aligned(slope, values, sizes)
        scaled = replace(self.with_coefficients(self.coefficients() * factor), masked=True)
        return scaled, *self._dots(beside, around)

    def _dots(self, values: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Of what is aligned."""
        coef = self.coefficients()
        return (coef * values).sum(2), (coef.abs() * sizes).sum(2)

    def dense(self) -> Dense:
        """Scatter every window to its place."""
        place = self.align(places(self.shape, self.coef)).long()
        return Dense(self.scattered(self.coefficients(), place).unflatten(2, self.shape))
