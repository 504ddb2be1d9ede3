"""A product of many rows with one matrix that leaves out what is 0.

Coefficients at units that are off over the whole set are exactly 0, and networks trained for robustness have many that
are off for all samples of a batch. And most rows of a bound do not reach the loss: of all distances to the envelope
only the smallest few count, and those beyond the hinge not at all. Their gradients are exactly 0, and so is all that
they would add.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
