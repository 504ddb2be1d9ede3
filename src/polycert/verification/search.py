"""The search in one set that bounds left open: stages from the quickest to the last resort."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from polycert.bounding.chunking import free_memory
from polycert.bounding.methods import error_model
from polycert.runtime.execution import plain_products
from polycert.verification.branch_and_bound import BranchAndBound
from polycert.verification.budget import Budget, OutOfTime
from polycert.verification.counterexample import Counterexample, CounterexampleCheck
from polycert.verification.input_split import Boxes, InputSplitting, Rows
from polycert.verification.pre_activation import Intervals, refine
from polycert.verification.programs import get_solver, solve_clauses
from polycert.verification.question import FEW_INPUTS, Question
from polycert.verification.reduced_problem import Reduced, piecewise_linear, reduce, unstable_units
from polycert.verification.specification import Specification
from polycert.verification.verdicts import FALSIFIED, RIGOROUS, ROBUST, UNKNOWN, SearchResult

BRANCHING = 0.7  # the share of the time after which no branching begins; the rest is for a mixed-integer program
SPLITTING = 0.7  # the share of the time for splitting on inputs where units can be branched on as well
FIRST_NODES = 32  # after so many nodes, units of deeper layers are worth tighter bounds
FIRST_TURN = 2.0  # seconds for each clause in the first turn; each turn is twice as long as the one before


@dataclass(eq=False)
class Search:
    """The search in one set of a question.

    Attributes:
        question: the question.
        place: the position of the set in the question.
        spec: the clauses that are open.
        intervals: rigorous pre-activation bounds.
        budget: what the search may take.
        problem: the reduced problem with the open clauses; None until a stage needs it.
    """

    question: Question
    place: int
    spec: Specification
    intervals: Intervals
    budget: Budget
    problem: Reduced | None = None

    @cached_property
    def check(self) -> CounterexampleCheck:
        """Return the check that recognises counterexamples in the set."""
        return self.question.check(self.place)

    @property
    def provable(self) -> bool:
        """Whether bounds of the network are proofs."""
        return self.question.net.proof is not None

    @cached_property
    def reducible(self) -> bool:
        """Whether the network is piecewise linear and its unstable units fit into memory."""
        graph = self.check.net.double
        bounded = all(graph.nodes[k].inputs[0] in self.intervals for k in graph.activations)
        if not bounded or not self.provable or not piecewise_linear(graph):
            return False
        units = unstable_units(graph, self.intervals)
        return 24 * units * (units + math.prod(graph.input_shape)) < free_memory() // 2

    @cached_property
    def few_inputs(self) -> bool:
        """Whether the set is a box with so few free inputs that halving it can come to an end."""
        box = math.isinf(self.question.region.norm)
        return self.provable and box and self.question.free_inputs(self.place) <= FEW_INPUTS

    def reduced(self) -> Reduced:
        """Return the reduced problem of the open clauses."""
        if self.problem is None:
            self.problem = reduce(self.check.net.double, self.check.region, self.intervals, self.spec)
        return self.problem

    def keep(self, clauses: Tensor) -> None:
        """Leave out clauses that are proved; `clauses` is a mask of those that are still open."""
        if bool(clauses.all()):
            return
        self.spec = self.spec.keep(clauses)
        if self.problem is not None:
            self.problem = replace(self.problem, members=self.problem.members[clauses])

    def run(self) -> SearchResult:
        """Run the stages in order until one decides or the time is up, and return the last result."""
        result = SearchResult(UNKNOWN, "bounds")
        with torch.no_grad():
            for stage in STAGES:
                if result.status != UNKNOWN or result.proof is not None or self.budget.over:
                    break
                if stage.suits(self):
                    result = stage.run(self)
        return result


class SearchStage(ABC):
    """One way to search a set."""

    @abstractmethod
    def suits(self, search: Search) -> bool:
        """Whether the stage is worth trying."""

    @abstractmethod
    def run(self, search: Search) -> SearchResult:
        """Return what the stage finds, and leave the clauses that it proves out of the search."""


@dataclass(frozen=True)
class ActivationSplitting(SearchStage):
    """Branch and bound on the sides of unstable units."""

    first: bool  # the first run takes a few nodes only; the second one tightens the bounds of the units before

    def suits(self, search: Search) -> bool:
        """Whether the network is reducible; for a second run, whether there are units in later layers to tighten."""
        return search.reducible and (self.first or len(search.reduced().layers) > 1)

    def run(self, search: Search) -> SearchResult:
        """Branch until the stage's time or its nodes are spent."""
        problem = search.reduced()
        if not self.first:
            problem = search.problem = refine(problem, search.budget)
        branching = BranchAndBound(problem, search.check, search.budget, BRANCHING * search.budget.seconds)
        result = branching.run(FIRST_NODES if self.first and len(problem.layers) > 1 else math.inf)
        if result.status == UNKNOWN:
            open_clauses = torch.zeros(len(problem.members), dtype=torch.bool)
            open_clauses[branching.open_clauses] = True
            search.keep(open_clauses)
        return result


