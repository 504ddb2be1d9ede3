"""`Radii`: the largest certified radius of each sample."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from torch import Tensor

from polycert.records.files import save_frame


@dataclass(frozen=True, eq=False)
class Radii:
    """The largest certified radius of each sample, and what it cost.

    Attributes:
        radius: the certified end of the bracket, float64.
        failed: the smallest eps that was tried and not certified whole; the upper end if all were.
        evaluations: how often bounds were computed.
        label, prediction: the class that was checked, and the model's own.
    """

    index: Tensor
    label: Tensor
    prediction: Tensor
    radius: Tensor
    failed: Tensor
    evaluations: Tensor

    def __len__(self) -> int:
        return len(self.label)

    def to_frame(self) -> pd.DataFrame:
        """One row per sample."""
        names = ("index", "label", "prediction", "radius", "failed", "evaluations")
        return pd.DataFrame({name: getattr(self, name).cpu().numpy() for name in names})

    def save(self, path: str) -> None:
        """Write `.csv`, `.json` or `.parquet`, whole or not at all."""
        save_frame(self.to_frame(), path)
