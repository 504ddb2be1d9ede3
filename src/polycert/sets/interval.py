"""Intervals, directed rounding, and the rounding-error terms that make a computed bound a proof.

The standard model of floating point: each operation is exact up to a factor `1 + delta` with `|delta| <= u`, and up to
an underflow below the smallest normal number. A sum of `n` products, in any order, fused or not, is then wrong by at
most `gamma(n) = n u / (1 - n u)` times the sum of the terms' absolute values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

# Library functions (tanh, exp, atan, asinh, pow) are assumed to be accurate to this many units in the last place.
LIBRARY_ULPS = 8
# A factor for the rounding of the error terms themselves.
SAFETY = 1.05


@dataclass(frozen=True)
class Rounding:
    """The error terms of one floating-point type, for passes over a graph with `depth` operations."""

    dtype: torch.dtype
    depth: int

    @property
    def unit(self) -> float:
        """The unit roundoff u."""
        return torch.finfo(self.dtype).eps / 2

    @property
    def tiny(self) -> float:
        """An absolute term for many underflows, far below any value of interest."""
        return torch.finfo(self.dtype).tiny * 2**20

    @property
    def smallest(self) -> float:
        """The most that one product can lose by underflow: the smallest normal number."""
        return torch.finfo(self.dtype).tiny

    def gamma(self, terms: int) -> float:
        """The relative error of a sum of `terms` products and of the pass's own additions after it."""
        product = (terms + self.depth) * self.unit
        return SAFETY * product / (1 - product)

    def usable(self, terms: int) -> bool:
        """Whether the relative errors are so far below 1 that `SAFETY` covers their products."""
        return (terms + self.depth) * self.unit < 0.01

    def library(self, size: Tensor) -> Tensor:
        """The error of one library call and a few operations on values of this absolute size, elementwise."""
        return size * (4 * LIBRARY_ULPS * self.unit) + self.tiny


def at_least(values: Tensor) -> Tensor:
    """Computed lower bounds, with -inf in place of +inf (an overflow) and NaN, which bound nothing.

    Every bound of a hidden unit, an output or a margin goes through this function or `at_most` before it is compared
    with a threshold. So a value that is not finite never proves anything.
    """
    return values.nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)


def at_most(values: Tensor) -> Tensor:
    """Computed upper bounds, with +inf in place of -inf and NaN."""
    return values.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=torch.inf)


def outward(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The interval `[lower, upper]` with both ends moved outward to the next floating-point number."""
    inf = torch.tensor(torch.inf, dtype=lower.dtype, device=lower.device)
    return torch.nextafter(lower, -inf), torch.nextafter(upper, inf)


def round_down(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in `dtype`, rounded down."""
    return -round_up(-values, dtype)


def round_up(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in `dtype`, rounded up."""
    converted = values.to(dtype)
    inf = torch.tensor(torch.inf, dtype=dtype, device=values.device)
    return torch.where(converted.to(values.dtype) < values, torch.nextafter(converted, inf), converted)


@lru_cache(maxsize=1024)
def number_up(value: float, dtype: torch.dtype) -> float:
    """The number rounded up to one that `dtype` holds."""
    return float(round_up(torch.tensor(value, dtype=torch.float64), dtype))


def difference_up(difference: Tensor) -> Tensor:
    """An upper bound of a difference `a - b >= 0`, given its computed value; 0 stays 0.

    The computed value has one rounding error, or none where it is subnormal and the product below changes nothing.
    """
    return difference * (1 + 2 * torch.finfo(difference.dtype).eps)


def holds(dtype: torch.dtype, values: Tensor) -> bool:
    """Whether `dtype` holds all values exactly."""
    return bool((values.to(dtype).double() == values.double()).all())


class Interval(NamedTuple):
    """Elementwise bounds of a node's value; both ends are `[batch, *shape]`."""

    lower: Tensor
    upper: Tensor

    @property
    def magnitude(self) -> Tensor:
        """The largest absolute value in the interval, elementwise."""
        return torch.maximum(self.lower.abs(), self.upper.abs())

    def middle(self, rigorous: bool) -> tuple[Tensor, Tensor]:
        """Centre and half-width. If `rigorous`, the half-width reaches both ends from the rounded centre."""
        centre = (self.lower + self.upper) / 2
        if not rigorous:
            return centre, (self.upper - self.lower) / 2
        return centre, torch.maximum(self.upper - centre, centre - self.lower)

    def meet(self, other: Interval) -> Interval:
        """The intersection with other bounds of the same values.

        Rounding in a pass that is not rigorous may make two intervals miss each other: one point is left then.
        """
        lower = torch.maximum(self.lower, other.lower)
        return Interval(lower, torch.maximum(torch.minimum(self.upper, other.upper), lower))

    def of(self, samples: Tensor) -> Interval:
        """The bounds of some samples."""
        return Interval(self.lower[samples], self.upper[samples])

    @property
    def known(self) -> Interval:
        """The interval with infinite ends in place of those that bound nothing: see `at_least`."""
        return Interval(at_least(self.lower), at_most(self.upper))
