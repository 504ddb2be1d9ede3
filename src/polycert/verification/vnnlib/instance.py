"""The decision of a property: search for a witness, bound, then split the input or branch on activations."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polycert.bounding.methods import error_model, provable
from polycert.errors import PolycertError
from polycert.graph import Graph
from polycert.graph.onnx import OnnxNetwork
from polycert.runtime.execution import plain_products
from polycert.sets.interval import holds, round_down, round_up
from polycert.verification.input_split import Boxes, InputSplitting, OutOfTime, Rows
from polycert.verification.vnnlib.activation_split import complete
from polycert.verification.vnnlib.falsify import PropertyCounterexample, confirmed, descend
from polycert.verification.vnnlib.property import Box, Clause, Property

log = logging.getLogger(__name__)

SAT, UNSAT, UNKNOWN, TIMEOUT = "sat", "unsat", "unknown", "timeout"
# Above this many inputs with room to move, halving boxes does not end in time.
FEW_INPUTS = 12
MANY_POINTS = 8192  # random points that few inputs are covered with before a descent
FIRST_TURN = 2.0  # seconds for each clause in turn, twice as long each time


@dataclass(frozen=True, eq=False)
class PropertyVerdict:
    """`sat` with its witness, `unsat`, `unknown` (given up) or `timeout`."""

    status: str
    witness: PropertyCounterexample | None = None
    seconds: float = 0.0


def decide(network: OnnxNetwork, asked: Property, *, timeout: float, seed: int = 0) -> PropertyVerdict:
    """Whether an input in one of the boxes has an output in one of its clauses.

    Args:
        network: from `pc.load("net.onnx")`.
        asked: from `read_property`.
        timeout: seconds.
        seed: of the search for witnesses.

    `unsat` is a proof about the real-valued network with the stored weights, all rounding covered; `sat` comes with an
    input inside the box whose output, as onnxruntime computes it, fulfils a clause.

    Raises:
        PolycertError: if the property does not fit the network, or the network is not reproduced inside a box.
    """
    started = time.monotonic()
    sizes = torch.Size(network.input_shape).numel(), torch.Size(network.output_shape).numel()
    if sizes != (asked.inputs, asked.outputs):
        raise PolycertError(
            f"the property has {asked.inputs} inputs and {asked.outputs} outputs, the network {sizes[0]} and {sizes[1]}"
        )
    job = PropertyVerifier(network, started + timeout, torch.Generator().manual_seed(seed))
    statuses = []
    for box in asked.boxes:
        status, witness = job.decide(box)
        if witness is not None:
            return PropertyVerdict(SAT, witness, time.monotonic() - started)
        statuses.append(status)
    order = (TIMEOUT, UNKNOWN, UNSAT)
    worst = min(statuses, key=order.index, default=UNSAT)
    return PropertyVerdict(worst, None, time.monotonic() - started)


@dataclass(frozen=True, eq=False)
class PropertyVerifier:
    """One network, one deadline."""

    network: OnnxNetwork
    deadline: float
    generator: torch.Generator

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.deadline

    def decide(self, box: Box) -> tuple[str, PropertyCounterexample | None]:
        """One box: a cheap attack, the bounds, and then what suits the network."""
        witness = self.attack(box, box.clauses, tries=4, steps=20)
        if witness is not None:
            return SAT, witness
        if self.over:
            return TIMEOUT, None
        proof = self.network.bind(torch.float64)
        if proof.computed:
            log.warning("weights are computed in the file, with rounding: nothing can be proved, only refuted")
            return self.give_up(box, list(box.clauses))
        self.network.check_inside(_set(proof, box).region())
        open_clauses = list(box.clauses)
        try:
            for graph, relaxation in self.stages(proof):
                excluded = self.excluded(graph, box, open_clauses, relaxation)
                open_clauses = [clause for clause in open_clauses if clause not in excluded]
                if not open_clauses:
                    return UNSAT, None
        except OutOfTime:
            return TIMEOUT, None
        witness = self.attack(box, open_clauses, tries=16, steps=100)
        if witness is not None:
            return SAT, witness
        if self._few(box):
            return self.split(proof, box, open_clauses)
        return self.branch(box, open_clauses)

    def _few(self, box: Box) -> bool:
        return box.free <= FEW_INPUTS

    def attack(
        self, box: Box, clauses: tuple[Clause, ...] | list[Clause], *, tries: int, steps: int
    ) -> PropertyCounterexample | None:
        """A witness by gradient descent, or None."""
        points = descend(
            self.network.bind(),
            box,
            clauses,
            tries=tries,
            pool=MANY_POINTS if self._few(box) else tries,
            steps=steps,
            generator=self.generator,
            deadline=self.deadline,
        )
        return confirmed(self.network, box, points[:8])

    def stages(self, proof: Graph) -> list[tuple[Graph, str]]:
        """Graphs and relaxations, the cheapest first: the network's own type, if it can carry a proof, then float64."""
        own = provable(self.network, self.network.bind())
        first = [] if own.dtype == proof.dtype else [(own, "adaptive")]
        return [*first, (proof, "adaptive"), (proof, "parallel")]

    def excluded(self, proof: Graph, box: Box, clauses: list[Clause], relaxation: str) -> list[Clause]:
        """The clauses that the bounds of one relaxation exclude; all rows in one pass."""
        rows, constants, strict = zip(*((c.rows, c.constants, c.strict) for c in clauses), strict=True)
        whole = Clause(np.concatenate(rows), np.concatenate(constants), np.concatenate(strict))
        if not holds(proof.dtype, torch.from_numpy(whole.rows)):
            return []
        search = _search(proof, box, whole)
        search.relaxation, search.deadline = relaxation, self.deadline
        with torch.no_grad(), plain_products(proof.device):
            positive = search.bound(search.waiting[0]).value[0] > 0
        parts = positive.split([len(clause.rows) for clause in clauses])
        return [clause for clause, part in zip(clauses, parts, strict=True) if bool(part.any())]

    def split(self, proof: Graph, box: Box, clauses: list[Clause]) -> tuple[str, PropertyCounterexample | None]:
        """Branch and bound on the input, the clauses in turns that grow."""
        looks = [CentreCheck(self.network, proof, box, clause) for clause in clauses]
        searches = [_search(proof, box, clause) for clause in clauses]
        turn = FIRST_TURN
        while searches and not self.over:
            for search, look in list(zip(searches, looks, strict=True)):
                with torch.no_grad(), plain_products(proof.device):
                    outcome = search.run(min(self.deadline, time.monotonic() + turn), look)
                log.info("splitting: %d boxes, %s", search.seen, outcome)
                if look.witness is not None:
                    return SAT, look.witness
                if outcome:
                    searches.remove(search)
                    looks.remove(look)
            turn *= 2
        return (TIMEOUT if searches else UNSAT), None

    def branch(self, box: Box, clauses: list[Clause]) -> tuple[str, PropertyCounterexample | None]:
        """The complete certifier, which branches on activations."""
        outcome, point = complete(self.network, box, clauses, self.deadline - time.monotonic())
        if outcome:
            return UNSAT, None
        witness = None if point is None else confirmed(self.network, box, point)
        if witness is not None:
            return SAT, witness
        return (TIMEOUT, None) if self.over else self.give_up(box, clauses)

    def give_up(self, box: Box, clauses: list[Clause]) -> tuple[str, PropertyCounterexample | None]:
        """Nothing is left but to look for a witness with more tries."""
        for _ in range(20):
            witness = self.attack(box, clauses, tries=32, steps=200)
            if witness is not None:
                return SAT, witness
            if self.over:
                return TIMEOUT, None
        return UNKNOWN, None


