"""The cascade: stages from the cheapest to the dearest, each on the samples that the ones before left open."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from polycert.attacks.pgd import attack_region, margin_of
from polycert.certification.envelope import margin_rows
from polycert.sets.interval import Interval
from polycert.verification.budget import Budget
from polycert.verification.counterexample import CounterexampleCheck
from polycert.verification.decide import decide_unproved
from polycert.verification.pre_activation import Intervals, relax, tighter
from polycert.verification.question import Question
from polycert.verification.specification import Specification
from polycert.verification.verdicts import FALSIFIED, RIGOROUS, ROBUST, UNKNOWN, SearchResult, Verdict

Settled = Iterator[tuple[int, Verdict]]
OUT_OF_TIME = Verdict(UNKNOWN, "total time")


@dataclass(eq=False)
class OpenSamples:
    """Samples on their way through the cascade. Tensors belong to the samples still open, in order."""

    question: Question
    open: Tensor  # positions
    margins: Tensor  # [open, classes - 1]: the best lower bounds so far
    intervals: Intervals = field(default_factory=dict)
    evaluations: int = 0  # bounds of each open sample
    seconds: float = 0.0  # spent on each open sample

    @staticmethod
    def of(question: Question) -> OpenSamples:
        """All samples open."""
        count, classes = len(question), question.net.output_shape[0]
        return OpenSamples(
            question, torch.arange(count), torch.full((count, classes - 1), -torch.inf, dtype=torch.float64)
        )

    @property
    def left(self) -> Question:
        """The question about the open samples."""
        return self.question.part(self.open)

    def drop(self, settled: Tensor) -> None:
        """Leave out samples, given as a mask over the open ones."""
        keep = ~settled
        self.open, self.margins = self.open[keep], self.margins[keep]
        self.intervals = {k: Interval(v.lower[keep], v.upper[keep]) for k, v in self.intervals.items()}

    def replay(self, k: int) -> tuple[CounterexampleCheck, Specification]:
        """The check of counterexamples for the k-th open sample, and its margins."""
        at = self.open[k : k + 1]
        spec = Specification.margins(int(self.question.label[at]), self.question.net.output_shape[0])
        return CounterexampleCheck(self.question.net, self.question.region[at], spec), spec


class Stage(ABC):
    """One way to settle samples."""

    @abstractmethod
    def run(self, batch: OpenSamples) -> dict[int, SearchResult]:
        """What it settles, by place among the open samples."""


@dataclass(frozen=True)
class CleanStage(Stage):
    """Samples that the network itself gets wrong, or ties on."""

    def run(self, batch: OpenSamples) -> dict[int, SearchResult]:
        """A forward pass in float64."""
        left = batch.left
        with torch.no_grad():
            margin = margin_of(left.net.double.forward(left.region.x), left.label)
        return _replayed(batch, "clean", (margin <= 0).nonzero().flatten(), left.region.x)


@dataclass(frozen=True)
class BoundStage(Stage):
    """A bound method, all rounding covered."""

    method: str
    relaxation: str

    def run(self, batch: OpenSamples) -> dict[int, SearchResult]:
        """Margins of all classes positive."""
        left = batch.left
        graph = left.net.proving(left.region)
        form = margin_rows(graph, left.label).form
        found = relax(graph, left.region.to(graph.dtype), form, self.method, self.relaxation)
        batch.margins = torch.maximum(batch.margins, found.rows.double())
        batch.intervals = tighter(batch.intervals, found.intervals) if batch.intervals else found.intervals
        batch.evaluations += 1
        done = (batch.margins > 0).all(1).nonzero().flatten().tolist()
        return {k: SearchResult(ROBUST, self.method, proof=RIGOROUS) for k in done}


@dataclass(frozen=True)
class AttackStage(Stage):
    """The attack, its points replayed inside the exact set."""

    def run(self, batch: OpenSamples) -> dict[int, SearchResult]:
        """Descend from x, from random points and towards the nearest classes."""
        left, asked = batch.left, batch.question.settings
        graph = left.net.own
        hits = attack_region(
            graph,
            left.region.to(graph.dtype),
            left.label,
            left.index,
            steps=asked.attack_steps,
            restarts=asked.attack_restarts,
            seed=asked.seed,
            until_success=True,
        )
        return _replayed(batch, "attack", hits.success.nonzero().flatten(), hits.inputs.double())


def _replayed(batch: OpenSamples, stage: str, places: Tensor, points: Tensor) -> dict[int, SearchResult]:
    found = {k: batch.replay(k)[0](points[k : k + 1]) for k in places.tolist()}
    return {k: SearchResult(FALSIFIED, stage, witness) for k, witness in found.items() if witness and witness.agreed}


STAGES: tuple[Stage, ...] = (
    CleanStage(),
    BoundStage("ibp", "parallel"),
    BoundStage("crown", "parallel"),
    AttackStage(),
    BoundStage("crown", "adaptive"),
)


def cascade(question: Question, total: Budget) -> Settled:
    """Decide every sample of a question, as soon as possible: pairs of position and decision.

    `total` is for all of them: no search begins after it, and none takes longer than what is left of it.
    """
    batch = OpenSamples.of(question)
    for stage in STAGES:
        if len(batch.open):
            yield from _settle(batch, stage)
    for k in range(len(batch.open)):
        yield int(batch.open[k]), OUT_OF_TIME if total.over else _search(batch, k, total.left)


def _settle(batch: OpenSamples, stage: Stage) -> Settled:
    clock = time.perf_counter()
    found = stage.run(batch)
    batch.seconds += (time.perf_counter() - clock) / len(batch.open)
    for k, result in found.items():
        yield (
            int(batch.open[k]),
            Verdict(
                result.status,
                result.stage,
                result.witness,
                result.proof,
                evaluations=batch.evaluations,
                seconds=batch.seconds,
            ),
        )
    settled = torch.zeros(len(batch.open), dtype=torch.bool)
    settled[list(found)] = True
    batch.drop(settled)


def _search(batch: OpenSamples, k: int, most: float) -> Verdict:
    """One sample by slopes, branch and bound and what comes after."""
    asked = batch.question.settings
    replay, spec = batch.replay(k)
    here = {index: Interval(v.lower[k : k + 1], v.upper[k : k + 1]) for index, v in batch.intervals.items()}
    budget = Budget(min(asked.timeout, most), asked.memory)
    found = decide_unproved(replay, here, spec.keep(batch.margins[k] <= 0), budget, asked.solver)
    return replace(found, evaluations=found.evaluations + batch.evaluations, seconds=found.seconds + batch.seconds)
