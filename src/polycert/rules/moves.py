"""Calls that only move, pick or join entries: reshapes, slices, zero padding, broadcasting, concatenation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polycert.rules.affine import Elementwise
from polycert.rules.examples import Example, FunctionLayer, calls, mlp, op_named, through
from polycert.rules.indexing import NOTHING, Concat, Permute, Pick, Reshape, broadcast, places_of
from polycert.rules.op import Decomposition
from polycert.rules.registry import Call, Value, rule


@rule(
    "aten.reshape.default",
    "aten.flatten.using_ints",
    "aten.squeeze.default",
    "aten.detach.default",
    "aten.detach_.default",
    family="moves",
    onnx=("Identity", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Cast"),
    layers={"flatten": nn.Flatten},
    by_shape=("size", "shape", "start_dim", "end_dim", "dim", "sizes"),
    examples=(
        through("reshape", (2, 6), lambda z: z.reshape(-1, 3, 4).flatten(1), slow=True),
        calls("aten.view.default", [-1, 6], shape=(2, 3)),
        calls("aten._unsafe_view.default", [-1, 6], shape=(2, 3)),
        calls("aten.unflatten.int", 1, [2, 3], shape=(6,)),
        calls("aten.squeeze.dim", 1, shape=(1, 4)),
        calls("aten.squeeze.dims", [1, 2], shape=(1, 4)),
        Example("squeeze", (1, 4), lambda: nn.Sequential(nn.Linear(4, 3), FunctionLayer(torch.squeeze)), slow=True),
        calls("aten.unsqueeze.default", 1),
        *(calls(f"aten.{name}.default") for name in ("contiguous", "clone", "alias")),
        through("detach", (5,), lambda z: z - z.relu().detach(), slow=True),
        through("detach_", (5,), lambda z: z - z.relu().detach_(), slow=True),
    ),
)
def _reshape(call: Call) -> Reshape:
    return Reshape(call.in_shapes[0], call.out_shape)


@rule(
    "aten.dropout.default",
    family="moves",
    onnx=("Dropout",),
    by_shape=("p",),
    examples=(
        Example("dropout", (5,), lambda: nn.Sequential(nn.Dropout(0.4), mlp(nn.ReLU()))),
        calls("aten.feature_dropout.default", 0.4, False),
        calls("aten.alpha_dropout.default", 0.4, False),
    ),
)
def _dropout(call: Call) -> Reshape:
    if call.get(2, "train") is not False:
        raise ValueError("dropout that is on in evaluation (train=True) is random: a network must not be")
    return Reshape(call.in_shapes[0], call.out_shape)


@rule(
    "aten.permute.default",
    family="moves",
    onnx=("Transpose",),
    examples=(through("permute", (2, 3, 4), lambda z: z.permute(0, 2, 3, 1).relu().transpose(1, 2), slow=True),),
)
def _permute(call: Call) -> Permute:
    rank = len(call.out_shape) + 1
    dims = [d % rank for d in call.get(1, "dims")]
    if dims[0] != 0:
        raise ValueError("the batch axis must stay first")
    return Permute(call.in_shapes[0], call.out_shape, tuple(d - 1 for d in dims[1:]))


@rule(family="moves", examples=(calls("aten.transpose.int", 1, 2, shape=(2, 3)),))
def _transpose(call: Call) -> Permute:
    rank = len(call.out_shape) + 1
    first, second = (call.get(k, name) % rank for k, name in ((1, "dim0"), (2, "dim1")))
    if 0 in (first, second):
        raise ValueError("the batch axis must stay first")
    order = list(range(rank - 1))
    order[first - 1], order[second - 1] = second - 1, first - 1
    return Permute(call.in_shapes[0], call.out_shape, tuple(order))


def _axis(call: Call, position: int, rank: int) -> int:
    """Return an axis counted from the first one after the batch."""
    axis = int(call.get(position, "dim", 0)) % rank
    if axis == 0:
        raise ValueError("the batch axis cannot be cut or joined")
    return axis - 1


@rule(
    "aten.cat.default",
    "aten.concat.default",
    family="moves",
    onnx=("Concat",),
    examples=(
        through("concat", (5,), lambda z: torch.cat([z, z.relu()], 1)),
        through("concat-name", (5,), lambda z: torch.concat([z, z.relu()], 1), slow=True),
    ),
)
def _cat(call: Call) -> Concat:
    parts = call.args[0]
    if not all(isinstance(part, Value) for part in parts):
        raise ValueError("joining constants to a node is not supported")
    return Concat(call.in_shapes, _axis(call, 1, len(call.out_shape) + 1))


@rule("aten.stack.default", family="moves", examples=(through("stack", (4,), lambda z: torch.stack([z, z.relu()], 2)),))
def _stack(call: Call) -> Decomposition:
    axis = _axis(call, 1, len(call.out_shape) + 1)
    decomposition = Decomposition(*call.in_shapes)
    shape = call.in_shapes[0]
    tall = (*shape[:axis], 1, *shape[axis:])
    parts = [decomposition.add(Reshape(shape, tall), k) for k in range(len(call.in_shapes))]
    decomposition.add(Concat((tall,) * len(parts), axis), *parts)
    return decomposition


@rule(
    "aten.slice.Tensor",
    family="moves",
    onnx=("Slice",),
    examples=(through("slice", (3, 6), lambda z: (z[:, 1:, ::2] - z[:, 0, 1:4].unsqueeze(1)).relu()),),
)
def _slice(call: Call) -> Pick:
    shape = call.in_shapes[0]
    axis = _axis(call, 1, len(shape) + 1)
    ends = slice(call.get(2, "start"), call.get(3, "end"), call.get(4, "step", 1))
    places = places_of(shape, call.like)
    return Pick.of(places[(slice(None),) * axis + (ends,)], shape)


@rule(family="moves", onnx=("Gather",), examples=(calls("aten.select.int", 1, -1, shape=(2, 3)),))
def _select(call: Call) -> Pick:
    shape = call.in_shapes[0]
    axis = _axis(call, 1, len(shape) + 1)
    picked = places_of(shape, call.like).select(axis, call.get(2, "index"))
    return Pick.of(picked.reshape(call.out_shape or (1,)), shape)


@rule(
    "aten.split_with_sizes.default",
    "aten.chunk.default",
    "aten.unbind.int",
    family="moves",
    onnx=("Split",),
    examples=(
        through("split", (6,), lambda z: z.chunk(2, 1)[0].relu() - z.split([3, 3], 1)[1]),
        through("unbind", (2, 3), lambda z: z.unbind(1)[0].relu() - z.unbind(1)[1], slow=True),
        calls("aten.split.Tensor", 3, 1),
    ),
)
def _split(call: Call) -> Decomposition:
    shape = call.in_shapes[0]
    places = places_of(shape, call.like)
    if "unbind" in call.target:
        parts: Sequence[Tensor] = places.unbind(_axis(call, 1, len(shape) + 1))
    else:
        cut = torch.chunk if "chunk" in call.target else torch.split
        parts = cut(places, call.args[1], _axis(call, 2, len(shape) + 1))
    decomposition = Decomposition(shape)
    decomposition.several = tuple(decomposition.add(Pick.of(part, shape), 0) for part in parts)
    return decomposition


@rule(
    "aten.pad.default",
    family="moves",
    onnx=("Pad",),
    examples=(
        through("pad", (1, 3, 3), lambda z: F.pad(F.pad(z, (1, 0, 2, 1)).relu(), (0, -1), value=0.3)),
        through("pad-value", (5,), lambda z: F.pad(z, (1, 2), value=0.7).relu()),
        calls("aten.constant_pad_nd.default", [1, -1], 0.3),
        through("pad-reflect", (1, 3, 4), lambda z: F.pad(z, (2, 1, 1, 0), "reflect").relu(), slow=True),
        through("pad-circular", (1, 3, 4), lambda z: F.pad(z, (2, 1, 1, 0), "circular").relu(), slow=True),
        through("pad-replicate", (2, 3), lambda z: F.pad(z, (1, 2), "replicate").relu(), slow=True),
    ),
)
def _pad(call: Call) -> Pick | Decomposition:
    shape, sides = call.in_shapes[0], list(call.get(1, "pad"))
    constant = "constant_pad" in call.target
    value = float((call.get(2, "value", 0) if constant else call.get(3, "value")) or 0)
    mode = "constant" if constant else call.get(2, "mode", "constant")
    if mode != "constant":
        return moved(call, lambda places: F.pad(places, sides, mode=mode))
    if len(sides) > 2 * len(shape):
        raise ValueError("the batch axis cannot be padded")
    places = F.pad(places_of(shape, call.like), sides, value=NOTHING)
    pick = Pick.of(places, shape)
    if value == 0:
        return pick
    decomposition = Decomposition(shape)
    shift = (places == NOTHING).to(call.like).unsqueeze(0) * value
    decomposition.add(Elementwise(None, shift, pick.out_shape), decomposition.add(pick, 0))
    return decomposition


@rule(
    "aten.expand.default",
    family="moves",
    onnx=("Expand",),
    by_shape=("size", "implicit"),
    examples=(through("expand", (1, 3), lambda z: (z.expand(-1, 2, -1) + z).relu(), slow=True),),
)
def _expand(call: Call) -> Pick:
    shape = call.in_shapes[0]
    return broadcast((1,) * (len(call.out_shape) - len(shape)) + shape, call.out_shape, call.like)


@rule("aten.flip.default", family="moves", examples=(through("flip", (2, 3), lambda z: (z.flip(2) - z).relu()),))
def _flip(call: Call) -> Pick:
    shape = call.in_shapes[0]
    axes = [d % (len(shape) + 1) for d in call.get(1, "dims")]
    if 0 in axes:
        raise ValueError("the batch axis cannot be turned round")
    return Pick.of(places_of(shape, call.like).flip([a - 1 for a in axes]), shape)


@rule(
    "aten.pixel_shuffle.default",
    "aten.pixel_unshuffle.default",
    "aten.channel_shuffle.default",
    "aten.upsample_nearest1d.vec",
    "aten.upsample_nearest2d.vec",
    family="moves",
    examples=(
        through("pixel-shuffle", (4, 2, 2), lambda z: F.pixel_unshuffle(F.pixel_shuffle(z, 2).relu(), 2)),
        through("channel-shuffle", (4, 1, 2), lambda z: torch.channel_shuffle(z, 2).relu(), slow=True),
        through("upsample", (1, 2, 3), lambda z: F.interpolate(z, scale_factor=2).relu(), slow=True),
        through("upsample-size", (2, 3), lambda z: F.interpolate(z, size=5).relu(), slow=True),
        calls("aten.roll.default", [1, 2], [1, 2], shape=(2, 3)),
        calls("aten.movedim.int", 1, 2, shape=(2, 3)),
    ),
)
def _moved(call: Call) -> Pick:
    rest, named = call.args[1:], {name: call.get(len(call.args), name) for name in call.kwargs}
    return moved(call, lambda places: op_named(call.target)(places, *rest, **named))


def moved(call: Call, move: Callable[[Tensor], Tensor]) -> Pick:
    """Return the op of a function that only moves entries, found by what it does to their places.

    It is given two samples, whose entries must stay apart.
    """
    shape = call.in_shapes[0]
    places = places_of(shape, call.like).double()
    first, *others = move(torch.stack([places, places + places.numel()]))
    if len(others) != 1 or not torch.equal(first + places.numel(), others[0]):
        raise ValueError("the batch axis must stay first, and the samples apart")
    return Pick.of(first.long(), shape)
