"""Verdicts: what a search, `decide` and `verify` return."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from polycert.records.figures import STATUSES
from polycert.records.provenance import Provenance
from polycert.verification.counterexample import Counterexample

ROBUST, FALSIFIED, UNKNOWN = STATUSES
# What a verdict rests on: a proof with all rounding covered, or a solver's word, which holds up to its tolerances and
# proves nothing.
RIGOROUS, SOLVER = "rigorous", "solver"


class SearchResult(NamedTuple):
    """How a search ended: the first fields of a `Verdict`."""

    status: str
    stage: str
    counterexample: Counterexample | None = None
    proof: str | None = None


@dataclass(frozen=True, eq=False)
class Verdict:
    """The verdict on one set.

    Attributes:
        status: `robust` (proved), `falsified` or `unknown`.
        stage: the stage that decided; for `unknown`, the stage at which the search ended.
        counterexample: the counterexample, for `falsified`; `witness` is another name of it.
        proof: `rigorous` for `robust`; `solver` for `unknown` if a solver believes that nothing fails.
        evaluations: how many bounds were evaluated, one for each node and step.
        nodes: how many nodes the search tree has.
        seconds: how long the search took.
        resumed: whether the verdict was taken over from a journal.
    """

    status: str
    stage: str
    counterexample: Counterexample | None = None
    proof: str | None = None
    evaluations: int = 0
    nodes: int = 0
    seconds: float = 0.0
    resumed: bool = False

    @property
    def witness(self) -> Counterexample | None:
        """Return `counterexample`, by its earlier name."""
        return self.counterexample

    def trusting(self) -> Verdict:
        """Return the same verdict with a solver's word taken for a proof: `robust`, still marked by its `proof`."""
        return replace(self, status=ROBUST) if self.proof == SOLVER else self


NumberedVerdicts = Iterator[tuple[int, Verdict]]  # pairs of a set's position and its verdict, in any order


@dataclass(frozen=True, eq=False)
class SampleVerdict:
    """The verdict on one sample.

    Attributes:
        index: the sample's index in the data set.
        label: the class that the network should keep.
        prediction: the class that the network predicts.
        eps: the radius of the sample's ball.
        decision: the verdict.
    """

    index: int
    label: int
    prediction: int
    eps: float
    decision: Verdict


@dataclass(frozen=True, eq=False)
class Verdicts(Provenance):
    """The verdicts on all samples, in their order.

    Attributes:
        verdicts: one `SampleVerdict` for each sample.
        timeout: how many seconds each sample's search might take.
        solver: the solver of the mixed-integer program.
        norm, box: the kind of set; network, version: as in `Provenance`.
    """

    ASKED: ClassVar[tuple[str, ...]] = ("timeout", "solver")

    verdicts: tuple[SampleVerdict, ...]
    timeout: float
    solver: str

    def __len__(self) -> int:
        return len(self.verdicts)

    @property
    def decisions(self) -> tuple[Verdict, ...]:
        """Return the verdict of each sample, without the sample's own data."""
        return tuple(v.decision for v in self.verdicts)

    @property
    def status(self) -> tuple[str, ...]:
        """Return `robust`, `falsified` or `unknown` for each sample."""
        return tuple(d.status for d in self.decisions)

    @property
    def stage(self) -> tuple[str, ...]:
        """Return the stage that decided each sample."""
        return tuple(d.stage for d in self.decisions)

    @property
    def counterexample(self) -> tuple[Tensor | None, ...]:
        """Return for each falsified sample the input found, `[*shape]` in float64, else None."""
        return tuple(None if d.counterexample is None else d.counterexample.input for d in self.decisions)

    @property
    def evaluations(self) -> Tensor:
        """Return how many bounds were evaluated for each sample, one for each node and step: `[samples]`."""
        return torch.tensor([d.evaluations for d in self.decisions])

    @property
    def nodes(self) -> Tensor:
        """Return how many nodes each sample's search tree has: `[samples]`."""
        return torch.tensor([d.nodes for d in self.decisions])

    @property
    def seconds(self) -> Tensor:
        """Return the seconds spent on each sample, `[samples]` in float64."""
        return torch.tensor([d.seconds for d in self.decisions], dtype=torch.float64)

    def interval(self) -> tuple[float, float]:
        """Return a lower and an upper bound of the robust error in per cent; unknown samples count in the upper one."""
        count = max(len(self), 1)
        wrong, right = self.status.count(FALSIFIED), self.status.count(ROBUST)
        return 100 * wrong / count, 100 * (len(self) - right) / count

    def rows(self) -> pd.DataFrame:
        """Return a table with one row for each sample; `arrays` has the counterexamples."""
        rows = [
            {
                "index": v.index,
                "label": v.label,
                "prediction": v.prediction,
                "status": v.decision.status,
                "stage": v.decision.stage,
                "proof": v.decision.proof,
                "evaluations": v.decision.evaluations,
                "nodes": v.decision.nodes,
                "seconds": v.decision.seconds,
                "margin": None if v.decision.counterexample is None else v.decision.counterexample.margin,
                "own_margin": None if v.decision.counterexample is None else v.decision.counterexample.own_margin,
                "eps": v.eps,
            }
            for v in self.verdicts
        ]
        return pd.DataFrame(rows)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices `[found]` and the inputs `[found, *shape]` of all counterexamples."""
        pairs = [(v.index, v.decision.counterexample) for v in self.verdicts]
        found = [(index, one.input) for index, one in pairs if one is not None]
        return np.array([k for k, _ in found], dtype=np.int64), np.array([x.numpy() for _, x in found])
