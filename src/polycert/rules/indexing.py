"""Ops that only move, pick or join entries: reshapes, slices, zero padding, broadcasting, concatenation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from polycert.forms import Dense, Form, Identity, Selected, Shape
from polycert.forms.identity import UnitRows
from polycert.rules.op import Affine, Linear, OnnxFile
from polycert.sets.interval import Interval, Rounding


class Exact(Affine):
    """An op whose linear part is free of rounding."""

    @property
    def terms(self) -> tuple[int, int]:
        """Zero terms: nothing is added or multiplied."""
        return (0, 0)

    @property
    def bias(self) -> Tensor | None:
        """None: the op has no constant part."""
        return None

    def absolute(self, values: Tensor) -> Tensor:
        """Return the moved entries: moving keeps their size."""
        return self.push(values)


@dataclass(frozen=True, eq=False)
class Reshape(Exact):
    """A change of shape that keeps the memory order of a sample."""

    in_shape: Shape
    out_shape: Shape

    def push(self, *columns: Tensor) -> Tensor:
        """Reshape all but the first axis."""
        return columns[0].reshape(-1, *self.out_shape)

    def adjoint(self, rows: Tensor) -> Tensor:
        """Reshape back."""
        return rows.reshape(-1, *self.in_shape)

    def pull(self, form: Form) -> list[Form]:
        """Reshape the form."""
        return [form if self.in_shape == self.out_shape else form.view(self.in_shape)]

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """Write a reshape with a free batch."""
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
        """Write a transposition behind the batch axis."""
        return file.op("Transpose", *inputs, perm=[0, *(axis + 1 for axis in self.order)])


NOTHING = -1  # the index of an entry that is 0


@dataclass(frozen=True, eq=False)
class Pick(Exact):
    """Entry k of the output is entry `index[k]` of the input, or 0 where the index is `NOTHING`."""

    index: Tensor  # [out entries], positions among the input's entries in memory order
    in_shape: Shape
    out_shape: Shape

    @staticmethod
    def of(places: Tensor, in_shape: Shape) -> Pick:
        """Build the op from a tensor of places in the shape of the output."""
        return Pick(places.reshape(-1), in_shape, tuple(places.shape))

    @cached_property
    def terms(self) -> tuple[int, int]:
        """No terms forward, and backward as many as outputs pick one entry, if these are more than one."""
        used = self.index[self.index != NOTHING]
        most = int(torch.bincount(used, minlength=1).max()) if len(used) else 0
        return (0, most if most > 1 else 0)

    @cached_property
    def _slots(self) -> Tensor:
        """The index, with the place behind the last entry for nothing."""
        return torch.where(self.index == NOTHING, math.prod(self.in_shape), self.index)

    def push(self, *columns: Tensor) -> Tensor:
        """Look up every entry."""
        flat = F.pad(columns[0].flatten(1), (0, 1))
        return flat[:, self._slots].reshape(-1, *self.out_shape)

    def adjoint(self, rows: Tensor) -> Tensor:
        """Add every entry to the one that it was picked from."""
        flat = rows.reshape(rows.shape[0], -1)
        size = math.prod(self.in_shape)
        back = flat.new_zeros(len(flat), size + 1).index_add(1, self._slots, flat)
        return back[:, :size].reshape(-1, *self.in_shape)

    def pull_identity(self, form: Identity) -> Form:
        """Select the entries that were picked."""
        return self._picked(form, self.index.unsqueeze(0))

    def pull_selected(self, form: Selected) -> Form:
        """Select the entries that the chosen ones were picked from."""
        return self._picked(form, self.index[form.index])

    def _picked(self, form: UnitRows, index: Tensor) -> Form:
        """Return rows with one coefficient each over the input; `index` is `[batch or 1, rows]`."""
        nothing = index == NOTHING
        factor = None if form.factor is None else form.factor.flatten(1)
        if bool(nothing.any()):
            factor = (~nothing).to(form.like) if factor is None else factor * ~nothing
        return Selected(self.in_shape, form.like, index.masked_fill(nothing, 0), factor=factor)

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """Write a lookup in the flat sample with a zero behind it."""
        padded = file.op("Pad", file.op("Flatten", inputs[0], axis=1), file.store([0, 0, 0, 1]))
        picked = file.op("Gather", padded, file.store(self._slots), axis=1)
        return file.op("Reshape", picked, file.store([-1, *self.out_shape]))


def places_of(shape: Shape, like: Tensor) -> Tensor:
    """Return every entry's own place, to be sliced, padded or expanded as the entries are."""
    return torch.arange(math.prod(shape), device=like.device).reshape(shape)


@dataclass(frozen=True, eq=False)
class Concat(Linear):
    """Nodes joined along an axis; `axis` counts from the first axis after the batch."""

    in_shapes: tuple[Shape, ...]
    axis: int

    @property
    def out_shape(self) -> Shape:  # type: ignore[override]
        """The shape of the inputs, with their sizes along the axis added."""
        first = self.in_shapes[0]
        return (*first[: self.axis], sum(self._sizes), *first[self.axis + 1 :])

    @property
    def _sizes(self) -> list[int]:
        return [shape[self.axis] for shape in self.in_shapes]

    @property
    def bias(self) -> Tensor | None:
        """None: the op has no constant part."""
        return None

    @property
    def forward_terms(self) -> int:
        """Zero: nothing is computed."""
        return 0

    @property
    def backward_terms(self) -> int:
        """Zero: nothing is computed."""
        return 0

    def push(self, *columns: Tensor) -> Tensor:
        """Join the inputs; one that all samples share is repeated."""
        batch = max(part.shape[0] for part in columns)
        return torch.cat([part.expand(batch, *part.shape[1:]) for part in columns], self.axis + 1)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Join the inputs."""
        return self.push(*inputs)

    def widen(self, *radii: Tensor) -> Tensor:
        """Join the radii."""
        return self.push(*radii)

    def magnitude(self, *inputs: Tensor) -> Tensor:
        """Join the sizes."""
        return self.push(*inputs)

    def interval(self, *inputs: Interval, rounding: Rounding | None = None) -> Interval:
        """Join the ends."""
        return Interval(self.push(*(i.lower for i in inputs)), self.push(*(i.upper for i in inputs)))

    def pull(self, form: Form) -> list[Form]:
        """Return each input's own part of the coefficients."""
        return [Dense(part) for part in form.dense().coef.split(self._sizes, self.axis + 2)]

    def pull_error(self, form: Form, magnitudes: Sequence[Tensor], rounding: Rounding) -> Tensor | None:
        """Return None: nothing is rounded."""
        return None

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """Write a concatenation behind the batch axis."""
        return file.op("Concat", *inputs, axis=self.axis + 1)


def broadcast(shape: Shape, wide: Shape, like: Tensor) -> Pick:
    """Return the op that repeats a node to a larger shape."""
    return Pick.of(places_of(shape, like).expand(wide), shape)
