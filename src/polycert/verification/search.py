"""The search for what bounds leave open in one set: stages from the quickest to the last resort."""

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
from polycert.verification.programs import get_solver, solve
from polycert.verification.question import FEW_INPUTS, Question
from polycert.verification.reduced_problem import Reduced, piecewise_linear, reduce, unstable_units
from polycert.verification.specification import Specification
from polycert.verification.verdicts import FALSIFIED, RIGOROUS, ROBUST, UNKNOWN, SearchResult

BRANCHING = 0.7  # share of the time after which no branching begins; the rest is for a mixed-integer program
SPLITTING = 0.7  # the same for splitting on inputs where units can be branched on as well
FIRST_NODES = 32  # after so many, deeper units are worth tighter bounds
FIRST_TURN = 2.0  # seconds for each clause in turn, twice as long each time


@dataclass(eq=False)
class Search:
    """One set of a question.

    Attributes:
        question: it stands in there.
        place: where.
        spec: the clauses that are open.
        intervals: rigorous bounds of the hidden units.
        budget: what the search may take.
        problem: its reduced problem, with the open clauses, once it is made.
    """

    question: Question
    place: int
    spec: Specification
    intervals: Intervals
    budget: Budget
    problem: Reduced | None = None

    @cached_property
    def check(self) -> CounterexampleCheck:
        """What recognises a counterexample."""
        return self.question.check(self.place)

    @property
    def provable(self) -> bool:
        """Whether bounds of the network prove anything."""
        return self.question.net.proof is not None

    @cached_property
    def reducible(self) -> bool:
        """Whether the network is piecewise linear, and its unstable units fit into memory."""
        graph = self.check.net.double
        bounded = all(graph.nodes[k].inputs[0] in self.intervals for k in graph.activations)
        if not bounded or not self.provable or not piecewise_linear(graph):
            return False
        units = unstable_units(graph, self.intervals)
        return 24 * units * (units + math.prod(graph.input_shape)) < free_memory() // 2

    @cached_property
    def few_inputs(self) -> bool:
        """Whether the set is a box that can be halved to the end."""
        box = math.isinf(self.question.region.norm)
        return self.provable and box and self.question.free_inputs(self.place) <= FEW_INPUTS

    def reduced(self) -> Reduced:
        """The reduced problem of the open clauses."""
        if self.problem is None:
            self.problem = reduce(self.check.net.double, self.check.region, self.intervals, self.spec)
        return self.problem

    def keep(self, clauses: Tensor) -> None:
        """Go on with some of the clauses, a mask."""
        if bool(clauses.all()):
            return
        self.spec = self.spec.keep(clauses)
        if self.problem is not None:
            self.problem = replace(self.problem, members=self.problem.members[clauses])

    def run(self) -> SearchResult:
        """Stage after stage, until one decides or the time is up."""
        result = SearchResult(UNKNOWN, "bounds")
        with torch.no_grad():
            for stage in STAGES:
                if result.status != UNKNOWN or result.proof is not None or self.budget.over:
                    break
                if stage.suits(self):
                    result = stage.run(self)
        return result


class SearchStage(ABC):
    """One way to go on."""

    @abstractmethod
    def suits(self, search: Search) -> bool:
        """Whether it is worth trying."""

    @abstractmethod
    def run(self, search: Search) -> SearchResult:
        """What it finds; clauses that it proves are left out of the search."""


@dataclass(frozen=True)
class ActivationSplitting(SearchStage):
    """Branch and bound on the sides of unstable units."""

    first: bool  # a few nodes only; later runs tighten the units before

    def suits(self, search: Search) -> bool:
        """Where units have two sides; a second run if there are deep ones."""
        return search.reducible and (self.first or len(search.reduced().layers) > 1)

    def run(self, search: Search) -> SearchResult:
        """To the end of its time, or of its nodes."""
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
        """Where few inputs can move."""
        return search.few_inputs

    def run(self, search: Search) -> SearchResult:
        """The clauses in turns that grow."""
        graph, budget = search.check.net.double, search.budget
        share = SPLITTING if search.reducible else 1.0
        deadline = budget.started + share * budget.seconds
        boxes = Boxes(*search.check.region.box)
        specs = {k: search.spec.keep(torch.arange(search.spec.clauses) == k) for k in range(search.spec.clauses)}
        looks = {k: CentreCheck(search.check, spec) for k, spec in specs.items()}
        open_ = {
            k: InputSplitting(graph, Rows(spec.rows, spec.constants), error_model(graph), [boxes], deadline=deadline)
            for k, spec in specs.items()
        }
        turn = FIRST_TURN
        while open_ and time.monotonic() < deadline:
            for k, splitting in list(open_.items()):
                with plain_products(graph.device):
                    outcome = _run(splitting, min(deadline, time.monotonic() + turn), looks[k])
                if looks[k].found is not None:
                    return SearchResult(FALSIFIED, "input", looks[k].found)
                if outcome:
                    del open_[k]
            turn *= 2
        budget.nodes += sum(splitting.seen for splitting in open_.values())
        if not open_:
            return SearchResult(ROBUST, "input", proof=RIGOROUS)
        search.keep(torch.tensor([k in open_ for k in range(search.spec.clauses)]))
        return SearchResult(UNKNOWN, "input")


def _run(splitting: InputSplitting, deadline: float, look: CentreCheck) -> bool | None:
    try:
        return splitting.run(deadline, look)
    except OutOfTime:
        return None


@dataclass(eq=False)
class CentreCheck:
    """Recognises a counterexample among the centres of boxes."""

    check: CounterexampleCheck
    spec: Specification  # of one clause
    found: Counterexample | None = None

    def __call__(self, points: Tensor) -> bool:
        """Whether one of the points is a counterexample; it is kept."""
        margin = self.spec.worst(self.check.net.double.forward(points))
        if bool((margin <= 0).any()):
            found = self.check(points[margin.argsort()[:2]])
            self.found = found if found is not None and found.agreed else None
        return self.found is not None


@dataclass(frozen=True)
class Program(SearchStage):
    """A mixed-integer program, which finds counterexamples; what it believes beyond them proves nothing."""

    def suits(self, search: Search) -> bool:
        """Where units have two sides."""
        return search.reducible

    def run(self, search: Search) -> SearchResult:
        """One clause after another."""
        solver = get_solver(search.question.settings.solver)
        clauses = torch.arange(search.spec.clauses)
        return solve(search.reduced(), clauses, search.check, search.budget, solver)


@dataclass(frozen=True)
class LateAttack(SearchStage):
    """Attacks until the time is up."""

    def suits(self, search: Search) -> bool:
        """Where the question says so."""
        return search.question.late_attacks > 0

    def run(self, search: Search) -> SearchResult:
        """Each from other points."""
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
