"""Some neurons of a convolution, others for each sample, seen from an earlier layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from polycert.forms.dense import Dense
from polycert.forms.windowed import Windowed, places


@dataclass(frozen=True)
class Windows(Windowed):
    """Rows at points of the grid that differ from sample to sample; `coef`: `[batch, rows, *window]`."""

    selection: Tensor  # [batch, rows]: the entries that the rows are
    line: Tensor  # [batch, rows]: the grid point of each row
    column: Tensor

    def shares_points(self, other: Windowed) -> bool:
        """Both come from the same selection."""
        return isinstance(other, Windows) and other.selection is self.selection

    def align(self, values: Tensor) -> Tensor:
        """`[batch, rows, terms]`: each row's own window."""
        windows = self.tiles(values).flatten(3).flatten(0, 2)  # of all points, so that each is a contiguous run
        point = self._point
        if values.shape[0] > 1:
            first = torch.arange(values.shape[0], device=values.device) * (self.grid[0] * self.grid[1])
            point = point + first.unsqueeze(1)
        found: Tensor = windows.index_select(0, point.flatten()).unflatten(0, point.shape)
        return found

    @cached_property
    def _point(self) -> Tensor:
        """Each row's point, counted along the grid: `[batch, rows]`."""
        return self.line * self.grid[1] + self.column

    def collect(self, sums: Tensor) -> Tensor:
        """Already `[batch, rows]`."""
        return sums

    def dot(self, values: Tensor) -> Tensor:
        """Products and a sum."""
        return (self.coefficients() * self.align(values)).sum(2)

    def abs_dot(self, values: Tensor) -> Tensor:
        """As `dot` with absolute coefficients."""
        return (self.coefficients().abs() * self.align(values)).sum(2)

    def dense(self) -> Dense:
        """Scatter every window to its place."""
        place = self.align(places(self.shape, self.coef)).long()
        return Dense(self.scattered(self.coefficients(), place).unflatten(2, self.shape))
