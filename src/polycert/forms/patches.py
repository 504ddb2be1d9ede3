"""All neurons of a convolution, seen from an earlier layer: windows at every point of a grid."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polycert.forms.dense import Dense
from polycert.forms.windowed import Windowed, places


@dataclass(frozen=True)
class Patches(Windowed):
    """A row for every point and output channel; `coef`: `[batch or 1, points or 1, channels, *window]`."""

    def shares_points(self, other: Windowed) -> bool:
        """All points, in order."""
        return isinstance(other, Patches)

    def align(self, values: Tensor) -> Tensor:
        """`[batch, points, 1, terms]`."""
        return self._windows(values).unsqueeze(2)

    def collect(self, sums: Tensor) -> Tensor:
        """Points and channels to the order of the node that the rows are entries of."""
        return sums.transpose(1, 2).flatten(1)

    def dot(self, values: Tensor) -> Tensor:
        """A convolution where the coefficients are shared, else one small product a point."""
        return self.collect(_grid_dot(self.coefficients(), self._windows(values)))

    def abs_dot(self, values: Tensor) -> Tensor:
        """As `dot` with absolute coefficients."""
        return self.collect(_grid_dot(self.coefficients().abs(), self._windows(values)))

    def dots(self, values: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Looked up together for a single sample; of many, what is looked up at a time should not double."""
        if values.shape[0] > 1:
            return super().dots(values, sizes)
        coef = self.coefficients()
        beside, around = self._windows(torch.cat((values, sizes))).split(1)
        return self.collect(_grid_dot(coef, beside)), self.collect(_grid_dot(coef.abs(), around))

    def dense(self) -> Dense:
        """Scatter every window to its place."""
        place = self.align(places(self.shape, self.coef)).long()
        coef = self.coefficients().expand(-1, place.shape[1], -1, -1)
        full = self.scattered(coef, place).transpose(1, 2)
        return Dense(full.reshape(coef.shape[0], -1, *self.shape))

    def _windows(self, values: Tensor) -> Tensor:
        """`[batch, points, terms]`, 0 beyond the border."""
        return self.tiles(values).flatten(3).flatten(1, 2)


def _grid_dot(coef: Tensor, windows: Tensor) -> Tensor:
    """`[batch or 1, points or 1, rows, n] . [batch or 1, points, n]` -> `[batch, points, rows]`."""
    if coef.shape[:2] == (1, 1):
        return windows @ coef.flatten(0, 2).T
    if coef.shape[0] == 1:
        return (windows.transpose(0, 1) @ coef.squeeze(0).transpose(1, 2)).transpose(0, 1)
    return (windows.unsqueeze(2) @ coef.transpose(2, 3)).squeeze(2)
