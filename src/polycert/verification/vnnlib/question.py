"""VNN-LIB properties as questions: boxes are sets, clauses are specifications, and onnxruntime has the last word."""

from __future__ import annotations

import logging
import math
import os
import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polycert.bounding.chunking import batch_size_for
from polycert.bounding.methods import error_model
from polycert.errors import PolycertError
from polycert.graph import Graph
from polycert.graph.fingerprint import fingerprint
from polycert.graph.onnx import OnnxNetwork
from polycert.runtime.execution import plain_products
from polycert.sets.interval import round_down, round_up
from polycert.verification.counterexample import Counterexample, CounterexampleCheck
from polycert.verification.input_split import Boxes, InputSplitting, Rows
from polycert.verification.programs import get_solver
from polycert.verification.question import REPLAYED, SetQuestion, VerificationSettings
from polycert.verification.snapshot import NetworkSnapshot
from polycert.verification.specification import Specification
from polycert.verification.verdicts import FALSIFIED, ROBUST
from polycert.verification.verify import decisions
from polycert.verification.vnnlib.property import Box, Clause, Property

if TYPE_CHECKING:
    from typing import Self

log = logging.getLogger(__name__)

SAT, UNSAT, UNKNOWN, TIMEOUT = "sat", "unsat", "unknown", "timeout"
CHECKS = 64  # comparisons with onnxruntime, at most; more boxes than these are compared several at a time


class PropertyCounterexample(NamedTuple):
    """An input in a box and the output that onnxruntime gives for it."""

    x: np.ndarray  # [inputs] float64
    y: np.ndarray  # [outputs] float64


@dataclass(frozen=True, eq=False)
class PropertyVerdict:
    """The verdict on a property.

    Attributes:
        status: `sat`, `unsat`, `unknown` (all stages gave up) or `timeout`.
        counterexample: the counterexample, for `sat`; `witness` is another name of it.
        seconds: how long it took.
        resumed: how many boxes were decided by a journal.
    """

    status: str
    counterexample: PropertyCounterexample | None = None
    seconds: float = 0.0
    resumed: int = 0

    @property
    def witness(self) -> PropertyCounterexample | None:
        """Return `counterexample`, by its earlier name."""
        return self.counterexample


def decide(
    network: OnnxNetwork,
    asked: Property,
    *,
    timeout: float,
    workers: int = 1,
    memory: int = 2**30,
    solver: str = "highs",
    trust_solver: bool = False,
    seed: int = 0,
    journal: str | os.PathLike[str] | None = None,
) -> PropertyVerdict:
    """Decide whether an input in one of the boxes has an output in one of the box's clauses.

    Args:
        network: from `pc.load("net.onnx")`.
        asked: from `read_property`.
        timeout: seconds for all boxes together.
        workers, memory, solver, trust_solver, seed, journal: as in `polycert.verify`; each box counts as a sample.

    Returns:
        A verdict: `unsat` is a proof about the real-valued network with the stored weights, all rounding covered; `sat`
        comes with an input inside the box whose output, as onnxruntime computes it, fulfils a clause.

    Raises:
        PolycertError: if the property does not fit the network, or the network is not reproduced inside a box.
    """
    started = time.monotonic()
    get_solver(solver)
    sizes = math.prod(network.input_shape), math.prod(network.output_shape)
    if sizes != (asked.inputs, asked.outputs):
        raise PolycertError(
            f"the property has {asked.inputs} inputs and {asked.outputs} outputs, the network {sizes[0]} and {sizes[1]}"
        )
    if not asked.boxes:
        return PropertyVerdict(UNSAT)
    settings = VerificationSettings(timeout=timeout, memory=memory, solver=solver, seed=seed)
    question = PropertyQuestion.of(network, asked.boxes, settings)
    batch = batch_size_for(question.net.own)
    proved = resumed = 0
    with closing(decisions(question, batch=batch, workers=workers, total=timeout, journal=journal)) as verdicts:
        for _, verdict in verdicts:
            found = verdict.trusting() if trust_solver else verdict
            resumed += found.resumed
            if found.status == FALSIFIED:
                one = found.counterexample
                assert one is not None
                assert one.output is not None
                point = PropertyCounterexample(one.input.flatten().numpy(), one.output.numpy())
                return PropertyVerdict(SAT, point, time.monotonic() - started, resumed)
            proved += found.status == ROBUST
    seconds = time.monotonic() - started
    undecided = TIMEOUT if seconds >= timeout else UNKNOWN
    return PropertyVerdict(UNSAT if proved == len(question) else undecided, None, seconds, resumed)


