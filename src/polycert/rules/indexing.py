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
from polycert.rules.affine import Elementwise
from polycert.rules.op import Affine, Decomposition, Linear
from polycert.rules.registry import Call, Value, rule
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


@rule(
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze.default",
    "aten.unsqueeze.default",
    "aten.contiguous.default",
    "aten.clone.default",
    "aten.detach.default",
    "aten.detach_.default",
    "aten.alias.default",
)
def _reshape(call: Call) -> Reshape:
    return Reshape(call.in_shapes[0], call.out_shape)


@rule("aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default")
def _dropout(call: Call) -> Reshape:
    if call.get(2, "train") is not False:
        raise ValueError("dropout that is on in evaluation (train=True) is random: a network must not be")
    return Reshape(call.in_shapes[0], call.out_shape)


@rule("aten.permute.default")
def _permute(call: Call) -> Permute:
    rank = len(call.out_shape) + 1
    dims = [d % rank for d in call.get(1, "dims")]
    if dims[0] != 0:
        raise ValueError("the batch axis must stay first")
    return Permute(call.in_shapes[0], call.out_shape, tuple(d - 1 for d in dims[1:]))


@rule("aten.transpose.int")
def _transpose(call: Call) -> Permute:
    rank = len(call.out_shape) + 1
    first, second = (call.get(k, name) % rank for k, name in ((1, "dim0"), (2, "dim1")))
    if 0 in (first, second):
        raise ValueError("the batch axis must stay first")
    order = list(range(rank - 1))
    order[first - 1], order[second - 1] = second - 1, first - 1
    return Permute(call.in_shapes[0], call.out_shape, tuple(order))


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


def broadcast(shape: Shape, wide: Shape, like: Tensor) -> Pick:
    """A node repeated to a larger shape."""
    return Pick.of(places_of(shape, like).expand(wide), shape)


def _axis(call: Call, position: int, rank: int) -> int:
    """An axis counted from the first after the batch."""
    axis = int(call.get(position, "dim", 0)) % rank
    if axis == 0:
        raise ValueError("the batch axis cannot be cut or joined")
    return axis - 1


@rule("aten.cat.default", "aten.concat.default")
def _cat(call: Call) -> Concat:
    parts = call.args[0]
    if not all(isinstance(part, Value) for part in parts):
        raise ValueError("joining constants to a node is not supported")
    return Concat(call.in_shapes, _axis(call, 1, len(call.out_shape) + 1))


@rule("aten.stack.default")
def _stack(call: Call) -> Decomposition:
    axis = _axis(call, 1, len(call.out_shape) + 1)
    recipe = Decomposition(*call.in_shapes)
    shape = call.in_shapes[0]
    tall = (*shape[:axis], 1, *shape[axis:])
    parts = [recipe.add(Reshape(shape, tall), k) for k in range(len(call.in_shapes))]
    recipe.add(Concat((tall,) * len(parts), axis), *parts)
    return recipe


@rule("aten.slice.Tensor")
def _slice(call: Call) -> Pick:
    shape = call.in_shapes[0]
    axis = _axis(call, 1, len(shape) + 1)
    ends = slice(call.get(2, "start"), call.get(3, "end"), call.get(4, "step", 1))
    places = places_of(shape, call.like)
    return Pick.of(places[(slice(None),) * axis + (ends,)], shape)


@rule("aten.select.int")
def _select(call: Call) -> Pick:
    shape = call.in_shapes[0]
    axis = _axis(call, 1, len(shape) + 1)
    picked = places_of(shape, call.like).select(axis, call.get(2, "index"))
    return Pick.of(picked.reshape(call.out_shape or (1,)), shape)


@rule("aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default", "aten.unbind.int")
def _split(call: Call) -> Decomposition:
    shape = call.in_shapes[0]
    places = places_of(shape, call.like)
    if "unbind" in call.target:
        parts: Sequence[Tensor] = places.unbind(_axis(call, 1, len(shape) + 1))
    else:
        cut = torch.chunk if "chunk" in call.target else torch.split
        parts = cut(places, call.args[1], _axis(call, 2, len(shape) + 1))
    recipe = Decomposition(shape)
    recipe.several = tuple(recipe.add(Pick.of(part, shape), 0) for part in parts)
    return recipe


@rule("aten.pad.default", "aten.constant_pad_nd.default")
def _pad(call: Call) -> Pick | Decomposition:
    shape, sides = call.in_shapes[0], list(call.get(1, "pad"))
    constant = "constant_pad" in call.target
    value = float((call.get(2, "value", 0) if constant else call.get(3, "value")) or 0)
    if not constant and call.get(2, "mode", "constant") != "constant":
        raise ValueError("only padding with a constant is supported")
    if len(sides) > 2 * len(shape):
        raise ValueError("the batch axis cannot be padded")
    places = F.pad(places_of(shape, call.like), sides, value=NOTHING)
    pick = Pick.of(places, shape)
    if value == 0:
        return pick
    recipe = Decomposition(shape)
    shift = (places == NOTHING).to(call.like).unsqueeze(0) * value
    recipe.add(Elementwise(None, shift, pick.out_shape), recipe.add(pick, 0))
    return recipe


@rule("aten.expand.default")
def _expand(call: Call) -> Pick:
    shape = call.in_shapes[0]
    return broadcast((1,) * (len(call.out_shape) - len(shape)) + shape, call.out_shape, call.like)


@rule("aten.flip.default")
def _flip(call: Call) -> Pick:
    shape = call.in_shapes[0]
    axes = [d % (len(shape) + 1) for d in call.get(1, "dims")]
    if 0 in axes:
        raise ValueError("the batch axis cannot be turned round")
    return Pick.of(places_of(shape, call.like).flip([a - 1 for a in axes]), shape)
