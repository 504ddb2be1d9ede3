"""The transposed convolution of many rows: what pulling dense rows through a convolution costs.

With a stride `conv_transpose2d` has no fast kernel on a CPU. But all pixels that share a remainder by the stride see
the same taps, so it is one plain convolution to `stride^2` times as many channels, whose pixels are then interleaved.
Rows go through it in blocks of a few fixed sizes: small enough for the cache, few enough for the library to prepare
each size once.

Products of many rows with one matrix leave out what is 0. Coefficients at units that are off over the whole set are
exactly 0, and networks trained for robustness have many that are off for all samples of a batch. And most rows of a
bound do not reach the loss: of all distances to the envelope only the smallest few count, and those beyond the hinge
not at all. Their gradients are exactly 0, and so is all that they would add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_weight

from polycert.forms import Shape

Pair = tuple[int, int]
BLOCK, STEP = 128, 8  # rows at a time at most; the last ones are filled up to a multiple of the second
CACHED = 2**20  # numbers of a block that stay in the cache between the library's own passes over them


class ConvGeometry(NamedTuple):
    """Of the convolution itself, whose input the rows go back to."""

    in_shape: Shape
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int


class Transposed(torch.autograd.Function):
    """`[rows, *out_shape]` to `[rows, *in_shape]`; its gradient is the convolution."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, kernel: Tensor | None, geometry: ConvGeometry) -> Tensor:
        """Block by block into one result; `kernel` is the weight `interleaved`."""
        ctx.save_for_backward(rows, weight)
        ctx.geometry = geometry
        image = rows.new_empty(rows.shape[0], *geometry.in_shape)
        if kernel is not None and not _covered(geometry, _found(rows, kernel)):
            image.zero_()
        for part in blocks(rows, image):
            if kernel is None:
                image[part] = _transposed(rows[part], weight, geometry)
            else:
                _spread(filled(rows[part]), kernel, image[part], geometry)
        return image

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """The same blocks through the convolution, and the products of both for the weights."""
        rows, weight = ctx.saved_tensors
        _, *shape = ctx.geometry
        whole, live = rows.shape, live_rows(gradient)
        if live is not None:
            gradient, rows = gradient[live], rows[live]
        by_rows = torch.empty_like(rows) if ctx.needs_input_grad[0] else None
        by_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for part in blocks(rows, gradient):
            piece = filled(gradient[part])
            if by_rows is not None:
                by_rows[part] = F.conv2d(piece, weight, None, *shape)[: len(rows[part])]
            if by_weight is not None:
                by_weight += conv2d_weight(piece, weight.shape, filled(rows[part]), *shape)
        return spread_out(by_rows, live, whole), by_weight, None, None


class Overlaid(torch.autograd.Function):
    """`[n, lines, a]` times one matrix `[a, b]`, the result of each line `step` further on: `[n, length]`."""

    @staticmethod
    def forward(ctx: Any, lines: Tensor, matrix: Tensor, step: int, length: int) -> Tensor:
        """Added up in place."""
        ctx.save_for_backward(lines, matrix)
        ctx.step = step
        wide = lines.new_zeros(lines.shape[0], length)
        for k, line in enumerate(lines.unbind(1)):
            wide[:, k * step : k * step + matrix.shape[1]].addmm_(line, matrix)
        return wide

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        """Line by line, into one result."""
        lines, matrix = ctx.saved_tensors
        by_lines = torch.empty_like(lines)
        by_matrix = torch.zeros_like(matrix) if ctx.needs_input_grad[1] else None
        for k, line in enumerate(lines.unbind(1)):
            part = gradient[:, k * ctx.step : k * ctx.step + matrix.shape[1]]
            torch.mm(part, matrix.T, out=by_lines[:, k])
            if by_matrix is not None:
                by_matrix.addmm_(line.T, part)
        return by_lines, by_matrix, None, None


