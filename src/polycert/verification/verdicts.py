"""`Verdicts`: what `verify` found, one record a sample."""

from __future__ import annotations

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
# What an answer rests on: a proof with all rounding covered, or a solver's word, which holds up to its tolerances and
# proves nothing.
RIGOROUS, SOLVER = "rigorous", "solver"


class SearchResult(NamedTuple):
    """How a search ended."""

    status: str
    stage: str
    witness: Counterexample | None = None
    proof: str | None = None


@dataclass(frozen=True, eq=False)
class Verdict:
    """The answer for one input.

    Attributes:
        status: `robust` (proved), `falsified` or `unknown`.
        stage: what decided, or for `unknown` where it ended.
        witness: for `falsified`, the counterexample.
        proof: `rigorous` for `robust`; `solver` for `unknown` if a solver believes that nothing fails.
        evaluations: bounds evaluated, one for each node and step.
        nodes: of the search tree.
        seconds: spent on this input.
        resumed: whether it was taken over from a journal.
    """

    status: str
    stage: str
    witness: Counterexample | None = None
    proof: str | None = None
    evaluations: int = 0
    nodes: int = 0
    seconds: float = 0.0
    resumed: bool = False

    def trusting(self) -> Verdict:
        """The same with a solver's word taken for a proof: `robust`, still marked by its `proof`."""
        return replace(self, status=ROBUST) if self.proof == SOLVER else self


@dataclass(frozen=True, eq=False)
class SampleVerdict:
    """The decision about one sample."""

    index: int
    label: int
    prediction: int
    eps: float
    decision: Verdict


@dataclass(frozen=True, eq=False)
class Verdicts(Provenance):
    """The decisions about all samples, in their order.

    Attributes:
        verdicts: one for each sample.
        timeout: seconds that each sample's search might take; solver: of the program at its end.
        norm, box: of the set; network, version: as in `Provenance`.
    """

    ASKED: ClassVar[tuple[str, ...]] = ("timeout", "solver")

    verdicts: tuple[SampleVerdict, ...]
    timeout: float
    solver: str

    def __len__(self) -> int:
        return len(self.verdicts)

    @property
    def decisions(self) -> tuple[Verdict, ...]:
        """The decisions alone."""
        return tuple(v.decision for v in self.verdicts)

    @property
    def status(self) -> tuple[str, ...]:
        """`robust`, `falsified` or `unknown`, for each sample."""
        return tuple(d.status for d in self.decisions)

    @property
    def stage(self) -> tuple[str, ...]:
        """What decided each sample."""
        return tuple(d.stage for d in self.decisions)

    @property
    def counterexample(self) -> tuple[Tensor | None, ...]:
        """For each falsified sample the input found, in float64, else None."""
        return tuple(None if d.witness is None else d.witness.input for d in self.decisions)

    @property
    def evaluations(self) -> Tensor:
        """Bounds evaluated for each sample, one for each node and step."""
        return torch.tensor([d.evaluations for d in self.decisions])

    @property
    def nodes(self) -> Tensor:
        """Nodes of each sample's search tree."""
        return torch.tensor([d.nodes for d in self.decisions])

    @property
    def seconds(self) -> Tensor:
        """Time spent on each sample."""
        return torch.tensor([d.seconds for d in self.decisions], dtype=torch.float64)

    def interval(self) -> tuple[float, float]:
        """The robust error in per cent: surely at least, and at most."""
        count = max(len(self), 1)
        wrong, right = self.status.count(FALSIFIED), self.status.count(ROBUST)
        return 100 * wrong / count, 100 * (len(self) - right) / count

    def rows(self) -> pd.DataFrame:
        """One row a sample; counterexamples are not in it, see `arrays`."""
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
                "margin": None if v.decision.witness is None else v.decision.witness.margin,
                "own_margin": None if v.decision.witness is None else v.decision.witness.own_margin,
                "eps": v.eps,
            }
            for v in self.verdicts
        ]
        return pd.DataFrame(rows)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions `[found]` and inputs `[found, *shape]` of all counterexamples."""
        found = [(v.index, v.decision.witness.input) for v in self.verdicts if v.decision.witness is not None]
        return np.array([k for k, _ in found], dtype=np.int64), np.array([x.numpy() for _, x in found])
