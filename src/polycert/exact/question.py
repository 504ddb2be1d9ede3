"""What is asked about many samples, in a form that can be sent to a process."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from hashlib import sha256

import torch
from torch import Tensor

from polycert.exact.frozen import Frozen
from polycert.graph import Graph
from polycert.sets import Region


@dataclass(frozen=True)
class Settings:
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


@dataclass(frozen=True, eq=False)
class Question:
    """Do these samples keep their labels?"""

    net: Frozen
    region: Region  # float64
    label: Tensor  # [n]
    prediction: Tensor  # [n]
    index: Tensor  # [n]: position of each sample in its data set
    settings: Settings

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
        """Of the network and of the kind of set: what a journal's records have in common."""
        box = [None if side is None else as_bytes(side) for side in (self.region.low, self.region.high)]
        return digest(self.net.own.dtype, network_parts(self.net.own), self.region.norm, box)

    def sample_fingerprints(self) -> list[str]:
        """Of each sample: its input, label and radius."""
        parts = zip(self.region.x, self.label.tolist(), self.region.eps.tolist(), strict=True)
        return [digest(as_bytes(x), label, eps)[:16] for x, label, eps in parts]


def network_parts(graph: Graph) -> list[object]:
    """All that the graph's values depend on."""
    found: list[object] = []
    for node in graph.nodes:
        found += [type(node.op).__name__, node.inputs, node.shape]
        if is_dataclass(node.op):
            values = [getattr(node.op, item.name) for item in fields(node.op)]
            found += [as_bytes(v) if isinstance(v, Tensor) else repr(v) for v in values]
    return found


def as_bytes(values: Tensor) -> bytes:
    """Numbers as bytes that do not depend on their type or device."""
    return values.detach().cpu().to(torch.float64).contiguous().numpy().tobytes()


def digest(*parts: object) -> str:
    """A fingerprint of anything that prints what it is."""
    return sha256(repr(parts).encode()).hexdigest()
