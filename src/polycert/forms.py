"""Linear forms: rows of coefficients over the value of one node of a graph.

A form holds, for every sample of a batch and every row, the coefficients of one linear function of a node's value
`[batch, *shape]`. How the coefficients are stored is the form's own business:

- `Identity`: the rows are the node's own entries;
- `Differences`: a row is one entry minus another (a margin between two classes);
- `Patches`: a row lives in a small window of an image (a neuron of a convolution);
- `Dense`: everything, the fallback that every form can turn into.

Nothing outside this file asks which form it has: ops call `form.pull(op)`, and an op with a structure of its own offers it
through `pull_identity`, `pull_patches` or `pull_differences`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

Shape = tuple[int, ...]


class Pullable(Protocol):
    """What a form needs to know of an affine op with one input."""

    @property
    def in_shape(self) -> Shape:
        """Shape of the op's input, without the batch."""
        ...

    def adjoint(self, rows: Tensor) -> Tensor:
        """Map `[n, *out_shape]` to `[n, *in_shape]` by the transposed linear part."""
        ...

    def pull_identity(self, form: Identity) -> Form:
        """The linear part's own rows."""
        ...

    def pull_patches(self, form: Patches) -> Form:
        """A windowed form through the op."""
        ...

    def pull_differences(self, form: Differences) -> Form:
        """Differences of outputs through the op."""
        ...


class Form(ABC):
    """Rows of coefficients over a node's value `[batch, *shape]`."""

    shape: Shape

    @property
    @abstractmethod
    def length(self) -> int:
        """How many terms a row's sum has at most (for rounding-error terms)."""

    @property
    def exact(self) -> bool:
        """Whether pulling it through an affine op is free of rounding."""
        return False

    @abstractmethod
    def coefficients(self) -> Tensor:
        """All coefficients, the terms of a row last: `[batch or 1, ..., terms]`."""

    @abstractmethod
    def align(self, values: Tensor) -> Tensor:
        """Arrange `values` `[batch, *shape]` beside `coefficients()`; nothing (0) beyond an image's border."""

    @abstractmethod
    def collect(self, sums: Tensor) -> Tensor:
        """Bring the result of a reduction over the terms to `[batch, rows]`."""

    @abstractmethod
    def dot(self, values: Tensor) -> Tensor:
        """Every row applied to `values` `[batch or 1, *shape]`: `[batch, rows]`."""

    @abstractmethod
    def abs_dot(self, values: Tensor) -> Tensor:
        """The rows' absolute values applied to `values`: `[batch, rows]`."""

    def abs_dots(self, *values: Tensor) -> list[Tensor]:
        """`abs_dot` for several values."""
        return [self.abs_dot(v) for v in values]

    @abstractmethod
    def scale(self, factor: Tensor) -> Form:
        """Every coefficient times `factor` `[batch or 1, *shape]`."""

    @abstractmethod
    def split_scale(self, positive: Tensor, negative: Tensor) -> Form:
        """Positive coefficients times one factor, negative ones times another."""

    @abstractmethod
    def pull(self, op: Pullable) -> Form:
        """The same functions, seen from the input of the affine op that made this node (without its bias)."""

    @abstractmethod
    def dense(self) -> Dense:
        """The same form with every coefficient written out."""

    def view(self, shape: Shape) -> Form:
        """The same coefficients over a reshaped value."""
        return self.dense().view(shape)

    def negative(self) -> Form:
        """The form times -1."""
        return self.dense().negative()

    def plus(self, other: Form) -> Form:
        """The sum of two forms over the same node."""
        return self.dense().plus(other)

    def patches_like(self, other: Patches) -> Patches | None:
        """This form in windows on the same grid as `other`, where that is possible."""
        return None


