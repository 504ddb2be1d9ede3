"""Products with the units' coefficients of the input, of which those of early convolutions are mostly 0."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LOCAL = 0.2  # of a layer's coefficients: with fewer that are not 0, sparse products take less time


@dataclass(frozen=True, eq=False)
class Coefficients:
    """A matrix `[units, inputs]`: the rows of the first layers sparse, the others as they are."""

    local: Tensor | None  # [first units, inputs], by rows
    transposed: Tensor | None  # [inputs, first units], by rows
    rest: Tensor  # [other units, inputs]

    @staticmethod
    def of(matrix: Tensor, layers: Sequence[slice]) -> Coefficients:
        """Sparse up to the first layer that sees much of the input."""
        end = 0
        for layer in layers:
            if matrix[layer].count_nonzero() > LOCAL * matrix[layer].numel():
                break
            end = layer.stop
        if end == 0 or not torch.backends.mkl.is_available():
            return Coefficients(None, None, matrix)
        first = matrix[:end]
        return Coefficients(_by_rows(first), _by_rows(first.T.contiguous()), matrix[end:])

    def back(self, weights: Tensor) -> Tensor:
        """Rows added up: `[n, units]` times the matrix, `[n, inputs]`."""
        if self.transposed is None:
            return weights @ self.rest
        end = self.transposed.shape[1]
        found: Tensor = weights[:, end:] @ self.rest
        return found.add_((self.transposed @ weights[:, :end].T.contiguous()).T)

    def at(self, x: Tensor) -> Tensor:
        """Each row at inputs `[n, inputs]`: `[n, units]`."""
        late = x @ self.rest.T
        return late if self.local is None else torch.cat([(self.local @ x.T.contiguous()).T, late], 1)


def _by_rows(matrix: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its interface may change
        return matrix.to_sparse_csr()
