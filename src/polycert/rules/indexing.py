"""Ops that only move, pick or join entries: reshape, permute, slices, zero padding, broadcasting, concatenation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from polycert.forms import Dense, Form, Shape
from polycert.rules.op import Affine, Linear, OnnxFile
from polycert.sets.interval import Interval, Rounding


class Exact(Affine):
    """An op whose linear part is free of rounding."""

    @property
    def terms(self) -> tuple[int, int]:
        """Nothing is added or multiplied."""
        return (0, 0)

    @property
    def bias(self) -> Tensor | None:
        """None."""
        return None

    def absolute(self, values: Tensor) -> Tensor:
        """Moving entries keeps their size."""
        return self.push(values)


@dataclass(frozen=True, eq=False)
class Reshape(Exact):
    """Any change of shape that keeps the memory order of a sample."""

    in_shape: Shape
    out_shape: Shape

    def push(self, *columns: Tensor) -> Tensor:
        """Reshape all but the first axis."""
        return columns[0].reshape(-1, *self.out_shape)

    def adjoint(self, rows: Tensor) -> Tensor:
        """Reshape back."""
        return rows.reshape(-1, *self.in_shape)

    def pull(self, form: Form) -> list[Form]:
        """Forms know how to reshape themselves."""
        return [form if self.in_shape == self.out_shape else form.view(self.in_shape)]

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """With a free batch."""
        return file.op("Reshape", *inputs, file.store([-1, *self.out_shape]))


@dataclass(frozen=True, eq=False)
class Permute(Exact):
    """Axes of a sample in another order; `order` counts from the first axis after the batch."""

    in_shape: Shape
    out_shape: Shape
    order: tuple[int, ...]

    def push(self, *columns: Tensor) -> Tensor:
        """Permute all but the first axis."""
        return columns[0].permute(0, *(axis + 1 for axis in self.order))

    def adjoint(self, rows: Tensor) -> Tensor:
        """Permute back."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return rows.permute(0, *(axis + 1 for axis in back))

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """Behind the batch."""
        return file.op("Transpose", *inputs, perm=[0, *(axis + 1 for axis in self.order)])


NOTHING = -1


@dataclass(frozen=True, eq=False)
class Pick(Exact):
    """Entry k of the output is entry `index[k]` of the input, or 0 where the index is `NOTHING`."""

    index: Tensor  # [out entries], positions among the input's entries in memory order
    in_shape: Shape
    out_shape: Shape

    @staticmethod
    def of(places: Tensor, in_shape: Shape) -> Pick:
        """From a tensor of places in the shape of the output."""
        return Pick(places.reshape(-1), in_shape, tuple(places.shape))

    @cached_property
    def terms(self) -> tuple[int, int]:
        """Exact, but where an entry is picked twice its adjoint adds."""
        used = self.index[self.index != NOTHING]
        most = int(torch.bincount(used, minlength=1).max()) if len(used) else 0
        return (0, most if most > 1 else 0)

    @cached_property
    def _slots(self) -> Tensor:
        """The index with one more slot for nothing."""
        return torch.where(self.index == NOTHING, math.prod(self.in_shape), self.index)

    def push(self, *columns: Tensor) -> Tensor:
        """Look every entry up."""
        flat = F.pad(columns[0].flatten(1), (0, 1))
        return flat[:, self._slots].reshape(-1, *self.out_shape)

    def adjoint(self, rows: Tensor) -> Tensor:
        """Every entry back to where it came from."""
        flat = rows.reshape(rows.shape[0], -1)
        size = math.prod(self.in_shape)
        back = flat.new_zeros(len(flat), size + 1).index_add(1, self._slots, flat)
        return back[:, :size].reshape(-1, *self.in_shape)

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """From the flat sample with a zero behind it."""
        padded = file.op("Pad", file.op("Flatten", inputs[0], axis=1), file.store([0, 0, 0, 1]))
        picked = file.op("Gather", padded, file.store(self._slots), axis=1)
        return file.op("Reshape", picked, file.store([-1, *self.out_shape]))


def places_of(shape: Shape, like: Tensor) -> Tensor:
    """Every entry's own place, to be sliced, padded or expanded as the entries are."""
    return torch.arange(math.prod(shape), device=like.device).reshape(shape)


@dataclass(frozen=True, eq=False)
class Concat(Linear):
    """Nodes side by side along an axis; `axis` counts from the first axis after the batch."""

    in_shapes: tuple[Shape, ...]
    axis: int

    @property
    def out_shape(self) -> Shape:  # type: ignore[override]
        """Sizes along the axis add."""
        first = self.in_shapes[0]
        return (*first[: self.axis], sum(self._sizes), *first[self.axis + 1 :])

    @property
    def _sizes(self) -> list[int]:
        return [shape[self.axis] for shape in self.in_shapes]

    @property
    def bias(self) -> Tensor | None:
        """None."""
        return None

    @property
    def forward_terms(self) -> int:
        """Nothing is computed."""
        return 0

    @property
    def backward_terms(self) -> int:
        """Nothing is computed."""
        return 0

    def push(self, *columns: Tensor) -> Tensor:
        """Side by side; what all samples share is repeated."""
        batch = max(part.shape[0] for part in columns)
        return torch.cat([part.expand(batch, *part.shape[1:]) for part in columns], self.axis + 1)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Side by side."""
        return self.push(*inputs)

    def widen(self, *radii: Tensor) -> Tensor:
        """Side by side."""
        return self.push(*radii)

    def magnitude(self, *inputs: Tensor) -> Tensor:
        """Side by side."""
        return self.push(*inputs)

    def interval(self, *inputs: Interval, rounding: Rounding | None = None) -> Interval:
        """Side by side."""
        return Interval(self.push(*(i.lower for i in inputs)), self.push(*(i.upper for i in inputs)))

    def pull(self, form: Form) -> list[Form]:
        """Each input's own part of the coefficients."""
        return [Dense(part) for part in form.dense().coef.split(self._sizes, self.axis + 2)]

    def pull_error(self, form: Form, magnitudes: Sequence[Tensor], rounding: Rounding) -> Tensor | None:
        """Nothing is rounded."""
        return None

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """Behind the batch."""
        return file.op("Concat", *inputs, axis=self.axis + 1)


def broadcast(shape: Shape, wide: Shape, like: Tensor) -> Pick:
    """A node repeated to a larger shape."""
    return Pick.of(places_of(shape, like).expand(wide), shape)
