"""The cascade: stages from the cheapest to the dearest, each on the sets that the ones before left open."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polycert.sets.interval import Interval
from polycert.verification.budget import Budget, OutOfTime
from polycert.verification.pre_activation import Intervals, relax, tighter
from polycert.verification.question import Candidates, Question
from polycert.verification.reduced_problem import piecewise_linear
from polycert.verification.search import Search
from polycert.verification.verdicts import FALSIFIED, RIGOROUS, ROBUST, UNKNOWN, SearchResult, Verdict

Decided = Iterator[tuple[int, Verdict]]
OUT_OF_TIME = Verdict(UNKNOWN, "total time")
MANY = 8  # sets for which the cheaper relaxation pays first


@dataclass(eq=False)
class OpenSets:
    """Sets on their way through the cascade. Tensors belong to the sets still open, in order."""

    question: Question
    open: Tensor  # positions
    proved: Tensor  # [open, clauses]
    intervals: Intervals = field(default_factory=dict)
    evaluations: int = 0  # bounds of each open set
    seconds: float = 0.0  # spent on each open set

    @staticmethod
    def of(question: Question) -> OpenSets:
        """All sets open."""
        count = len(question)
        return OpenSets(question, torch.arange(count), torch.zeros(count, question.clauses, dtype=torch.bool))

    @property
    def left(self) -> Question:
        """The question about the open sets."""
        return self.question.part(self.open)

    def drop(self, decided: Tensor) -> None:
        """Leave out sets, given as a mask over the open ones."""
        keep = ~decided
        self.open, self.proved = self.open[keep], self.proved[keep]
        self.intervals = {k: Interval(v.lower[keep], v.upper[keep]) for k, v in self.intervals.items()}


class Stage(ABC):
    """One way to decide sets."""

    @abstractmethod
    def suits(self, question: Question) -> bool:
        """Whether it is worth trying."""

    @abstractmethod
    def run(self, batch: OpenSets, deadline: float) -> dict[int, SearchResult]:
        """What it decides, by place among the open sets."""


def _first_found(question: Question, stage: str, candidates: Iterable[Candidates]) -> dict[int, SearchResult]:
    found = {place: question.check(place)(points) for place, points in candidates}
    return {k: SearchResult(FALSIFIED, stage, one) for k, one in found.items() if one is not None and one.agreed}


@dataclass(frozen=True)
class QuickAttackStage(Stage):
    """Counterexamples that cost next to nothing."""

    def suits(self, question: Question) -> bool:
        """Always."""
        return True

    def run(self, batch: OpenSets, deadline: float) -> dict[int, SearchResult]:
        """For samples, those that the network itself gets wrong."""
        left = batch.left
        return _first_found(left, "clean", left.quick_attack(deadline))


@dataclass(frozen=True)
class NetworkCheckStage(Stage):
    """Makes sure that the network is what its file says in these sets."""

    def suits(self, question: Question) -> bool:
        """Where something may be proved."""
        return question.net.proof is not None

    def run(self, batch: OpenSets, deadline: float) -> dict[int, SearchResult]:
        """Nothing is decided."""
        batch.left.check_network()
        return {}


@dataclass(frozen=True)
class AttackStage(Stage):
    """Points found by descent, replayed inside the exact set."""

    def suits(self, question: Question) -> bool:
        """Always."""
        return True

    def run(self, batch: OpenSets, deadline: float) -> dict[int, SearchResult]:
        """The best points of each set."""
        left = batch.left
        return _first_found(left, "attack", left.attack(deadline))


@dataclass(frozen=True)
class BoundStage(Stage):
    """A bound method, all rounding covered."""

    method: str
    relaxation: str
    many: bool | None = None  # for many sets only, or for few only
    double: bool = False  # in float64, as a second look

    def suits(self, question: Question) -> bool:
        """Where bounds are proofs; a second look pays where no search over units follows."""
        graph = question.proving_graph()
        if graph is None or self.many not in (None, len(question) >= MANY):
            return False
        return not self.double or (graph.dtype != torch.float64 and not piecewise_linear(question.net.double))

    def run(self, batch: OpenSets, deadline: float) -> dict[int, SearchResult]:
        """Some row of every clause is positive."""
        left = batch.left
        graph = left.net.double if self.double else left.proving_graph()
        assert graph is not None
        rows = left.rows(graph)
        found = relax(graph, left.region.to(graph.dtype), rows.form, self.method, self.relaxation, deadline)
        now = rows.proved(found.rows)
        batch.proved[:, : now.shape[1]] |= now
        batch.proved[:, now.shape[1] :] = True  # clauses that none of these sets has
        batch.intervals = tighter(batch.intervals, found.intervals) if batch.intervals else found.intervals
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


def cascade(question: Question, total: Budget) -> Decided:
    """Decide every set of a question, as soon as possible: pairs of position and verdict.

    `total` is for all of them: no search begins after it, and none takes longer than what is left of it.
    """
    batch = OpenSets.of(question)
    for stage in STAGES:
        if len(batch.open) and not total.over and stage.suits(question):
            yield from _decided(batch, stage, total.started + total.seconds)
    for k in range(len(batch.open)):
        yield int(batch.open[k]), OUT_OF_TIME if total.over else _search(batch, k, total.left)


def _decided(batch: OpenSets, stage: Stage, deadline: float) -> Decided:
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
    """One set by splitting and what comes after."""
    question, place = batch.question, int(batch.open[k])
    budget = Budget(min(question.settings.timeout, most), question.settings.memory)
    here = {index: Interval(v.lower[k : k + 1], v.upper[k : k + 1]) for index, v in batch.intervals.items()}
    spec = question.specification(place)
    result = Search(question, place, spec.keep(~batch.proved[k, : spec.clauses]), here, budget).run()
    evaluations, seconds = batch.evaluations + budget.evaluations, batch.seconds + budget.spent
    return Verdict(*result, evaluations, budget.nodes, seconds)
