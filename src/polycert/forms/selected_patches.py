"""Some neurons of a convolution, others for each sample, seen from an earlier layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from polycert.forms.dense import Dense
from polycert.forms.form import Form
from polycert.forms.windowed import Windowed, places


@dataclass(frozen=True)
class SelectedPatches(Windowed):
    """Rows at points of the grid that differ from sample to sample; `coef`: `[batch, rows, *window]`."""

    selection: Tensor  # [batch, rows]: the entries that the rows are
    line: Tensor  # [batch, rows]: the grid point of each row
    column: Tensor

    def shares_points(self, other: Windowed) -> bool:
        """Both come from the same selection."""
        return isinstance(other, SelectedPatches) and other.selection is self.selection

    def align(self, values: Tensor) -> Tensor:
        """`[batch, rows, terms]`: each row's own window."""
        return self._aligned(values)[0]

    def _aligned(self, *values: Tensor) -> Tensor:
        """`align` of several values of one shape at once: `[values, batch, rows, terms]`."""
        batch = values[0].shape[0]
        stacked = values[0] if len(values) == 1 else torch.cat(values)
        windows = self.tiles(stacked).flatten(3).flatten(0, 2)  # of all points, so that each is a contiguous run
        point = self._point.expand(len(values), -1, -1)
        if stacked.shape[0] > 1:
            first = torch.arange(stacked.shape[0], device=stacked.device) * (self.grid[0] * self.grid[1])
            point = point + first.reshape(len(values), batch, 1)
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

    def dots(self, values: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Looked up together for a single sample; of many, what is looked up at a time should not double."""
        if values.shape[0] > 1:
            return super().dots(values, sizes)
        return self._dots(*self._aligned(values, sizes))

    def relaxed(self, slope: Tensor, values: Tensor, sizes: Tensor) -> tuple[Form, Tensor, Tensor]:
        """As `dots`."""
        if values.shape[0] > 1:
            return super().relaxed(slope, values, sizes)
        factor, beside, around = self._aligned(slope, values, sizes)
        scaled = replace(self.with_coefficients(self.coefficients() * factor), masked=True)
        return scaled, *self._dots(beside, around)

    def _dots(self, values: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Of what is aligned."""
        coef = self.coefficients()
        return (coef * values).sum(2), (coef.abs() * sizes).sum(2)

    def dense(self) -> Dense:
        """Scatter every window to its place."""
        place = self.align(places(self.shape, self.coef)).long()
        return Dense(self.scattered(self.coefficients(), place).unflatten(2, self.shape))
