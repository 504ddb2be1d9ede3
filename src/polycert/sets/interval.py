"""Bounds of values, entry by entry."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polycert.sets.rounding import at_least, at_most


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
