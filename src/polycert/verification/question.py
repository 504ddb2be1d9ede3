"""A question: does the network keep a specification everywhere in each of several sets?

Samples with labels, sets with specifications, and VNN-LIB files (`vnnlib.question`) are three kinds of questions. Every
question can be sent to another process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from polycert import __version__
from polycert.attacks.pgd import attack_region
from polycert.certification.envelope import classes_of, margin_rows
from polycert.forms import Dense, Form
from polycert.graph import Graph
from polycert.graph.fingerprint import fingerprint
from polycert.sets.ball import Region
from polycert.sets.interval import holds
from polycert.verification.clause_attack import clause_attack
from polycert.verification.counterexample import CounterexampleCheck
from polycert.verification.snapshot import NetworkSnapshot
from polycert.verification.specification import Specification

if TYPE_CHECKING:
    from typing import Self

# These settings say how hard to try. With other values a sample may stay undecided, but every verdict means the same.
EFFORT = ("timeout", "memory", "solver", "attack_steps", "attack_restarts", "seed")
FEW_INPUTS = 12  # with more inputs that can move, halving boxes does not end in time
REPLAYED = 8  # how many of an attack's points are replayed, the most promising first
MANY_POINTS = 8192  # random points drawn before an attack where few inputs can move


@dataclass(frozen=True)
class VerificationSettings:
    """How much each sample may cost, and how it is attacked.

    Attributes:
        timeout: seconds for each sample's search.
        memory: bytes that open nodes of a search may take.
        solver: the solver of the mixed-integer program at the end: `highs` or `scip`.
        attack_steps, attack_restarts, seed: settings of the attack before the search.
    """

    timeout: float = 60.0
    memory: int = 2**30
    solver: str = "highs"
    attack_steps: int = 40
    attack_restarts: int = 3
    seed: int = 0

    @property
    def meaning(self) -> dict[str, Any]:
        """Return the settings that say what a verdict means, by name: all but those of `EFFORT`."""
        return {name: value for name, value in asdict(self).items() if name not in EFFORT}


class SpecificationRows(NamedTuple):
    """The specifications of a batch of sets, padded to one number of rows and clauses."""

    form: Form  # [sets or 1, rows, *output_shape]
    constants: Tensor  # [sets or 1, rows], float64; -inf for padding
    members: Tensor  # [sets or 1, clauses, rows]; a clause without rows is padding

    def proved(self, lower: Tensor) -> Tensor:
        """Return which clauses are proved, `[sets, clauses]`, by lower bounds of the rows without their constants."""
        positive = lower.double() > -self.constants
        return (positive[:, None] & self.members).any(2) | ~self.members.any(2)


class Candidates(NamedTuple):
    """Points of one set at which its specification may fail."""

    place: int  # the position of the set in the question
    points: Tensor  # [n, *shape]


@dataclass(frozen=True, eq=False)
class Question(ABC):
    """A network, sets, and a specification in each of them; subclasses say how specifications are written.

    Attributes:
        net: the network.
        region: the sets, `[n]`, in float64.
        settings: what a verdict may cost.
    """

    net: NetworkSnapshot
    region: Region
    settings: VerificationSettings

    def __len__(self) -> int:
        return len(self.region.x)

    @abstractmethod
    def part(self, positions: Tensor) -> Self:
        """Return the same question about some of the sets."""

    @property
    @abstractmethod
    def clauses(self) -> int:
        """Return the largest number of clauses in any specification."""

    @abstractmethod
    def specification(self, k: int) -> Specification:
        """Return the specification of the k-th set."""

    @abstractmethod
    def rows(self, graph: Graph) -> SpecificationRows:
        """Return the specifications of all sets, in the graph's type."""

    @abstractmethod
    def fits(self, dtype: torch.dtype) -> bool:
        """Whether a type holds all coefficients of the specifications."""

    @abstractmethod
    def quick_attack(self, deadline: float) -> Iterator[Candidates]:
        """Yield points that cost next to nothing; the deadline is a moment of `time.monotonic()`."""

    @abstractmethod
    def attack(self, deadline: float) -> Iterator[Candidates]:
        """Yield points found by descent; the deadline is a moment of `time.monotonic()`."""

    @property
    def late_attacks(self) -> int:
        """Return how many attacks are worth trying once all else has failed."""
        return 0

    def late_attack(self, k: int, spec: Specification, turn: int, deadline: float) -> Tensor:
        """Return points `[n, *shape]` of the k-th set at which a clause of `spec` may fail, others in every turn."""
        return self.region.x[k : k + 1]

    @abstractmethod
    def sample_fingerprints(self) -> list[str]:
        """Return a fingerprint of each set with its specification."""

    @property
    def fingerprint(self) -> str:
        """Return a fingerprint of what all verdicts in a journal have in common.

        It covers the version, the network, the kind of set, and the settings that say what a verdict means.
        """
        region, network = self.region, (self.net.own, self.net.double)
        return fingerprint(
            __version__, network, float(region.norm), region.low, region.high, region.minimum, self.settings.meaning
        )

    def check(self, k: int) -> CounterexampleCheck:
        """Return the check that recognises counterexamples in the k-th set."""
        return CounterexampleCheck(self.net, self.region[k : k + 1], self.specification(k))

    def check_network(self) -> None:  # noqa: B027 (for most questions there is nothing to do)
        """Make sure that the network computes what its file says in these sets."""

    def free_inputs(self, k: int) -> int:
        """Return how many inputs can take more than one value in the k-th set."""
        box = self.region[k : k + 1].box
        beyond = torch.nextafter(torch.nextafter(box.lower, box.upper), box.upper)
        return int((box.upper > beyond).sum())

    def proving_graph(self) -> Graph | None:
        """Return the cheapest graph whose bounds over these sets are proofs; None if no bound is a proof."""
        graph = self.net.proving(self.region)
        return graph if graph is None or self.fits(graph.dtype) else self.net.double


