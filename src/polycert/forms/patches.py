"""Forms whose rows have coefficients in a window of an image: units of a convolution, seen from an earlier layer."""

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
    """Rows at the points of a grid over an image, each with its coefficients in a window.

    `coef` is `[..., height, channels, width]` of the window. Its lines come before the channels, so that a shift by
    lines is a shift in memory. The window of grid point (i, j) starts at pixel `(i, j) * stride - start`. `masked` says
    that all coefficients beyond the image's border are 0.
    """

    coef: Tensor
    shape: Shape
    grid: Pair
    stride: Pair
    start: Pair
    masked: bool

    @abstractmethod
    def shares_points(self, other: Windowed) -> bool:
        """Whether both forms have their rows at the same points of a grid, in the same order."""

    @property
    def window(self) -> Pair:
        """The height and width of the window."""
        return self.coef.shape[-3], self.coef.shape[-1]

    @property
    def length(self) -> int:
        """The number of a window's coefficients."""
        return math.prod(self.coef.shape[-3:])

    def coefficients(self) -> Tensor:
        """All coefficients, `[..., terms]`."""
        return self.coef.flatten(-3)

    def with_coefficients(self: Same, coef: Tensor) -> Same:
        """A form with these coefficients `[..., terms]` in the same windows."""
        return replace(self, coef=coef.unflatten(-1, self.coef.shape[-3:]))

    def scale(self: Same, factor: Tensor) -> Same:
        """Every coefficient times its factor, which is 0 beyond the border: the result is masked."""
        return replace(self.with_coefficients(self.coefficients() * self.align(factor)), masked=True)

    def split_scale(self: Same, positive: Tensor, negative: Tensor) -> Same:
        """Positive coefficients times one factor, negative ones times another; the result is masked."""
        coef = split_by_sign(self.coefficients(), self.align(positive), self.align(negative))
        return replace(self.with_coefficients(coef), masked=True)

    def pull(self, op: Pullable) -> Form:
        """Larger windows over the op's input, if the op has such a rule; else a dense form."""
        return op.pull_windowed(self)

    def negative(self: Same) -> Same:
        """All coefficients times -1."""
        return replace(self, coef=-self.coef)

    def plus(self, other: Form) -> Form:
        """The sum: in windows that hold both forms' windows if the rows are at the same points, else dense."""
        fitting = other.windows_like(self)
        if fitting is None:
            return self.dense().plus(other)
        forms = (self, fitting)
        top, left = (max(form.start[axis] for form in forms) for axis in (0, 1))
        bottom, right = (max(form.window[axis] - form.start[axis] for form in forms) for axis in (0, 1))
        first, second = (form._embedded((top, left), (bottom, right)) for form in forms)
        return replace(first, coef=first.coef + second.coef, masked=first.masked and second.masked)

    def windows_like(self, other: Windowed) -> Windowed | None:
        """The form itself if both are at the same points, else None."""
        same = (self.grid, self.stride) == (other.grid, other.stride)
        return self if same and self.shares_points(other) else None

    def inside(self: Same) -> Same:
        """As `mask`."""
        return self.mask()

    def mask(self: Same) -> Same:
        """The same form with zeros for all coefficients beyond the border."""
        return self if self.masked else self.scale(self.coef.new_ones(1, *self.shape))

    def tiles(self, values: Tensor) -> Tensor:
        """The parts of an image `[batch, channels, height, width]` that the windows of all points show.

        A view `[batch, grid height, grid width, window height, channels, window width]`, 0 beyond the border.
        """
        (kh, kw), (sh, sw), (top, left) = self.window, self.stride, self.start
        height, width = (self.grid[0] - 1) * sh + kh, (self.grid[1] - 1) * sw + kw
        bottom, right = max(0, height - top - self.shape[1]), max(0, width - left - self.shape[2])
        # The grid may end before the image does, and a window may be in the border altogether: pad first, then cut.
        padded = F.pad(values, (left, right, top, bottom))[..., :height, :width]
        return padded.unfold(2, kh, sh).unfold(3, kw, sw).permute(0, 2, 3, 4, 1, 5)

    def scattered(self, coef: Tensor, place: Tensor) -> Tensor:
        """Coefficients `[..., terms]` moved to the entries of the image that they belong to: `[..., entries]`.

        `place` `[..., terms]` numbers the entries from 1; 0 is beyond the border.
        """
        full = coef.new_zeros(*coef.shape[:-1], math.prod(self.shape) + 1)
        return full.scatter_add(-1, place.expand_as(coef), coef)[..., 1:]

    def _embedded(self: Same, start: Pair, end: Pair) -> Same:
        """The same form in a larger window, from `-start` to `end` around the grid's points."""
        before = (start[0] - self.start[0], start[1] - self.start[1])
        after = (end[0] + self.start[0] - self.window[0], end[1] + self.start[1] - self.window[1])
        return replace(self, coef=F.pad(self.coef, (before[1], after[1], 0, 0, before[0], after[0])), start=start)


def places(shape: Shape, like: Tensor) -> Tensor:
    """The numbers of an image's entries from 1, `[1, *shape]`, in float64, which holds them exactly."""
    count = math.prod(shape)
    return (like.new_ones(count).double().cumsum(0)).reshape(1, *shape)


