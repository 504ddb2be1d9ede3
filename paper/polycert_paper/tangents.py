"""Table 6: the points where lines of a given slope touch sigmoid and tanh, by the paper's formulas and by ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np
import torch

from polycert.rules.s_shaped import Tanh
from polycert_paper.table import Table, TableCell, TableColumn, TableLine, compared

SHARES = ("0.96", "0.5", "1e-2", "1e-4", "1e-6", "1e-7")  # of the steepest slope
DIGITS = 3
NOTES = (
    "The touching points t_1 < 0 < t_2 of lines with slope d, given as a share of the function's steepest slope. The "
    "paper: sigmoid t_1, t_2 = -log((1 - 2d ± sqrt(1 - 4d)) / 2d), tanh t_1, t_2 = log((2 - d ∓ 2 sqrt(1 - d)) / d) "
    "/ 2. Ours, with s the share: asinh(sqrt((1 - s) / s)), twice that for the sigmoid. All in float32; in brackets: "
    "minus the exact point (50 digits).",
    "One formula of each pair subtracts numbers that are nearly equal where d is small, and float32 keeps few or "
    "none of their digits; ours has no such difference.",
)
Formula = Callable[[np.float32, int], np.float32]


def _printed_sigmoid(d: np.float32, sign: int) -> np.float32:
    """Return the touching point of the sigmoid by the paper's formula."""
    one, two, four = np.float32(1), np.float32(2), np.float32(4)
    return np.float32(-np.log((-(two * d - one) - np.float32(sign) * np.sqrt(one - four * d)) / (two * d)))


def _printed_tanh(d: np.float32, sign: int) -> np.float32:
    """Return the touching point of tanh by the paper's formula."""
    one, two = np.float32(1), np.float32(2)
    return np.float32(np.log((-(d - two) + np.float32(sign) * two * np.sqrt(one - d)) / d) / two)


@dataclass(frozen=True)
class _Curve:
    """A curve `shift + outer tanh(inner z)`, and the paper's formula for its touching points (sign -1: t_1, 1: t_2)."""

    name: str
    ours: Tanh
    printed: Formula

    def touching(self, slope: np.float32, sign: int) -> float:
        """Return the touching point by the rule that certification uses."""
        share = torch.tensor(float(slope)) / (self.ours.outer * self.ours.inner)
        return sign * self.ours.tangent(share).item() / self.ours.inner

    def exact(self, slope: np.float32, sign: int) -> Decimal:
        """Return the touching point to 50 digits, for the slope that float32 holds."""
        with localcontext() as context:
            context.prec = 50
            root = (1 - Decimal(float(slope)) / Decimal(self.ours.outer * self.ours.inner)).sqrt()
            return sign * ((1 + root) / (1 - root)).ln() / (2 * Decimal(self.ours.inner))


CURVES = (
    _Curve("sigmoid", Tanh((), shift=0.5, outer=0.5, inner=0.5), _printed_sigmoid),
    _Curve("tanh", Tanh(()), _printed_tanh),
)


def tangent_table() -> Table:
    """Return the table, with both formulas beside the exact points, for steep and flat lines."""
    lines = [line for curve in CURVES for sign in (-1, 1) for line in _lines(curve, sign)]
    columns = tuple(TableColumn(f"d / steepest = {share}") for share in SHARES)
    return Table("table6", "touching points of sigmoid and tanh", columns, tuple(lines), NOTES, label="point")


def _lines(curve: _Curve, sign: int) -> list[TableLine]:
    """Return the three lines of a touching point."""
    steepest = curve.ours.outer * curve.ours.inner
    slopes = [np.float32(steepest * float(share)) for share in SHARES]
    exact = [_text(curve.exact(slope, sign)) for slope in slopes]
    with np.errstate(all="ignore"):
        printed = [_text(float(curve.printed(slope, sign))) for slope in slopes]
    ours = [_text(curve.touching(slope, sign)) for slope in slopes]
    name = f"{curve.name}, t_{1 if sign < 0 else 2}"
    return [
        TableLine("", name, "exact", tuple(map(TableCell, exact))),
        TableLine("", name, "paper's formula", tuple(map(_cell, printed, exact))),
        TableLine("", name, "ours", tuple(map(_cell, ours, exact))),
    ]


def _cell(point: str, exact: str) -> TableCell:
    """Return a point's cell, with its difference from the exact point if it is finite."""
    return compared(point, exact) if Decimal(point).is_finite() else TableCell(point)


def _text(value: float | Decimal) -> str:
    """Return a number with the digits of the table."""
    return f"{value:.{DIGITS}f}"
