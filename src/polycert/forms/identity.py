"""Forms that need no matrix of coefficients: entries of a node, and differences of two entries."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from polycert.forms.form import Dense, FlatForm, Form, Pullable, Shape, split_by_sign
from polycert.forms.patches import Patches, SelectedPatches, Windowed

Same = TypeVar("Same", bound="UnitRows")


@dataclass(frozen=True)
class UnitRows(FlatForm):
    """Rows with one coefficient each: entries of the node, perhaps each times a factor."""

    shape: Shape
    like: Tensor  # carries dtype and device
    factor: Tensor | None = field(default=None, kw_only=True)  # arranged as `entries` arranges values

    @abstractmethod
    def entries(self, values: Tensor) -> Tensor:
        """The entries of `values` `[batch or 1, *shape]` that the rows stand for."""

    @abstractmethod
    def one_pixel(self) -> Windowed:
        """The same rows in windows of one pixel; the node is an image."""

    @property
    def length(self) -> int:
        """1: a row has a single coefficient."""
        return 1

    @property
    def exact(self) -> bool:
        """True without a factor: the pulled rows are then the op's own weights, unrounded."""
        return self.factor is None

    def dot(self, values: Tensor) -> Tensor:
        """The entries, each times its factor: `[batch, rows]`."""
        found = self.entries(values)
        return (found if self.factor is None else found * self.factor).flatten(1)

    def abs_dot(self, values: Tensor) -> Tensor:
        """The entries, each times its factor's absolute value: `[batch, rows]`."""
        found = self.entries(values)
        return (found if self.factor is None else found * self.factor.abs()).flatten(1)

    def scale(self: Same, factor: Tensor) -> Same:
        """The same entries times the product of both factors."""
        found = self.entries(factor)
        return replace(self, factor=found if self.factor is None else self.factor * found)

    def split_scale(self: Same, positive: Tensor, negative: Tensor) -> Same:
        """As `scale`, by the sign of each factor. Without a factor all coefficients are 1."""
        if self.factor is None:
            return self.scale(positive)
        return replace(self, factor=split_by_sign(self.factor, self.entries(positive), self.entries(negative)))

    def windows_like(self, other: Windowed) -> Windowed | None:
        """Windows of one pixel, if those of `other` are at the same points."""
        return self.one_pixel().windows_like(other) if len(self.shape) == 3 else None

    def negative(self) -> Form:
        """The same entries times -1."""
        return self.scale(-torch.ones(1, *self.shape, dtype=self.like.dtype, device=self.like.device))

    def plus(self, other: Form) -> Form:
        """The sum. The other form adds up, as it may keep its structure."""
        return other.plus(self) if not isinstance(other, UnitRows) else self.dense().plus(other)


@dataclass(frozen=True)
class Identity(UnitRows):
    """The rows are all entries of the node, in order; `factor` is `[batch or 1, *shape]`."""

    def entries(self, values: Tensor) -> Tensor:
        """The values themselves, `[batch or 1, *shape]`."""
        return values

    def pull(self, op: Pullable) -> Form:
        """All rows of the op's weights, times the factors."""
        return op.pull_identity(self)

    def dense(self) -> Dense:
        """A diagonal matrix for each sample."""
        size = math.prod(self.shape)
        eye = torch.eye(size, dtype=self.like.dtype, device=self.like.device)
        eye = eye.unsqueeze(0) if self.factor is None else eye * self.factor.flatten(1).unsqueeze(1)
        return Dense(eye.unflatten(2, self.shape))

    def view(self, shape: Shape) -> Identity:
        """The same rows: they are counted in memory order, which a reshape keeps."""
        return replace(self, shape=shape, factor=None if self.factor is None else self.factor.reshape(-1, *shape))

    def one_pixel(self) -> Windowed:
        """One window of one pixel at every point of the image, for each channel."""
        channels, height, width = self.shape
        eye = torch.eye(channels, dtype=self.like.dtype, device=self.like.device)
        coef = eye.reshape(1, 1, channels, 1, channels, 1)
        form = Patches(coef, self.shape, (height, width), stride=(1, 1), start=(0, 0), masked=True)
        return form if self.factor is None else form.scale(self.factor)


