"""What forms that live in windows of an image have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor

from polycert.forms.dense import split_by_sign
from polycert.forms.form import Form, Pullable, Shape

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
