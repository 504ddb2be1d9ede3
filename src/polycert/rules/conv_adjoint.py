"""The transposed convolution of many rows, which is the cost of pulling dense rows through a convolution.

With a stride, `conv_transpose2d` has no fast kernel on a CPU. But all pixels with the same remainder by the stride see
the same taps. So it is one plain convolution to `stride^2` times as many channels, whose pixels are then interleaved.
Rows are computed in blocks of a few fixed sizes. They are small enough for the cache, and few enough for the library to
prepare each size once.

Products of many rows with one matrix leave out what is 0. Coefficients at units that are off over the whole set are
exactly 0, and a network trained for robustness has many units that are off for all samples of a batch. Also, most rows
of a bound do not reach the loss. Only the few smallest distances to the envelope count, and none beyond the hinge. The
gradients of the other rows are exactly 0, and so is all that they would add.
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
BLOCK, STEP = 128, 8  # most rows of a block; the last block is padded to a multiple of the second number
CACHED = 2**20  # entries of a block that stay in the cache between the library's own passes over them


class ConvGeometry(NamedTuple):
    """How the convolution itself moves, and the shape of its input, to which the rows are pulled."""

    in_shape: Shape
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int


class Transposed(torch.autograd.Function):
    """The transposed convolution `[rows, *out_shape]` to `[rows, *in_shape]`. Its gradient is the convolution."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, kernel: Tensor | None, geometry: ConvGeometry) -> Tensor:
        """Compute block by block into one result; `kernel` is the weight `interleaved`."""
        ctx.save_for_backward(rows, weight)
        ctx.geometry = geometry
        image = rows.new_empty(rows.shape[0], *geometry.in_shape)
        if kernel is not None and not _covered(geometry, _result_size(rows, kernel)):
            image.zero_()
        for part in blocks(rows, image):
            if kernel is None:
                image[part] = _transpose_unstrided(rows[part], weight, geometry)
            else:
                _transpose_block(padded(rows[part]), kernel, image[part], geometry)
        return image

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """Convolve the same blocks for the gradient of the rows, and multiply both for the gradient of the weights."""
        rows, weight = ctx.saved_tensors
        _, *shape = ctx.geometry
        whole, nonzero = rows.shape, nonzero_rows(gradient)
        if nonzero is not None:
            gradient, rows = gradient[nonzero], rows[nonzero]
        by_rows = torch.empty_like(rows) if ctx.needs_input_grad[0] else None
        by_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for part in blocks(rows, gradient):
            piece = padded(gradient[part])
            if by_rows is not None:
                by_rows[part] = F.conv2d(piece, weight, None, *shape)[: len(rows[part])]
            if by_weight is not None:
                by_weight += conv2d_weight(piece, weight.shape, padded(rows[part]), *shape)
        return scattered(by_rows, nonzero, whole), by_weight, None, None