@dataclass(frozen=True)
class Patches(Windowed):
    """A row for every point and output channel; `coef` is `[batch or 1, points or 1, channels, *window]`."""

    def shares_points(self, other: Windowed) -> bool:
        """True for all `Patches`: they have rows at all points, in order."""
        return isinstance(other, Patches)

    def align(self, values: Tensor) -> Tensor:
        """The values that each window shows, `[batch, points, 1, terms]`."""
        return self._windows(values).unsqueeze(2)

    def collect(self, sums: Tensor) -> Tensor:
        """Sums `[batch, points, channels]` in the order of the image that the rows are entries of."""
        return sums.transpose(1, 2).flatten(1)

    def dot(self, values: Tensor) -> Tensor:
        """`[batch, rows]`: a convolution if all points share the coefficients, else one small product per point."""
        return self.collect(_grid_dot(self.coefficients(), self._windows(values)))

    def abs_dot(self, values: Tensor) -> Tensor:
        """As `dot`, with the absolute values of the coefficients."""
        return self.collect(_grid_dot(self.coefficients().abs(), self._windows(values)))

    def dots(self, values: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """`dot(values)` and `abs_dot(sizes)`; a single sample's windows are looked up once, at twice the memory."""
        if values.shape[0] > 1:
            return super().dots(values, sizes)
        coef = self.coefficients()
        shown_values, shown_sizes = self._windows(torch.cat((values, sizes))).split(1)
        return self.collect(_grid_dot(coef, shown_values)), self.collect(_grid_dot(coef.abs(), shown_sizes))

    def dense(self) -> Dense:
        """The coefficients of every window at their places in the image."""
        place = self.align(places(self.shape, self.coef)).long()
        coef = self.coefficients().expand(-1, place.shape[1], -1, -1)
        full = self.scattered(coef, place).transpose(1, 2)
        return Dense(full.reshape(coef.shape[0], -1, *self.shape))

    def _windows(self, values: Tensor) -> Tensor:
        """The values that each window shows, `[batch, points, terms]`, 0 beyond the border."""
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
    """Rows at points of the grid that are chosen for each sample; `coef` is `[batch, rows, *window]`."""

    selection: Tensor  # [batch, rows]: the entries of the convolution that the rows stand for
    line: Tensor  # [batch, rows]: line and column of each row's grid point
    column: Tensor

    def shares_points(self, other: Windowed) -> bool:
        """Whether both were made from the same selection of entries."""
        return isinstance(other, SelectedPatches) and other.selection is self.selection

    def align(self, values: Tensor) -> Tensor:
        """The values that each row's window shows, `[batch, rows, terms]`."""
        return self._aligned(values)[0]

    def _aligned(self, *values: Tensor) -> Tensor:
        """`align` of several tensors of one shape at once: `[tensors, batch, rows, terms]`."""
        batch = values[0].shape[0]
        stacked = values[0] if len(values) == 1 else torch.cat(values)
        windows = self.tiles(stacked).flatten(3).flatten(0, 2)  # contiguous for each point
        point = self._point.expand(len(values), -1, -1)
        if stacked.shape[0] > 1:
            first = torch.arange(stacked.shape[0], device=stacked.device) * (self.grid[0] * self.grid[1])
            point = point + first.reshape(len(values), batch, 1)
        found: Tensor = windows.index_select(0, point.flatten()).unflatten(0, point.shape)
        return found

    @cached_property
    def _point(self) -> Tensor:
        """The number of each row's grid point, `[batch, rows]`."""
        return self.line * self.grid[1] + self.column

    def collect(self, sums: Tensor) -> Tensor:
        """The sums themselves: they are `[batch, rows]` already."""
        return sums

    def dot(self, values: Tensor) -> Tensor:
        """The sum over each row's window, `[batch, rows]`."""
        return (self.coefficients() * self.align(values)).sum(2)

    def abs_dot(self, values: Tensor) -> Tensor:
        """As `dot`, with the absolute values of the coefficients."""
        return (self.coefficients().abs() * self.align(values)).sum(2)

    def dots(self, values: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """`dot(values)` and `abs_dot(sizes)`; a single sample's windows are looked up once, at twice the memory."""
        if values.shape[0] > 1:
            return super().dots(values, sizes)
        return self._dots(*self._aligned(values, sizes))

    def relaxed(self, slope: Tensor, values: Tensor, sizes: Tensor) -> tuple[Form, Tensor, Tensor]:
        """`scale(slope)`, `dot(values)` and `abs_dot(sizes)`; looked up once for a single sample."""
        if values.shape[0] > 1:
            return super().relaxed(slope, values, sizes)
        factor, shown_values, shown_sizes = self._aligned(slope, values, sizes)
        scaled = replace(self.with_coefficients(self.coefficients() * factor), masked=True)
        return scaled, *self._dots(shown_values, shown_sizes)

    def _dots(self, values: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """`dots` of aligned values and sizes."""
        coef = self.coefficients()
        return (coef * values).sum(2), (coef.abs() * sizes).sum(2)

    def dense(self) -> Dense:
        """The coefficients of every window at their places in the image."""
        place = self.align(places(self.shape, self.coef)).long()
        return Dense(self.scattered(self.coefficients(), place).unflatten(2, self.shape))
