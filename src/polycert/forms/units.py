"""Forms that are known without coefficients: the node itself, and differences of its entries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from polycert.forms.base import FlatForm, Form, Pullable, Shape
from polycert.forms.dense import Dense
from polycert.forms.patches import Patches
from polycert.forms.windowed import Windowed
from polycert.forms.windows import Windows


@dataclass(frozen=True)
class Identity(FlatForm):
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

    def windows_like(self, other: Windowed) -> Windowed | None:
        """A window of one pixel with step 1."""
        return self._one_pixel().windows_like(other) if len(self.shape) == 3 else None

    def _one_pixel(self) -> Patches:
        channels, height, width = self.shape
        eye = torch.eye(channels, dtype=self.like.dtype, device=self.like.device)
        coef = eye.reshape(1, 1, channels, 1, channels, 1)
        return Patches(coef, self.shape, (height, width), stride=(1, 1), start=(0, 0), masked=True)


@dataclass(frozen=True)
class Selected(FlatForm):
    """The rows are some entries of the node, others for each sample."""

    index: Tensor  # [batch, rows]
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

    def dot(self, values: Tensor) -> Tensor:
        """Look the entries up."""
        return values.flatten(1).expand(len(self.index), -1).gather(1, self.index)

    def abs_dot(self, values: Tensor) -> Tensor:
        """Look the entries up."""
        return self.dot(values)

    def scale(self, factor: Tensor) -> Form:
        """Written out; in windows of one pixel for images."""
        return self._one_pixel().scale(factor) if len(self.shape) == 3 else self.dense().scale(factor)

    def split_scale(self, positive: Tensor, negative: Tensor) -> Form:
        """All coefficients are positive."""
        return self.scale(positive)

    def pull(self, op: Pullable) -> Form:
        """The op's own rows."""
        return op.pull_selected(self)

    def dense(self) -> Dense:
        """Unit rows."""
        size = math.prod(self.shape)
        coef = torch.zeros(*self.index.shape, size, dtype=self.like.dtype, device=self.like.device)
        return Dense(coef.scatter(2, self.index.unsqueeze(2), 1.0).unflatten(2, self.shape))

    def view(self, shape: Shape) -> Selected:
        """Entries are counted in memory order, which a reshape keeps."""
        return Selected(self.index, shape, self.like)

    def negative(self) -> Form:
        """Minus one at the entry."""
        return self.scale(-torch.ones(1, *self.shape, dtype=self.like.dtype, device=self.like.device))

    def plus(self, other: Form) -> Form:
        """Left to the other form, which may have a structure."""
        return other.plus(self) if not isinstance(other, Selected) else self.dense().plus(other)

    def windows_like(self, other: Windowed) -> Windowed | None:
        """A window of one pixel with step 1."""
        return self._one_pixel().windows_like(other) if len(self.shape) == 3 else None

    @cached_property
    def points(self) -> tuple[Tensor, Tensor, Tensor]:
        """Channel, line and column of each entry of an image, `[batch, rows]` each."""
        _, height, width = self.shape
        pixel = self.index % (height * width)
        return self.index // (height * width), pixel // width, pixel % width

    def _one_pixel(self) -> Windows:
        channel, line, column = self.points
        eye = torch.eye(self.shape[0], dtype=self.like.dtype, device=self.like.device)
        coef = eye[channel][:, :, None, :, None]
        grid = (self.shape[1], self.shape[2])
        return Windows(coef, self.shape, grid, (1, 1), (0, 0), True, line, column)


@dataclass(frozen=True)
class Differences(FlatForm):
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
        coef = torch.zeros(*self.others.shape, self.size, dtype=self.like.dtype, device=self.like.device).scatter(
            2, self.others[..., None], -1.0
        )
        label = self.label[:, None, None].expand(*self.others.shape, 1)
        return Dense(coef.scatter_add(2, label, torch.ones_like(label, dtype=coef.dtype)))
