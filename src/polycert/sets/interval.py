"""Bounds of values, entry by entry, and the rounding-error terms that make a computed bound a proof.

The standard model of floating point: each operation is exact up to a factor `1 + delta`, `|delta| <= u`, plus an
underflow below the smallest normal number. A sum of products of `n` terms, in whatever order, fused or not, is then
wrong by at most `gamma(n) = n u / (1 - n u)` times the sum of the terms' sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

# Library functions (tanh, exp, atan, asinh, pow) are taken to be accurate to this many units in the last place.
LIBRARY_ULPS = 8
# Room for the rounding of the error terms themselves.
SAFETY = 1.05


@dataclass(frozen=True)
class Rounding:
    """Error terms of one floating-point type for passes over a graph of `depth` operations."""

    dtype: torch.dtype
    depth: int

    @property
    def unit(self) -> float:
        """Unit roundoff u."""
        return torch.finfo(self.dtype).eps / 2

    @property
    def tiny(self) -> float:
        """An absolute allowance for underflow, far below anything that matters."""
        return torch.finfo(self.dtype).tiny * 2**20

    @property
    def smallest(self) -> float:
        """What a product may lose to underflow: the smallest normal number, as subnormal ones may be flushed."""
        return torch.finfo(self.dtype).tiny

    def gamma(self, terms: int) -> float:
        """Relative error of a sum of `terms` products, with the pass's own additions on top."""
        product = (terms + self.depth) * self.unit
        return SAFETY * product / (1 - product)

    def usable(self, terms: int) -> bool:
        """Whether the terms are small against 1, so that `SAFETY` covers what they neglect."""
        return (terms + self.depth) * self.unit < 0.01

    def library(self, size: Tensor) -> Tensor:
        """Error of one library call and a few operations on values of the given size."""
        return size * (4 * LIBRARY_ULPS * self.unit) + self.tiny


def at_least(values: Tensor) -> Tensor:
    """Computed lower bounds, those that say nothing made -inf: a sum that overflowed to +inf, and NaN.

    Every bound of a hidden unit, of an output and of a margin passes here or through `at_most` before it is compared
    with anything: nothing that is not finite is ever above a threshold.
    """
    return torch.where(values < torch.inf, values, -torch.inf)


def at_most(values: Tensor) -> Tensor:
    """The same for computed upper bounds."""
    return torch.where(values > -torch.inf, values, torch.inf)


def outward(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The next representable interval around `[lower, upper]`."""
    inf = torch.tensor(torch.inf, dtype=lower.dtype, device=lower.device)
    return torch.nextafter(lower, -inf), torch.nextafter(upper, inf)


def round_down(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to `dtype` without ever going up."""
    return -round_up(-values, dtype)


def round_up(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to `dtype` without ever going down."""
    converted = values.to(dtype)
    inf = torch.tensor(torch.inf, dtype=dtype, device=values.device)
    return torch.where(converted.to(values.dtype) < values, torch.nextafter(converted, inf), converted)


@lru_cache(maxsize=1024)
def number_up(value: float, dtype: torch.dtype) -> float:
    """A number that `dtype` holds, none below the one given."""
    return float(round_up(torch.tensor(value, dtype=torch.float64), dtype))


def difference_up(difference: Tensor) -> Tensor:
    """A computed difference `a - b >= 0` made no smaller than the true one; 0 stays 0.

    It is wrong by one rounding, or exact where it is so small that the product would round to itself.
    """
    return difference * (1 + 2 * torch.finfo(difference.dtype).eps)


def holds(dtype: torch.dtype, values: Tensor) -> bool:
    """Whether numbers survive conversion to a type."""
    return bool((values.to(dtype).double() == values.double()).all())


class Interval(NamedTuple):
    """Elementwise bounds of a node's value, each `[batch, *shape]`."""

    lower: Tensor
    upper: Tensor

    @property
    def magnitude(self) -> Tensor:
        """The largest absolute value inside."""
        return torch.maximum(self.lower.abs(), self.upper.abs())

    def middle(self, rigorous: bool) -> tuple[Tensor, Tensor]:
        """Centre and half-width; if `rigorous`, one that reaches both ends wherever the centre was rounded to."""
        centre = (self.lower + self.upper) / 2
        if not rigorous:
            return centre, (self.upper - self.lower) / 2
        return centre, torch.maximum(self.upper - centre, centre - self.lower)

    @property
    def known(self) -> Interval:
        """The same with ends that say nothing moved outward: see `at_least`."""
        return Interval(at_least(self.lower), at_most(self.upper))