@dataclass(frozen=True)
class Selected(UnitRows):
    """The rows are some entries of the node, chosen for each sample or for all; `factor` is `[batch or 1, rows]`."""

    index: Tensor  # [batch or 1, rows]

    def entries(self, values: Tensor) -> Tensor:
        """The chosen entries, `[batch, rows]`."""
        samples = max(len(values), len(self.index))
        return values.flatten(1).expand(samples, -1).gather(1, self.index.expand(samples, -1))

    def pull(self, op: Pullable) -> Form:
        """The chosen rows of the op's weights, times the factors."""
        return op.pull_selected(self)

    def times(self, rows: Tensor) -> Tensor:
        """The op's rows `[batch, rows, ...]`, each times its factor."""
        return rows if self.factor is None else rows * self.factor.reshape(*self.factor.shape, *(1,) * (rows.dim() - 2))

    def dense(self) -> Dense:
        """The coefficients written out: one of each row is not 0."""
        size = math.prod(self.shape)
        coef = torch.zeros(*self.index.shape, size, dtype=self.like.dtype, device=self.like.device)
        return Dense(self.times(coef.scatter(2, self.index.unsqueeze(2), 1.0).unflatten(2, self.shape)))

    def view(self, shape: Shape) -> Selected:
        """The same rows: entries are counted in memory order, which a reshape keeps."""
        return replace(self, shape=shape)

    def points(self) -> tuple[Tensor, Tensor, Tensor]:
        """The channel, line and column of each entry of an image, each `[batch, rows]`."""
        _, height, width = self.shape
        pixel = self.index % (height * width)
        return self.index // (height * width), pixel // width, pixel % width

    def one_pixel(self) -> Windowed:
        """A window of one pixel at the point of each entry."""
        channel, line, column = self.points()
        eye = torch.eye(self.shape[0], dtype=self.like.dtype, device=self.like.device)
        coef = self.times(eye[channel][:, :, None, :, None])
        grid = (self.shape[1], self.shape[2])
        return SelectedPatches(coef, self.shape, grid, (1, 1), (0, 0), True, self.index, line, column)


@dataclass(frozen=True)
class Differences(FlatForm):
    """Rows `value[label] - value[other]` of a flat node: the margins of a classifier."""

    label: Tensor  # [batch]
    others: Tensor  # [batch, rows]
    size: int
    like: Tensor

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        """The node is flat and has `size` entries."""
        return (self.size,)

    @property
    def length(self) -> int:
        """2: a row has two coefficients."""
        return 2

    def dot(self, values: Tensor) -> Tensor:
        """The difference of the two entries, `[batch, rows]`."""
        values = values.expand(self.label.shape[0], -1)
        return values.gather(1, self.label[:, None]) - values.gather(1, self.others)

    def abs_dot(self, values: Tensor) -> Tensor:
        """The sum of the two entries, `[batch, rows]`."""
        values = values.expand(self.label.shape[0], -1)
        return values.gather(1, self.label[:, None]) + values.gather(1, self.others)

    def pull(self, op: Pullable) -> Form:
        """Differences of rows of the op's weights (elision of the last layer)."""
        return op.pull_differences(self)

    def dense(self) -> Dense:
        """The coefficients written out: +1 at the label, -1 at the other class."""
        coef = torch.zeros(*self.others.shape, self.size, dtype=self.like.dtype, device=self.like.device).scatter(
            2, self.others[..., None], -1.0
        )
        label = self.label[:, None, None].expand(*self.others.shape, 1)
        return Dense(coef.scatter_add(2, label, torch.ones_like(label, dtype=coef.dtype)))
