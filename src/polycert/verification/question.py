"""What is asked about many samples, in a form that can be sent to a process."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from polycert import __version__
from polycert.graph.fingerprint import fingerprint
from polycert.sets.ball import Region
from polycert.verification.snapshot import NetworkSnapshot

# Settings that say how hard to try: another one may leave a sample undecided, but no verdict means anything else.
EFFORT = ("timeout", "memory", "solver", "attack_steps", "attack_restarts", "seed")


@dataclass(frozen=True)
class VerificationSettings:
    """How much each sample may cost, and how it is attacked.

    Attributes:
        timeout: seconds for each sample's search.
        memory: bytes for open nodes of a search.
        solver: of the mixed-integer program at the end: `highs` or `scip`.
        attack_steps, attack_restarts, seed: of the attack that goes before.
    """

    timeout: float = 60.0
    memory: int = 2**30
    solver: str = "highs"
    attack_steps: int = 40
    attack_restarts: int = 3
    seed: int = 0

    @property
    def meaning(self) -> dict[str, Any]:
        """All that is not mere effort: a verdict under other such settings says something else."""
        return {name: value for name, value in asdict(self).items() if name not in EFFORT}


@dataclass(frozen=True, eq=False)
class Question:
    """Do these samples keep their labels?"""

    net: NetworkSnapshot
    region: Region  # float64
    label: Tensor  # [n]
    prediction: Tensor  # [n]
    index: Tensor  # [n]: position of each sample in its data set
    settings: VerificationSettings

    def __len__(self) -> int:
        return len(self.label)

    def part(self, positions: Tensor) -> Question:
        """The same about some of the samples."""
        return replace(
            self,
            region=self.region[positions],
            label=self.label[positions],
            prediction=self.prediction[positions],
            index=self.index[positions],
        )

    @property
    def fingerprint(self) -> str:
        """Of the network, of the kind of set, and of what a verdict means: what a journal's records have in common."""
        region, network = self.region, (self.net.own, self.net.double)
        return fingerprint(
            __version__, network, float(region.norm), region.low, region.high, region.minimum, self.settings.meaning
        )

    def sample_fingerprints(self) -> list[str]:
        """Of each sample: its input, label and radius."""
        parts = zip(self.region.x, self.label.tolist(), self.region.eps.tolist(), strict=True)
        return [fingerprint(*part) for part in parts]