class Overlaid(torch.autograd.Function):
    """Multiply lines `[n, lines, a]` by one matrix `[a, b]`, and add the products up into `[n, length]`.

    The product of each line lies `step` entries further on than that of the line before.
    """

    @staticmethod
    def forward(ctx: Any, lines: Tensor, matrix: Tensor, step: int, length: int) -> Tensor:
        """Add the products up in place."""
        ctx.save_for_backward(lines, matrix)
        ctx.step = step
        wide = lines.new_zeros(lines.shape[0], length)
        for k, line in enumerate(lines.unbind(1)):
            wide[:, k * step : k * step + matrix.shape[1]].addmm_(line, matrix)
        return wide

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        """Multiply line by line into one result."""
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
    """Return slices of so many rows that the larger side of a block stays in the cache. The last one may be smaller."""
    count = rows.shape[0]
    larger = max(math.prod(rows.shape[1:]), math.prod(image.shape[1:]), 1)
    step = min(BLOCK, max(1, CACHED // larger // STEP) * STEP)
    return [slice(begin, min(begin + step, count)) for begin in range(0, count, step)]


def padded(rows: Tensor) -> Tensor:
    """Return a block with rows of zeros up to a multiple of `STEP`; very few rows stay as they are."""
    lacking = -rows.shape[0] % STEP if rows.shape[0] > 2 * STEP else 0
    return F.pad(rows, (0, 0, 0, 0, 0, 0, 0, lacking)) if lacking else rows.contiguous()


def interleaved(weight: Tensor, geometry: ConvGeometry) -> Tensor | None:
    """Return the kernel of the plain convolution `[in * sh * sw, out / groups, th, tw]`.

    Its tap t for remainder r is the entry `t * stride + r` of the weights, reversed. It is None without a stride, where
    the library's own transposed convolution is as fast or faster.
    """
    if geometry.stride == (1, 1):
        return None
    order, gaps = _interleaving(tuple(weight.shape), geometry.stride, geometry.dilation, geometry.groups, weight.device)
    entries = weight.detach().flatten()
    return (F.pad(entries, (1, 0)) if gaps else entries).index_select(0, order.flatten()).view(order.shape)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # the result is cached, and also used where gradients are taken
def _interleaving(shape: Shape, stride: Pair, dilation: Pair, groups: int, device: torch.device) -> tuple[Tensor, bool]:
    """Return the places of the entries of `interleaved` among the weights, and whether some entries are in no weight.

    Those entries are 0, and then the weights are counted from 1. The places are found by moving numbers instead of
    weights, once for a shape.
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
    """Return the weights with the gaps of a dilation written out: `[out, in / groups, kh, kw]`."""
    if dilation == (1, 1):
        return weight
    kh, kw = ((d * (k - 1) + 1) for d, k in zip(dilation, weight.shape[2:], strict=True))
    wide = weight.new_zeros(*weight.shape[:2], kh, kw)
    wide[:, :, :: dilation[0], :: dilation[1]] = weight
    return wide


def _transpose_unstrided(rows: Tensor, weight: Tensor, geometry: ConvGeometry) -> Tensor:
    """Compute one block by the library's own transposed convolution."""
    _, stride, padding, dilation, groups = geometry
    return F.conv_transpose2d(rows, weight, None, stride, padding, 0, groups, dilation)


def _transpose_block(rows: Tensor, kernel: Tensor, image: Tensor, geometry: ConvGeometry) -> None:
    """Compute one block by the plain convolution, and copy each remainder's pixels to their places."""
    th, tw = kernel.shape[2:]
    found = F.conv2d(rows, kernel, padding=(th - 1, tw - 1), groups=geometry.groups).contiguous()
    count, (channels, height, width), (sh, sw) = image.shape[0], geometry.in_shape, geometry.stride
    high, wide = found.shape[2:]
    size = high * wide
    # A view by strides takes one call instead of one for every axis.
    for to, source, lines, columns in _places(geometry, (high, wide)):
        extent = (count, channels, lines, columns)
        pixels = image.as_strided(
            extent, (channels * height * width, height * width, sh * width, sw), image.storage_offset() + to
        )
        strides = (channels * sh * sw * size, sh * sw * size, wide, 1)
        pixels.copy_(found.as_strided(extent, strides, found.storage_offset() + source))


def _result_size(rows: Tensor, kernel: Tensor) -> Pair:
    """Return the height and width of the plain convolution's result."""
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
    """Return for each remainder where its pixels begin in the image, and where the results for them begin in theirs.

    Then follow the numbers of lines and columns.
    """
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
    """Return along one axis, for each remainder, the slice of its pixels and the slice of the results for them.

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


DENSE_SHARE = 3 / 4  # if more of the rows or columns are nonzero, picking them out costs more than it saves


class RowProduct(torch.autograd.Function):
    """The product `[rows, n] @ [n, m]` without what is 0."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        """Multiply the columns that are not all 0."""
        ctx.save_for_backward(rows, weight)
        nonzero = nonzero_columns(rows)
        return rows @ weight if nonzero is None else rows.index_select(1, nonzero) @ weight.index_select(0, nonzero)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Multiply the rows whose gradient is not all 0."""
        rows, weight = ctx.saved_tensors
        shape, nonzero = rows.shape, nonzero_rows(gradient)
        if nonzero is not None:
            gradient, rows = gradient[nonzero], rows[nonzero]
        by_rows = gradient @ weight.T if ctx.needs_input_grad[0] else None
        by_weight = _by_weight(rows, gradient) if ctx.needs_input_grad[1] else None
        return scattered(by_rows, nonzero, shape), by_weight


def _by_weight(rows: Tensor, gradient: Tensor) -> Tensor:
    """Return `rows^T gradient`."""
    nonzero = nonzero_columns(rows)
    if nonzero is None:
        return rows.T @ gradient
    found = rows.index_select(1, nonzero).T @ gradient
    return gradient.new_zeros(rows.shape[1], gradient.shape[1]).index_copy_(0, nonzero, found)


def nonzero_columns(rows: Tensor) -> Tensor | None:
    """Return the indices of the columns of `[rows, n]` that are not all 0, or None if nearly all are."""
    if rows.shape[0] == 0:
        return None
    nonzero = rows.abs().amax(0).nonzero().squeeze(1)  # NaN is not 0
    return nonzero if nonzero.shape[0] <= DENSE_SHARE * rows.shape[1] else None


def nonzero_rows(gradient: Tensor) -> Tensor | None:
    """Return the indices of the rows of `[rows, ...]` that are not all 0, or None if nearly all are."""
    nonzero = (gradient.flatten(1) != 0).any(1).nonzero().squeeze(1)
    return nonzero if len(nonzero) <= DENSE_SHARE * len(gradient) else None


def scattered(rows: Tensor | None, nonzero: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """Return the rows at their places in `shape`, with zeros elsewhere."""
    return rows if rows is None or nonzero is None else rows.new_zeros(shape).index_copy_(0, nonzero, rows)