@dataclass(frozen=True, eq=False)
class LabelQuestion(Question):
    """Do these samples keep their labels?"""

    label: Tensor  # [n]
    prediction: Tensor  # [n]
    index: Tensor  # [n]: position of each sample in its data set

    def part(self, positions: Tensor) -> Self:
        """Return the same question about some of the samples."""
        return replace(
            self,
            region=self.region[positions],
            label=self.label[positions],
            prediction=self.prediction[positions],
            index=self.index[positions],
        )

    @property
    def clauses(self) -> int:
        """Return the number of clauses: one for each other class."""
        return classes_of(self.net.own) - 1

    def specification(self, k: int) -> Specification:
        """Return the specification `z_label - z_i > 0` for all other classes i of the k-th sample."""
        return Specification.margins(int(self.label[k]), classes_of(self.net.own))

    def rows(self, graph: Graph) -> SpecificationRows:
        """Return the margins of all samples, each a clause of its own."""
        form = margin_rows(graph, self.label).form
        margins = classes_of(graph) - 1
        constants = torch.zeros(1, margins, dtype=torch.float64)
        return SpecificationRows(form, constants, torch.eye(margins, dtype=torch.bool)[None])

    def fits(self, dtype: torch.dtype) -> bool:
        """Return True: every type holds 1 and -1."""
        return True

    def quick_attack(self, deadline: float) -> Iterator[Candidates]:
        """Yield the samples that the network misclassifies or ties on."""
        with torch.no_grad():
            outputs = self.net.double.forward(self.region.x)
        label = self.label[:, None]
        margin = outputs.gather(1, label)[:, 0] - outputs.scatter(1, label, -torch.inf).amax(1)
        for k in (margin <= 0).nonzero().flatten().tolist():
            yield Candidates(k, self.region.x[k : k + 1])

    def attack(self, deadline: float) -> Iterator[Candidates]:
        """Yield the counterexamples of descents from x, from random points and towards the nearest classes."""
        settings, graph = self.settings, self.net.own
        found = attack_region(
            graph,
            self.region.to(graph.dtype),
            self.label,
            self.index,
            steps=settings.attack_steps,
            restarts=settings.attack_restarts,
            seed=settings.seed,
            until_success=True,
        )
        for k in found.success.nonzero().flatten().tolist():
            yield Candidates(k, found.inputs[k : k + 1].double())

    def sample_fingerprints(self) -> list[str]:
        """Return a fingerprint of each sample's input, label and radius."""
        parts = zip(self.region.x, self.label.tolist(), self.region.eps.tolist(), strict=True)
        return [fingerprint(*part) for part in parts]