@dataclass(frozen=True, eq=False)
class PropertyQuestion(SetQuestion):
    """Does every input of each box have an output outside of the box's clauses?"""

    network: OnnxNetwork
    boxes: tuple[Box, ...]

    @staticmethod
    def of(network: OnnxNetwork, boxes: tuple[Box, ...], settings: VerificationSettings) -> PropertyQuestion:
        """Return the question about the boxes of a property."""
        snapshot = NetworkSnapshot.of(network, unproved=True)
        if snapshot.proof is None:
            log.warning("weights are computed in the file, with rounding: nothing can be proved, only refuted")
        shape = (len(boxes), *network.input_shape)
        lower, upper = (
            torch.from_numpy(np.stack([getattr(box, side) for box in boxes])).reshape(shape)
            for side in ("lower", "upper")
        )
        region = Boxes(lower, upper).region(network.own)
        specs = tuple(_specification(box.clauses, network.output_shape) for box in boxes)
        return PropertyQuestion(snapshot, region, settings, specs, network, boxes)

    def part(self, positions: Tensor) -> Self:
        """Return the same question about some of the boxes."""
        return replace(super().part(positions), boxes=tuple(self.boxes[k] for k in positions.tolist()))

    def check(self, k: int) -> CounterexampleCheck:
        """Return the check by onnxruntime inside the k-th exact box."""
        return FileCheck(self.net, self.region[k : k + 1], self.specifications[k], self.network, self.boxes[k])

    def check_network(self) -> None:
        """Compare the graph with onnxruntime inside the boxes."""
        for some in torch.arange(len(self)).chunk(CHECKS):
            self.network.check_inside(self.region[some])

    def free_inputs(self, k: int) -> int:
        """Return how many inputs can take more than one value in the k-th box; sides of one decimal are points."""
        return self.boxes[k].free

    @property
    def late_attacks(self) -> int:
        """Return how many attacks are worth trying once all else has failed; the time is mostly up before."""
        return 20

    def late_attack(self, k: int, spec: Specification, turn: int, deadline: float) -> Tensor:
        """Return the points of a long descent from many points, others in every turn."""
        seed = self.settings.seed + turn + 1
        return self.attack_points(k, spec, tries=32, steps=200, seed=seed, deadline=deadline)

    def sample_fingerprints(self) -> list[str]:
        """Return a fingerprint of each box with its clauses, as the file writes them."""
        return [fingerprint(box.lower, box.upper, box.inner, _written(box.clauses)) for box in self.boxes]


def _written(clauses: tuple[Clause, ...]) -> list[tuple[object, ...]]:
    """Return the clauses in a form that can be fingerprinted."""
    return [(c.rows, c.constants, c.strict, [str(value) for value in c.exact or ()]) for c in clauses]


def _specification(clauses: tuple[Clause, ...], output_shape: tuple[int, ...]) -> Specification:
    """Return the specification that no output lies in a clause."""
    return Specification(
        torch.from_numpy(np.concatenate([clause.rows for clause in clauses])).reshape(-1, *output_shape),
        torch.from_numpy(np.concatenate([clause.constants for clause in clauses])),
        torch.cat([torch.full((len(clause.rows),), k) for k, clause in enumerate(clauses)]),
    )


@dataclass(frozen=True, eq=False)
class FileCheck(CounterexampleCheck):
    """Takes a point as a counterexample if onnxruntime's output for it fulfils a clause, without any rounding."""

    network: OnnxNetwork
    written: Box

    def __call__(self, points: Tensor) -> Counterexample | None:
        """Return the first counterexample among points `[n, …]`, or None; the most promising points are tried first."""
        shaped = points.detach().cpu().double().reshape(-1, *self.network.input_shape)
        with torch.no_grad():
            order = self.spec.worst(self.net.double.forward(shaped)).argsort()[:REPLAYED]
        return next((found for found in map(self._replayed, shaped[order]) if found is not None), None)

    def best(self, points: Tensor) -> Counterexample | None:
        """Return the first counterexample among points: only what onnxruntime confirms counts, moved or not."""
        return self(points)

    def exactly(self, point: Tensor) -> Counterexample | None:
        """Return a point as a counterexample if onnxruntime confirms it: exact arithmetic is not enough."""
        return self(point[None])

    def _replayed(self, point: Tensor) -> Counterexample | None:
        """Return a point `[*input_shape]` as a counterexample if it is one when onnxruntime replays it, else None.

        The point is moved to numbers of the file's input type inside the box. Where a side holds no such number, for
        instance because it is a single decimal, the nearest number is taken, and the real-valued network must fulfil
        the clause on the whole side too.
        """
        kind = torch.float64 if self.network.program.input_type is np.float64 else torch.float32
        first, last = (torch.from_numpy(end) for end in self.written.inner)
        low, high = round_up(first, kind).double(), round_down(last, kind).double()
        held = (low <= high) & ~torch.from_numpy(self.written.narrow)
        near = point.flatten().to(kind).double()
        x = torch.where(held, near.clamp(low, high), near.clamp(first, last))
        y = self.network.replay(x.reshape(1, *point.shape))[0]
        if not self.written.holds(x.numpy(), y.numpy()):
            return None
        if not bool(held.all()) and not self._really(torch.where(held, x, torch.nan)):
            return None
        with torch.no_grad():
            margin = self.spec.worst(self.net.double.forward(x.reshape(1, *point.shape)))
        return Counterexample(x.reshape(point.shape), float(margin), float(self.spec.worst(y[None])), y)

    def _really(self, x: Tensor) -> bool:
        """Whether the real-valued network fulfils a clause wherever the inputs that are NaN lie on their sides."""
        graph = self.net.double
        if graph.computed:
            return False
        ends = (torch.from_numpy(side) for side in (self.written.lower, self.written.upper))
        boxes = Boxes(*(torch.where(x.isnan(), end, x).reshape(1, *graph.input_shape) for end in ends))
        return any(_fulfilled(graph, clause, boxes) for clause in self.written.clauses)


def _fulfilled(graph: Graph, clause: Clause, boxes: Boxes) -> bool:
    """Whether bounds prove that outputs fulfil every row of a clause in a box."""
    constants = torch.from_numpy(np.nextafter(clause.constants, math.inf))
    rows = Rows(-torch.from_numpy(clause.rows).reshape(-1, *graph.output_shape), -constants)
    with torch.no_grad(), plain_products(graph.device):
        found = InputSplitting(graph, rows, error_model(graph), []).bound(boxes)
    return bool((found.value > 0).all())
