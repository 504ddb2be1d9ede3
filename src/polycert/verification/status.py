"""What a search found out about one input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from polycert.verification.counterexample import Counterexample

ROBUST, FALSIFIED, UNKNOWN = "robust", "falsified", "unknown"
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
