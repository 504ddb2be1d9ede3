"""The cascade: stages from the cheapest to the dearest, each for the sets that the stages before left open."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polycert.sets.interval import Interval
from polycert.verification.budget import Budget, OutOfTime
from polycert.verification.pre_activation import Intervals, relax
from polycert.verification.question import Candidates, Question
from polycert.verification.reduced_problem import piecewise_linear
from polycert.verification.search import Search
from polycert.verification.verdicts import (
    FALSIFIED,
    RIGOROUS,
    ROBUST,
    UNKNOWN,
    NumberedVerdicts,
    SearchResult,
    Verdict,
)

OUT_OF_TIME = Verdict(UNKNOWN, "total time")
MANY = 8  # from so many sets on it pays to begin with the cheaper relaxation


@dataclass(eq=False)
class OpenSets:
    """The sets that are still open on their way through the cascade; all tensors have one entry for each, in order."""

    question: Question
    open: Tensor  # [open]: positions in the question
    proved: Tensor  # [open, clauses]: which clauses are proved
    intervals: Intervals = field(default_factory=dict)
    evaluations: int = 0  # bounds evaluated for each open set
    seconds: float = 0.0  # spent on each open set

    @staticmethod
    def of(question: Question) -> OpenSets:
        """Return all sets of a question as open ones."""
        count = len(question)
        return OpenSets(question, torch.arange(count), torch.zeros(count, question.clauses, dtype=torch.bool))

    @property
    def left(self) -> Question:
        """Return the question about the open sets only."""
        return self.question.part(self.open)

    def drop(self, decided: Tensor) -> None:
        """Leave out sets that are decided, given as a mask over the open ones."""
        keep = ~decided
        self.open, self.proved = self.open[keep], self.proved[keep]
        self.intervals = {k: Interval(v.lower[keep], v.upper[keep]) for k, v in self.intervals.items()}


class Stage(ABC):
    """One way to decide sets."""

    @abstractmethod
    def suits(self, question: Question) -> bool:
        """Whether the stage is worth trying."""

    @abstractmethod
    def run(self, batch: OpenSets, deadline: float) -> dict[int, SearchResult]:
        """Return the results of the sets that the stage decides, by place among the open sets."""


def _falsified(
    question: Question, stage: str, candidates: Iterable[Candidates], deadline: float
) -> dict[int, SearchResult]:
    """Return a result for each set with a candidate that is a counterexample, by place, as far as time allows."""
    results: dict[int, SearchResult] = {}
    for place, points in candidates:
        found = question.check(place)(points)
        if found is not None and found.agreed:
            results[place] = SearchResult(FALSIFIED, stage, found)
        if time.monotonic() > deadline:
            break
    return results


@dataclass(frozen=True)
class QuickAttackStage(Stage):
    """Looks for counterexamples that cost next to nothing."""

    def suits(self, question: Question) -> bool:
        """Return True: the stage suits every question."""
        return True

    def run(self, batch: OpenSets, deadline: float) -> dict[int, SearchResult]:
        """Return counterexamples of the quick attack; for samples, those that the network itself gets wrong."""
        left = batch.left
        return _falsified(left, "clean", left.quick_attack(deadline), deadline)


@dataclass(frozen=True)
class NetworkCheckStage(Stage):
    """Makes sure that the network computes what its file says in these sets."""

    def suits(self, question: Question) -> bool:
        """Whether anything can be proved about the network."""
        return question.net.proof is not None

    def run(self, batch: OpenSets, deadline: float) -> dict[int, SearchResult]:
        """Return nothing: a network that is something else is an error."""
        batch.left.check_network()
        return {}


@dataclass(frozen=True)
class AttackStage(Stage):
    """Looks for counterexamples by descent, and replays them inside the exact set."""

    def suits(self, question: Question) -> bool:
        """Return True: the stage suits every question."""
        return True

    def run(self, batch: OpenSets, deadline: float) -> dict[int, SearchResult]:
        """Return the counterexamples that the attack finds."""
        left = batch.left
        return _falsified(left, "attack", left.attack(deadline), deadline)


@dataclass(frozen=True)
class BoundStage(Stage):
    """Proves clauses by a bound method with all rounding covered."""

    method: str
    relaxation: str
    many: bool | None = None  # True: for many sets only; False: for few sets only
    double: bool = False  # a second attempt, in float64

    def suits(self, question: Question) -> bool:
        """Whether bounds are proofs here; a second attempt pays only where no search over units follows."""
        graph = question.proving_graph()
        if graph is None or self.many not in (None, len(question) >= MANY):
            return False
        return not self.double or (graph.dtype != torch.float64 and not piecewise_linear(question.net.double))

    def run(self, batch: OpenSets, deadline: float) -> dict[int, SearchResult]:
        """Return the sets in which some row of every clause is proved to be positive."""
        left = batch.left
        graph = left.net.double if self.double else left.proving_graph()
        assert graph is not None
        rows = left.rows(graph)
        region = left.region.to(graph.dtype)
        found = relax(graph, region, rows.form, self.method, self.relaxation, deadline, batch.intervals)
        now = rows.proved(found.rows)
        batch.proved[:, : now.shape[1]] |= now
        batch.proved[:, now.shape[1] :] = True  # clauses that none of these sets has
        batch.intervals = found.intervals
        batch.evaluations += 1
        done = batch.proved.all(1).nonzero().flatten().tolist()
        return {k: SearchResult(ROBUST, self.method, proof=RIGOROUS) for k in done}


STAGES: tuple[Stage, ...] = (
    QuickAttackStage(),
    NetworkCheckStage(),
    BoundStage("ibp", "parallel"),
    BoundStage("crown", "parallel", many=True),
    BoundStage("crown", "adaptive", many=False),
    AttackStage(),
    BoundStage("crown", "adaptive", many=True),
    BoundStage("crown", "adaptive", double=True),
)


def cascade(question: Question, total: Budget) -> NumberedVerdicts:
    """Decide every set of a question, and yield each verdict as soon as it is there.

    `total` is the budget of all sets together: no search begins after its end, and none takes longer than what is left.
    """
    batch = OpenSets.of(question)
    for stage in STAGES:
        if len(batch.open) and not total.over and stage.suits(question):
            yield from _decided(batch, stage, total.started + total.seconds)
    for k in range(len(batch.open)):
        yield int(batch.open[k]), OUT_OF_TIME if total.over else _search(batch, k, total.left)


def _decided(batch: OpenSets, stage: Stage, deadline: float) -> NumberedVerdicts:
    """Run a stage, yield the verdicts that it reaches, and drop the sets that it decides."""
    clock = time.perf_counter()
    try:
        found = stage.run(batch, deadline)
    except OutOfTime:
        found = {}
    batch.seconds += (time.perf_counter() - clock) / len(batch.open)
    for k, result in found.items():
        yield int(batch.open[k]), Verdict(*result, batch.evaluations, seconds=batch.seconds)
    decided = torch.zeros(len(batch.open), dtype=torch.bool)
    decided[list(found)] = True
    batch.drop(decided)


def _search(batch: OpenSets, k: int, most: float) -> Verdict:
    """Return the verdict of the search on one open set."""
    question, place = batch.question, int(batch.open[k])
    budget = Budget(min(question.settings.timeout, most), question.settings.memory)
    here = {index: Interval(v.lower[k : k + 1], v.upper[k : k + 1]) for index, v in batch.intervals.items()}
    spec = question.specification(place)
    result = Search(question, place, spec.keep(~batch.proved[k, : spec.clauses]), here, budget).run()
    evaluations, seconds = batch.evaluations + budget.evaluations, batch.seconds + budget.spent
    return Verdict(*result, evaluations, budget.nodes, seconds)
