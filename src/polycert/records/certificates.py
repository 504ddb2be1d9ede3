"""What bounds prove about each sample: `Certificates`, the largest `Radii`, and `Bounds` of outputs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from polycert.errors import PolycertError
from polycert.records.files import save_frame
from polycert.sets.ball import norm_text


@dataclass(frozen=True, eq=False)
class Certificates:
    """What was proved about each sample of a batch.

    Attributes:
        index: position of the sample in its data set.
        label: the class that was checked.
        prediction: the model's own class.
        margin: a lower bound of the worst margin over the whole ball.
        certified: the whole ball is proved.
        radius: every point of the box nearer than this keeps the label; 0 where nothing is proved.
        nearest: the other class whose border is nearest (by distance, or by margin where the ball is proved).
        dtype: floating-point type in which the sample was decided.
        seconds: time per sample of its batch.
        eps, norm, method, relaxation, rigorous: what was asked.
    """

    index: Tensor
    label: Tensor
    prediction: Tensor
    margin: Tensor
    certified: Tensor
    radius: Tensor
    nearest: Tensor
    eps: Tensor
    seconds: Tensor
    dtype: tuple[str, ...]
    norm: float
    method: str
    relaxation: str
    rigorous: bool

    def __len__(self) -> int:
        return len(self.label)

    def to_frame(self) -> pd.DataFrame:
        """One row per sample."""
        columns = (
            "index",
            "label",
            "prediction",
            "certified",
            "radius",
            "margin",
            "nearest",
            "eps",
            "seconds",
        )
        frame = pd.DataFrame({name: getattr(self, name).cpu().numpy() for name in columns})
        frame["status"] = [self._status(k) for k in range(len(self))]
        frame["dtype"] = list(self.dtype)
        for name in ("norm", "method", "relaxation", "rigorous"):
            frame[name] = norm_text(self.norm) if name == "norm" else getattr(self, name)
        return frame

    def _status(self, k: int) -> str:
        if bool(self.certified[k]):
            return "certified"
        if int(self.prediction[k]) != int(self.label[k]):
            return "misclassified"
        return "partial" if float(self.radius[k]) > 0 else "unproved"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `.csv`, `.json` or `.parquet`, whole or not at all."""
        save_frame(self.to_frame(), path)

    def summary(self) -> dict[str, float]:
        """Clean error, certified robust error (per cent) and the average certified bound."""
        count = max(len(self), 1)
        return {
            "n": float(len(self)),
            "CTE": 100 * float((self.prediction != self.label).sum()) / count,
            "CRE": 100 * (1 - float(self.certified.sum()) / count),
            "ACB": float(self.radius.sum()) / count,
        }

    @staticmethod
    def join(parts: Sequence[Certificates]) -> Certificates:
        """The records of several batches as one."""
        if not parts:
            raise PolycertError("there are no samples: give at least one")
        joined: dict[str, Any] = {}
        for item in fields(Certificates):
            values = [getattr(part, item.name) for part in parts]
            if isinstance(values[0], Tensor):
                joined[item.name] = torch.cat(values)
            else:
                joined[item.name] = sum(values, ()) if item.name == "dtype" else values[0]
        return Certificates(**joined)


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


class Bounds(NamedTuple):
    """Elementwise bounds of outputs, or of rows of them, over each sample's set."""

    lower: Tensor
    upper: Tensor
