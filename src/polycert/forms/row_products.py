"""Products of rows with values, sample by sample, with gradients that torch's own would give transposed and slowly."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from polycert.runtime.autograd import apply


def rows_dot(coef: Tensor, values: Tensor) -> Tensor:
    """`[batch or 1, rows, n] . [batch or 1, n]` without copying what is shared."""
    if coef.shape[0] == 1:
        return F.linear(values, coef.squeeze(0))  # `coef[0]` would have a gradient full of zeros
    if values.shape[0] == 1:
        return coef @ values.squeeze(0)
    found: Tensor = apply(_RowsDot, coef, values)
    return found


def rows_abs_dot(coef: Tensor, values: Tensor) -> Tensor:
    """As `rows_dot` with absolute coefficients."""
    if coef.shape[0] == 1 or values.shape[0] == 1:
        return rows_dot(coef.abs(), values)
    found: Tensor = apply(_RowsAbsDot, coef, values)
    return found


class _RowsDot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, coef: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(coef, values)
        return _each(coef, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        coef, values = ctx.saved_tensors
        by_coef = gradient.unsqueeze(2) * values.unsqueeze(1) if ctx.needs_input_grad[0] else None
        return by_coef, _sum(gradient, coef) if ctx.needs_input_grad[1] else None


class _RowsAbsDot(torch.autograd.Function):
    """The absolute values are not kept."""

    @staticmethod
    def forward(ctx: Any, coef: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(coef, values)
        return _each(coef.abs(), values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        coef, values = ctx.saved_tensors
        by_coef = (gradient.unsqueeze(2) * values.unsqueeze(1)).mul_(coef.sgn()) if ctx.needs_input_grad[0] else None
        return by_coef, _sum(gradient, coef.abs()) if ctx.needs_input_grad[1] else None


def _each(coef: Tensor, values: Tensor) -> Tensor:
    """Ten times faster than with the vector on the right."""
    return (values.unsqueeze(1) @ coef.transpose(1, 2)).squeeze(1)


def _sum(weights: Tensor, rows: Tensor) -> Tensor:
    """The rows of each sample, weighted and added up: `[batch, n]`."""
    return (weights.unsqueeze(1) @ rows).squeeze(1)