@dataclass(frozen=True, eq=False)
class SetQuestion(Question):
    """Does each of these sets keep a specification of its own?"""

    specifications: tuple[Specification, ...]

    def part(self, positions: Tensor) -> Self:
        """Return the same question about some of the sets."""
        return replace(
            self,
            region=self.region[positions],
            specifications=tuple(self.specifications[k] for k in positions.tolist()),
        )

    @property
    def clauses(self) -> int:
        """Return the largest number of clauses in any set."""
        return max((spec.clauses for spec in self.specifications), default=0)

    def specification(self, k: int) -> Specification:
        """Return the specification of the k-th set."""
        return self.specifications[k]

    def rows(self, graph: Graph) -> SpecificationRows:
        """Return the rows of all sets, padded where a set has fewer."""
        specs = self.specifications
        most = max(len(spec.constants) for spec in specs)
        rows = torch.zeros(len(specs), most, *graph.output_shape, dtype=graph.dtype)
        constants = torch.full((len(specs), most), -torch.inf, dtype=torch.float64)
        members = torch.zeros(len(specs), self.clauses, most, dtype=torch.bool)
        for k, spec in enumerate(specs):
            count = len(spec.constants)
            rows[k, :count] = spec.rows.to(graph.dtype)
            constants[k, :count] = spec.constants
            members[k, : spec.clauses, :count] = spec.members
        return SpecificationRows(Dense(rows), constants, members)

    def fits(self, dtype: torch.dtype) -> bool:
        """Whether a type holds all coefficients of the rows."""
        return all(holds(dtype, spec.rows) for spec in self.specifications)

    def quick_attack(self, deadline: float) -> Iterator[Candidates]:
        """Yield the best points of a short descent from a few points."""
        return self._attack(tries=4, steps=20, deadline=deadline)

    def attack(self, deadline: float) -> Iterator[Candidates]:
        """Yield the best points of a longer descent from more points."""
        return self._attack(tries=16, steps=100, deadline=deadline)

    def _attack(self, *, tries: int, steps: int, deadline: float) -> Iterator[Candidates]:
        """Yield the best points of a descent for each set."""
        for k, spec in enumerate(self.specifications):
            points = self.attack_points(k, spec, tries=tries, steps=steps, seed=self.settings.seed, deadline=deadline)
            yield Candidates(k, points[:REPLAYED])

    def attack_points(
        self, k: int, spec: Specification, *, tries: int, steps: int, seed: int, deadline: float
    ) -> Tensor:
        """Return the best points `[n, *shape]` for the clauses of `spec` in the k-th set, the most promising first."""
        graph = self.net.own
        draws = MANY_POINTS if self.free_inputs(k) <= FEW_INPUTS else tries
        region = self.region[k : k + 1].to(graph.dtype)
        return clause_attack(graph, region, spec, tries=tries, draws=draws, steps=steps, seed=seed, deadline=deadline)

    def sample_fingerprints(self) -> list[str]:
        """Return a fingerprint of each set and its specification."""
        parts = zip(self.region.x, self.region.eps.tolist(), self.specifications, strict=True)
        return [fingerprint(x, eps, spec.rows, spec.constants, spec.clause) for x, eps, spec in parts]