def blocks(rows: Tensor, image: Tensor) -> list[slice]:
    """Slices of so many rows that the larger side of a block stays in the cache, and what is left."""
    count = rows.shape[0]
    larger = max(math.prod(rows.shape[1:]), math.prod(image.shape[1:]), 1)
    step = min(BLOCK, max(1, CACHED // larger // STEP) * STEP)
    return [slice(begin, min(begin + step, count)) for begin in range(0, count, step)]


def filled(rows: Tensor) -> Tensor:
    """A block with rows of zeros up to a multiple of `STEP`; very few rows stay as they are."""
    lacking = -rows.shape[0] % STEP if rows.shape[0] > 2 * STEP else 0
    return F.pad(rows, (0, 0, 0, 0, 0, 0, 0, lacking)) if lacking else rows.contiguous()


def interleaved(weight: Tensor, geometry: ConvGeometry) -> Tensor | None:
    """`[in * sh * sw, out / groups, th, tw]`: tap t of remainder r is the kernel's entry `t * stride + r`, reversed.

    None without a stride, where the library's own transposed convolution is as fast or faster.
    """
    if geometry.stride == (1, 1):
        return None
    order, gaps = _interleaving(tuple(weight.shape), geometry.stride, geometry.dilation, geometry.groups, weight.device)
    entries = weight.detach().flatten()
    return (F.pad(entries, (1, 0)) if gaps else entries).index_select(0, order.flatten()).view(order.shape)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is kept here serves those who take gradients, too
def _interleaving(shape: Shape, stride: Pair, dilation: Pair, groups: int, device: torch.device) -> tuple[Tensor, bool]:
    """Where the entries of `interleaved` are found among the weights, and whether some are in no weight.

    Those are 0, and all others then counted from 1. Found by moving numbers in place of weights, once for a shape.
    """
    numbered = torch.arange(1, math.prod(shape) + 1, dtype=torch.int32, device=device).reshape(shape)
    kernel, (sh, sw) = dilated(numbered, dilation), stride
    per_group, kh, kw = kernel.shape[1:]
    th, tw = -(-kh // sh), -(-kw // sw)
    whole = F.pad(kernel, (0, tw * sw - kw, 0, th * sh - kh))
    whole = whole.reshape(groups, -1, per_group, th, sh, tw, sw).flip(3, 5)
    order = whole.permute(0, 2, 4, 6, 1, 3, 5).flatten(0, 3).contiguous()
    gaps = bool((order == 0).any())
    return order if gaps else order - 1, gaps


def dilated(weight: Tensor, dilation: Pair) -> Tensor:
    """The weights with the gaps of a dilation written out: `[out, in / groups, kh, kw]`."""
    if dilation == (1, 1):
        return weight
    kh, kw = ((d * (k - 1) + 1) for d, k in zip(dilation, weight.shape[2:], strict=True))
    wide = weight.new_zeros(*weight.shape[:2], kh, kw)
    wide[:, :, :: dilation[0], :: dilation[1]] = weight
    return wide


def _transposed(rows: Tensor, weight: Tensor, geometry: ConvGeometry) -> Tensor:
    """One block by the library's own."""
    _, stride, padding, dilation, groups = geometry
    return F.conv_transpose2d(rows, weight, None, stride, padding, 0, groups, dilation)


def _spread(rows: Tensor, kernel: Tensor, image: Tensor, geometry: ConvGeometry) -> None:
    """One block: the convolution, then each remainder's pixels to their places."""
    th, tw = kernel.shape[2:]
    found = F.conv2d(rows, kernel, padding=(th - 1, tw - 1), groups=geometry.groups).contiguous()
    count, (channels, height, width), (sh, sw) = image.shape[0], geometry.in_shape, geometry.stride
    high, wide = found.shape[2:]
    size = high * wide
    # Views by their strides: one call each instead of one for every axis.
    for to, source, lines, columns in _places(geometry, (high, wide)):
        extent = (count, channels, lines, columns)
        pixels = image.as_strided(
            extent, (channels * height * width, height * width, sh * width, sw), image.storage_offset() + to
        )
        strides = (channels * sh * sw * size, sh * sw * size, wide, 1)
        pixels.copy_(found.as_strided(extent, strides, found.storage_offset() + source))


def _found(rows: Tensor, kernel: Tensor) -> Pair:
    """Height and width of the convolution's result."""
    high, wide = (size + taps - 1 for size, taps in zip(rows.shape[2:], kernel.shape[2:], strict=True))
    return high, wide


@cache
def _covered(geometry: ConvGeometry, found: Pair) -> bool:
    """Whether every pixel of the image is written."""
    sizes = [
        sum(len(range(size)[to]) for to, _ in _places_along(geometry, axis, found[axis]))
        for axis, size in enumerate(geometry.in_shape[1:])
    ]
    return tuple(sizes) == geometry.in_shape[1:]


@cache
def _places(geometry: ConvGeometry, found: Pair) -> list[tuple[int, int, int, int]]:
    """For each remainder, where its pixels begin in the image and the results for them in theirs, and how many."""
    lines, columns = (_places_along(geometry, axis, found[axis]) for axis in (0, 1))
    width, (high, wide) = geometry.in_shape[2], found
    return [
        (
            line.start * width + column.start,
            ((y * geometry.stride[1] + x) * high + first.start) * wide + left.start,
            first.stop - first.start,
            left.stop - left.start,
        )
        for y, (line, first) in enumerate(lines)
        for x, (column, left) in enumerate(columns)
    ]


def _places_along(geometry: ConvGeometry, axis: int, found: int) -> list[tuple[slice, slice]]:
    """Along one axis, for each remainder: its pixels, and the results for them.

    Result m is for pixel `m * stride + remainder - padding`.
    """
    stride, padding, size = geometry.stride[axis], geometry.padding[axis], geometry.in_shape[axis + 1]
    places = []
    for remainder in range(stride):
        first = max(0, -(-(padding - remainder) // stride))
        begin = first * stride + remainder - padding
        count = max(0, min(found - first, -(-(size - begin) // stride)))
        places.append(
            (slice(begin, begin + (count - 1) * stride + 1 if count else begin, stride), slice(first, first + count))
        )
    return places


MOST = 3 / 4  # of rows or columns; above this share, picking them out costs more than it saves


class RowProduct(torch.autograd.Function):
    """`[rows, n] @ [n, m]`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        """The product."""
        ctx.save_for_backward(rows, weight)
        live = live_columns(rows)
        return rows @ weight if live is None else rows.index_select(1, live) @ weight.index_select(0, live)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """By the rows whose gradient is not 0."""
        rows, weight = ctx.saved_tensors
        shape, live = rows.shape, live_rows(gradient)
        if live is not None:
            gradient, rows = gradient[live], rows[live]
        by_rows = gradient @ weight.T if ctx.needs_input_grad[0] else None
        by_weight = _by_weight(rows, gradient) if ctx.needs_input_grad[1] else None
        return spread_out(by_rows, live, shape), by_weight


def _by_weight(rows: Tensor, gradient: Tensor) -> Tensor:
    """`rows^T gradient`."""
    live = live_columns(rows)
    if live is None:
        return rows.T @ gradient
    found = rows.index_select(1, live).T @ gradient
    return gradient.new_zeros(rows.shape[1], gradient.shape[1]).index_copy_(0, live, found)


def live_columns(rows: Tensor) -> Tensor | None:
    """Indices of the columns of `[rows, n]` that are not all 0, or None if those are nearly all."""
    if rows.shape[0] == 0:
        return None
    live = rows.abs().amax(0).nonzero().squeeze(1)  # NaN is not 0
    return live if live.shape[0] <= MOST * rows.shape[1] else None


def live_rows(gradient: Tensor) -> Tensor | None:
    """Indices of the rows of `[rows, ...]` that are not all 0, or None if those are nearly all."""
    live = (gradient.flatten(1) != 0).any(1).nonzero().squeeze(1)
    return live if len(live) <= MOST * len(gradient) else None


def spread_out(rows: Tensor | None, live: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """The live rows in their places, the others 0."""
    return rows if rows is None or live is None else rows.new_zeros(shape).index_copy_(0, live, rows)