@dataclass(frozen=True)
class InputHalving(SearchStage):
    """Branch and bound on the input."""

    def suits(self, search: Search) -> bool:
        """Whether few inputs can move."""
        return search.few_inputs

    def run(self, search: Search) -> SearchResult:
        """Halve boxes for one open clause after another, in turns that grow."""
        graph, budget = search.check.net.double, search.budget
        share = SPLITTING if search.reducible else 1.0
        deadline = budget.started + share * budget.seconds
        boxes = Boxes(*search.check.region.box)
        specs = {k: search.spec.keep(torch.arange(search.spec.clauses) == k) for k in range(search.spec.clauses)}
        checks = {k: CentreCheck(search.check, spec) for k, spec in specs.items()}
        open_ = {
            k: InputSplitting(graph, Rows(spec.rows, spec.constants), error_model(graph), [boxes], deadline=deadline)
            for k, spec in specs.items()
        }
        turn = FIRST_TURN
        while open_ and time.monotonic() < deadline:
            for k, splitting in list(open_.items()):
                with plain_products(graph.device):
                    proved = _run(splitting, min(deadline, time.monotonic() + turn), checks[k])
                if checks[k].found is not None:
                    return SearchResult(FALSIFIED, "input", checks[k].found)
                if proved:
                    del open_[k]
            turn *= 2
        budget.nodes += sum(splitting.bounded for splitting in open_.values())
        if not open_:
            return SearchResult(ROBUST, "input", proof=RIGOROUS)
        search.keep(torch.tensor([k in open_ for k in range(search.spec.clauses)]))
        return SearchResult(UNKNOWN, "input")


def _run(splitting: InputSplitting, deadline: float, check: CentreCheck) -> bool | None:
    """Return what `InputSplitting.run` returns, and None if the time is up while bounds are computed."""
    try:
        return splitting.run(deadline, check)
    except OutOfTime:
        return None


@dataclass(eq=False)
class CentreCheck:
    """Recognises a counterexample among the centres of boxes, and keeps it."""

    check: CounterexampleCheck
    spec: Specification  # of one clause
    found: Counterexample | None = None

    def __call__(self, points: Tensor) -> bool:
        """Whether one of the points `[n, *shape]` is a counterexample; `found` then holds it."""
        margin = self.spec.worst(self.check.net.double.forward(points))
        if bool((margin <= 0).any()):
            found = self.check(points[margin.argsort()[:2]])
            self.found = found if found is not None and found.agreed else None
        return self.found is not None


@dataclass(frozen=True)
class Program(SearchStage):
    """Finds counterexamples by a mixed-integer program; what the solver believes beyond them proves nothing."""

    def suits(self, search: Search) -> bool:
        """Whether the network is reducible."""
        return search.reducible

    def run(self, search: Search) -> SearchResult:
        """Solve a program for one open clause after another."""
        solver = get_solver(search.question.settings.solver)
        clauses = torch.arange(search.spec.clauses)
        return solve_clauses(search.reduced(), clauses, search.check, search.budget, solver)


@dataclass(frozen=True)
class LateAttack(SearchStage):
    """Attacks the open clauses until the time is up."""

    def suits(self, search: Search) -> bool:
        """Whether the question asks for late attacks."""
        return search.question.late_attacks > 0

    def run(self, search: Search) -> SearchResult:
        """Attack again and again, each time from other points."""
        deadline = search.budget.started + search.budget.seconds
        for turn in range(search.question.late_attacks):
            found = search.check(search.question.late_attack(search.place, search.spec, turn, deadline))
            if found is not None and found.agreed:
                return SearchResult(FALSIFIED, "attack", found)
            if search.budget.over:
                break
        return SearchResult(UNKNOWN, "attack")


STAGES: tuple[SearchStage, ...] = (
    ActivationSplitting(first=True),
    InputHalving(),
    ActivationSplitting(first=False),
    Program(),
    LateAttack(),
)
