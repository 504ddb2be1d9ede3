"""What a search found out about one input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from polycert.exact.witness import Witness

ROBUST, FALSIFIED, UNKNOWN = "robust", "falsified", "unknown"
RIGOROUS, SOLVER = "rigorous", "solver"  # what a proof rests on: all rounding covered, or a solver's tolerances


class Result(NamedTuple):
    """How a search ended."""

    status: str
    stage: str
    witness: Witness | None = None
    proof: str | None = None


@dataclass(frozen=True, eq=False)
class Decision:
    """The answer for one input.

    Attributes:
        status: `robust`, `falsified` or `unknown`.
        stage: what decided, or for `unknown` where it ended.
        witness: for `falsified`, the counterexample.
        proof: for `robust`, `rigorous` or `solver`.
        evaluations: bounds evaluated, one for each node and step.
        nodes: of the search tree.
        seconds: spent on this input.
    """

    status: str
    stage: str
    witness: Witness | None = None
    proof: str | None = None
    evaluations: int = 0
    nodes: int = 0
    seconds: float = 0.0
