"""What bounds prove about each sample: `Certificates`, the largest `Radii`, and `Bounds` of outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from polycert.records.provenance import Provenance, SampleRecords


@dataclass(frozen=True, eq=False, kw_only=True)
class Certificates(SampleRecords):
    """What was proved about each sample of a batch.

    Attributes:
        index: position of the sample in its data set.
        label: the class that was checked.
        prediction: the model's own class.
        margin: a lower bound of the worst margin over the whole ball.
        certified: whether the whole ball is proved.
        radius: every point of the box that is nearer than this keeps the label; 0 where nothing is proved.
        nearest: the other class whose border is nearest (by distance, or by margin where the ball is proved).
        dtype: floating-point type in which the sample was decided.
        seconds: time per sample of its batch.
        eps, norm, box, method, relaxation, rigorous: what was asked; network, version: as in `Provenance`.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = (
        *("index", "label", "prediction", "certified", "radius", "margin", "nearest", "eps", "seconds"),
        *("status", "dtype"),
    )
    ASKED: ClassVar[tuple[str, ...]] = ("method", "relaxation", "rigorous")

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
    method: str
    relaxation: str
    rigorous: bool

    @property
    def status(self) -> tuple[str, ...]:
        """The status of each sample: `certified`, `partial`, `unproved` or `misclassified`."""
        return tuple(self._status(k) for k in range(len(self)))

    def _status(self, k: int) -> str:
        """Return the status of sample k."""
        if bool(self.certified[k]):
            return "certified"
        if int(self.prediction[k]) != int(self.label[k]):
            return "misclassified"
        return "partial" if float(self.radius[k]) > 0 else "unproved"

    def summary(self) -> dict[str, float]:
        """Return `n`, the clean error `CTE` and certified error `CRE` in per cent, and the mean radius `ACB`."""
        count = max(len(self), 1)
        return {
            "n": float(len(self)),
            "CTE": 100 * float((self.prediction != self.label).sum()) / count,
            "CRE": 100 * (1 - float(self.certified.sum()) / count),
            "ACB": float(self.radius.sum()) / count,
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class Radii(SampleRecords):
    """The largest certified radius of each sample, and what it cost.

    Attributes:
        index: position of the sample in its data set.
        label: the class that was checked.
        prediction: the model's own class.
        radius: the certified end of the bracket, float64.
        failed: the smallest eps that was tried and whose ball was not certified; the upper end if all were certified.
        evaluations: how often bounds were computed.
        norm, box, method, relaxation, rigorous, strategy, upper, tolerance: what was asked.
        network, version: as in `Provenance`.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ("index", "label", "prediction", "radius", "failed", "evaluations")
    ASKED: ClassVar[tuple[str, ...]] = ("method", "relaxation", "rigorous", "strategy", "upper", "tolerance")

    index: Tensor
    label: Tensor
    prediction: Tensor
    radius: Tensor
    failed: Tensor
    evaluations: Tensor
    method: str
    relaxation: str
    rigorous: bool
    strategy: str
    upper: float
    tolerance: float


@dataclass(frozen=True, eq=False)
class Bounds(Provenance):
    """Elementwise bounds of outputs, or of rows of them, over each sample's set; they unpack as `lower, upper`.

    Attributes:
        lower, upper: `[n, *outputs]`, or `[n, rows]`.
        eps: radius of each sample's ball.
        norm, box, method, relaxation, rigorous: what was asked.
        network: as in `Provenance`; None unless the bounds are rigorous, since others may belong to a training step.
        version: as in `Provenance`.
    """

    ASKED: ClassVar[tuple[str, ...]] = ("method", "relaxation", "rigorous")

    lower: Tensor
    upper: Tensor
    eps: Tensor
    method: str
    relaxation: str
    rigorous: bool

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.lower, self.upper))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, side: int) -> Tensor:
        return (self.lower, self.upper)[side]

    def rows(self) -> pd.DataFrame:
        """Return a frame with one row for each sample and output."""
        lower, upper = (end.detach().cpu().double().flatten(1) for end in self)
        index, output = torch.meshgrid(*map(torch.arange, lower.shape), indexing="ij")
        eps = self.eps.cpu()[:, None].expand_as(lower)
        columns = {"index": index, "output": output, "lower": lower, "upper": upper, "eps": eps}
        return pd.DataFrame({name: values.flatten().numpy() for name, values in columns.items()})