@dataclass(frozen=True)
class Dense(Form):
    """`coef`: `[batch or 1, rows, *shape]`; a leading 1 is shared by all samples."""

    coef: Tensor

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        """Shape of the node, without the batch."""
        return tuple(self.coef.shape[2:])

    @property
    def length(self) -> int:
        """Entries of the node."""
        return math.prod(self.shape)

    def coefficients(self) -> Tensor:
        """`[batch or 1, rows, entries]`."""
        return self.coef.flatten(2)

    def align(self, values: Tensor) -> Tensor:
        """`[batch, 1, entries]`."""
        return values.flatten(1).unsqueeze(1)

    def collect(self, sums: Tensor) -> Tensor:
        """Already `[batch, rows]`."""
        return sums

    def dot(self, values: Tensor) -> Tensor:
        """One product for all samples where the coefficients are shared."""
        return _rows_dot(self.coefficients(), values.flatten(1))

    def abs_dot(self, values: Tensor) -> Tensor:
        """As `dot` with absolute coefficients."""
        return self.abs_dots(values)[0]

    def abs_dots(self, *values: Tensor) -> list[Tensor]:
        """The absolute coefficients are made once."""
        coef = self.coefficients().abs()
        return [_rows_dot(coef, v.flatten(1)) for v in values]

    def scale(self, factor: Tensor) -> Dense:
        """Elementwise."""
        return Dense(self.coef * factor.unsqueeze(1))

    def split_scale(self, positive: Tensor, negative: Tensor) -> Dense:
        """Elementwise, by the sign of each coefficient."""
        return Dense(_split(self.coef, positive.unsqueeze(1), negative.unsqueeze(1)))

    def pull(self, op: Pullable) -> Dense:
        """All rows of all samples as one batch for the op's adjoint."""
        flat = op.adjoint(self.coef.flatten(0, 1))
        return Dense(flat.reshape(*self.coef.shape[:2], *op.in_shape))

    def dense(self) -> Dense:
        """Itself."""
        return self

    def view(self, shape: Shape) -> Dense:
        """Reshape the node's axes."""
        return Dense(self.coef.reshape(*self.coef.shape[:2], *shape))

    def negative(self) -> Dense:
        """Elementwise."""
        return Dense(-self.coef)

    def plus(self, other: Form) -> Dense:
        """Elementwise."""
        return Dense(self.coef + other.dense().coef)


