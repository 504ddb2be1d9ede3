"""Nodes of the search tree, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from polycert.verification.reduced_problem import Reduced


@dataclass(frozen=True, eq=False)
class Nodes:
    """Which units are held, by what multipliers each node was bounded, and the bound."""

    clause: Tensor  # [nodes], long
    split: Tensor  # [nodes, units], int8
    alpha: Tensor  # [nodes, units]
    beta: Tensor  # [nodes, units]
    weight: Tensor  # [nodes, rows]
    bound: Tensor  # [nodes]

    def __len__(self) -> int:
        return len(self.clause)

    def __getitem__(self, index: Tensor | slice) -> Nodes:
        return Nodes(*(getattr(self, item.name)[index] for item in fields(self)))

    @staticmethod
    def join(parts: Sequence[Nodes]) -> Nodes:
        """All nodes together."""
        return Nodes(*(torch.cat([getattr(part, item.name) for part in parts]) for item in fields(Nodes)))

    @staticmethod
    def roots(problem: Reduced) -> Nodes:
        """One node for each clause, with CROWN's slopes and equal weights."""
        members = problem.members.to(problem.lower)
        count, units = len(members), problem.count
        steep = (problem.upper >= -problem.lower).to(problem.lower)
        return Nodes(
            torch.arange(count),
            torch.zeros(count, units, dtype=torch.int8),
            steep.expand(count, units).clone(),
            torch.zeros(count, units, dtype=problem.lower.dtype),
            members / members.sum(1, keepdim=True),
            torch.full((count,), -torch.inf, dtype=problem.lower.dtype),
        )