@dataclass(eq=False)
class CentreCheck:
    """Recognises a witness among the centres of boxes."""

    network: OnnxNetwork
    proof: Graph
    box: Box
    clause: Clause
    witness: PropertyCounterexample | None = None

    def __call__(self, points: Tensor) -> bool:
        """Whether one of the points is a witness; it is kept."""
        outputs = self.proof.forward(points).flatten(1)
        values = outputs @ torch.from_numpy(self.clause.rows).T + torch.from_numpy(self.clause.constants)
        excess = values.amax(1)
        if bool((excess <= 0).any()):
            self.witness = confirmed(self.network, self.box, points[excess.argsort()[:2]])
        return self.witness is not None


def _search(proof: Graph, box: Box, clause: Clause) -> InputSplitting:
    """Constants rounded down to the graph's type; the rows must fit it."""
    coef = torch.from_numpy(clause.rows).to(proof.dtype).reshape(-1, *proof.output_shape)
    rows = Rows(coef, round_down(torch.from_numpy(clause.constants), proof.dtype))
    return InputSplitting(proof, rows, error_model(proof), [_set(proof, box)])


def _set(proof: Graph, box: Box) -> Boxes:
    """The box rounded outward to the graph's type."""
    ends = (round_down(torch.from_numpy(box.lower), proof.dtype), round_up(torch.from_numpy(box.upper), proof.dtype))
    return Boxes(*(end.reshape(1, *proof.input_shape) for end in ends))