@dataclass(frozen=True)
class Identity(Form):
    """The rows are the entries of the node themselves, in order."""

    shape: Shape
    like: Tensor  # carries dtype and device

    @property
    def length(self) -> int:
        """A single coefficient."""
        return 1

    @property
    def exact(self) -> bool:
        """The op's own weights, unrounded."""
        return True

    def coefficients(self) -> Tensor:
        """Written out."""
        return self.dense().coefficients()

    def align(self, values: Tensor) -> Tensor:
        """As the dense form."""
        return values.flatten(1).unsqueeze(1)

    def collect(self, sums: Tensor) -> Tensor:
        """As the dense form."""
        return sums

    def dot(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values.flatten(1)

    def abs_dot(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values.flatten(1)

    def scale(self, factor: Tensor) -> Form:
        """A diagonal, written out; in windows of one pixel for images."""
        return self._one_pixel().scale(factor) if len(self.shape) == 3 else self.dense().scale(factor)

    def split_scale(self, positive: Tensor, negative: Tensor) -> Form:
        """All coefficients are positive."""
        return self.scale(positive)

    def pull(self, op: Pullable) -> Form:
        """The op's own rows."""
        return op.pull_identity(self)

    def dense(self) -> Dense:
        """A unit matrix, shared by all samples."""
        size = math.prod(self.shape)
        eye = torch.eye(size, dtype=self.like.dtype, device=self.like.device)
        return Dense(eye.reshape(1, size, *self.shape))

    def view(self, shape: Shape) -> Identity:
        """Rows are counted in memory order, which a reshape keeps."""
        return Identity(shape, self.like)

    def negative(self) -> Form:
        """Minus one on the diagonal."""
        return self.scale(-torch.ones(1, *self.shape, dtype=self.like.dtype, device=self.like.device))

    def plus(self, other: Form) -> Form:
        """Left to the other form, which may have a structure."""
        return other.plus(self) if not isinstance(other, Identity) else self.dense().plus(other)

    def patches_like(self, other: Patches) -> Patches | None:
        """A window of one pixel with step 1."""
        return self._one_pixel().patches_like(other) if len(self.shape) == 3 else None

    def _one_pixel(self) -> Patches:
        channels, height, width = self.shape
        eye = torch.eye(channels, dtype=self.like.dtype, device=self.like.device)
        coef = eye.reshape(1, 1, channels, channels, 1, 1)
        return Patches(coef, self.shape, (height, width), stride=(1, 1), start=(0, 0), masked=True)


@dataclass(frozen=True)
class Differences(Form):
    """Rows `value[label] - value[other]` of a flat node: the margins of a classifier's outputs."""

    label: Tensor  # [batch]
    others: Tensor  # [batch, rows]
    size: int
    like: Tensor

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        """A flat node of `size` entries."""
        return (self.size,)

    @property
    def length(self) -> int:
        """Two coefficients a row."""
        return 2

    def coefficients(self) -> Tensor:
        """Written out."""
        return self.dense().coefficients()

    def align(self, values: Tensor) -> Tensor:
        """As the dense form."""
        return values.flatten(1).unsqueeze(1)

    def collect(self, sums: Tensor) -> Tensor:
        """As the dense form."""
        return sums

    def dot(self, values: Tensor) -> Tensor:
        """Look the two entries up."""
        values = values.expand(len(self.label), -1)
        return values.gather(1, self.label[:, None]) - values.gather(1, self.others)

    def abs_dot(self, values: Tensor) -> Tensor:
        """Look the two entries up."""
        values = values.expand(len(self.label), -1)
        return values.gather(1, self.label[:, None]) + values.gather(1, self.others)

    def scale(self, factor: Tensor) -> Form:
        """Written out."""
        return self.dense().scale(factor)

    def split_scale(self, positive: Tensor, negative: Tensor) -> Form:
        """Written out."""
        return self.dense().split_scale(positive, negative)

    def pull(self, op: Pullable) -> Form:
        """The op may subtract rows of its weights."""
        return op.pull_differences(self)

    def dense(self) -> Dense:
        """+1 and -1 written out."""
        coef = torch.zeros(
            *self.others.shape, self.size, dtype=self.like.dtype, device=self.like.device
        ).scatter(2, self.others[..., None], -1.0)
        label = self.label[:, None, None].expand(*self.others.shape, 1)
        return Dense(coef.scatter_add(2, label, torch.ones_like(label, dtype=coef.dtype)))


@dataclass(frozen=True)
class Patches(Form):
    """Rows on a grid over an image, each within a window: a convolution's neurons.

    `coef`: `[batch or 1, positions or 1, out channels, channels, height, width of the window]`; the window of grid
    position (i, j) starts at pixel `(i * stride - start)`. `masked`: coefficients beyond the border are 0.
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
        return self.coef.shape[-2], self.coef.shape[-1]

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
        return self._with(self.coefficients() * self.align(factor))

    def split_scale(self, positive: Tensor, negative: Tensor) -> Patches:
        """Elementwise, by the sign of each coefficient."""
        return self._with(_split(self.coefficients(), self.align(positive), self.align(negative)))

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
        end = tuple(
            max(n - s for n, s in ((f.window[k], f.start[k]) for f in (self, fitting))) for k in (0, 1)
        )
        mine, theirs = (f._embedded((start[0], start[1]), (end[0], end[1])) for f in (self, fitting))
        return replace(mine, coef=mine.coef + theirs.coef, masked=mine.masked and theirs.masked)

    def patches_like(self, other: Patches) -> Patches | None:
        """Itself if the grids agree."""
        return self if (self.grid, self.stride) == (other.grid, other.stride) else None

    def mask(self) -> Patches:
        """The same with explicit zeros beyond the border."""
        return self if self.masked else self.scale(self.coef.new_ones(1, *self.shape))

    def _with(self, flat: Tensor) -> Patches:
        return replace(self, coef=flat.unflatten(3, self.coef.shape[3:]), masked=True)

    def _embedded(self, start: tuple[int, int], end: tuple[int, int]) -> Patches:
        """In a larger window that reaches from `-start` to `end` around the grid's points."""
        before = (start[0] - self.start[0], start[1] - self.start[1])
        after = (end[0] + self.start[0] - self.window[0], end[1] + self.start[1] - self.window[1])
        return replace(self, coef=F.pad(self.coef, (before[1], after[1], before[0], after[0])), start=start)

    def _windows(self, values: Tensor) -> Tensor:
        """`[batch, channels, height, width]` to `[batch, positions, terms]`, 0 beyond the border."""
        (kh, kw), (sh, sw), (top, left) = self.window, self.stride, self.start
        bottom = (self.grid[0] - 1) * sh + kh - top - self.shape[1]
        right = (self.grid[1] - 1) * sw + kw - left - self.shape[2]
        padded = F.pad(values, (left, right, top, bottom))
        tiles = padded.unfold(2, kh, sh).unfold(3, kw, sw)
        return tiles.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def _split(coef: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    return torch.where(coef >= 0, positive, negative) * coef


def _rows_dot(coef: Tensor, values: Tensor) -> Tensor:
    """`[batch or 1, rows, n] . [batch or 1, n]` without copying what is shared."""
    if coef.shape[0] == 1:
        return values @ coef[0].T
    if values.shape[0] == 1:
        return coef @ values[0]
    return (coef @ values.unsqueeze(2)).squeeze(2)


def _grid_dot(coef: Tensor, windows: Tensor) -> Tensor:
    """`[batch or 1, positions or 1, rows, n] . [batch or 1, positions, n]` -> `[batch, positions, rows]`."""
    if coef.shape[:2] == (1, 1):
        return windows @ coef[0, 0].T
    if coef.shape[0] == 1:
        return (windows.transpose(0, 1) @ coef[0].transpose(1, 2)).transpose(0, 1)
    return (coef @ windows.unsqueeze(3)).squeeze(3)
