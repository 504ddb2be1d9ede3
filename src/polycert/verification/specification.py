"""Specifications of a network's output: in every clause, at least one row must be positive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polycert.errors import PolycertError


@dataclass(frozen=True, eq=False)
class Specification:
    """A linear specification of the output z: in each clause, `max over its rows of (row . z + constant) > 0`.

    A clause is the negation of an unsafe set: the set "a . z <= b and c . z <= d" gives the clause with the rows a, c
    and the constants -b, -d. Several unsafe sets give several clauses. The margins of a classifier are clauses of one
    row each.

    Attributes:
        rows: `[rows, *output_shape]`, float64.
        constants: `[rows]`, float64.
        clause: `[rows]`, the number of the clause that each row belongs to: 0, 1, … without a gap.
    """

    rows: Tensor
    constants: Tensor
    clause: Tensor

    def __post_init__(self) -> None:
        count = len(self.rows)
        if count == 0 or self.constants.shape != (count,) or self.clause.shape != (count,):
            raise PolycertError(
                f"a specification needs one constant and one clause for each of its rows, got {count} rows, "
                f"{tuple(self.constants.shape)} constants and {tuple(self.clause.shape)} clauses"
            )
        if sorted(set(self.clause.tolist())) != list(range(self.clauses)):
            raise PolycertError(f"clauses must be numbered 0, 1, … without a gap, got {self.clause.tolist()}")
        if not bool(torch.isfinite(self.rows).all() and torch.isfinite(self.constants).all()):
            raise PolycertError("a specification must hold finite numbers only")

    @property
    def clauses(self) -> int:
        """Return how many clauses there are."""
        return int(self.clause.max()) + 1

    @property
    def members(self) -> Tensor:
        """Return a mask of the rows that belong to each clause: `[clauses, rows]`."""
        return self.clause == torch.arange(self.clauses)[:, None]

    def worst(self, outputs: Tensor) -> Tensor:
        """Return the least over the clauses of their largest row, `[n]`, at outputs `[n, *output_shape]`."""
        values = outputs.to(self.rows).flatten(1) @ self.rows.flatten(1).T + self.constants
        return worst_clause(values, self.members)

    def keep(self, clauses: Tensor) -> Specification:
        """Return the specification with only some of the clauses, given as a mask, renumbered."""
        rows = clauses[self.clause]
        renumbered = (clauses.long().cumsum(0) - 1)[self.clause[rows]]
        return Specification(self.rows[rows], self.constants[rows], renumbered)

    @staticmethod
    def margins(label: int, classes: int) -> Specification:
        """Return the specification `z_label - z_i > 0` for all other classes i, each a clause of its own."""
        eye = torch.eye(classes, dtype=torch.float64)
        others = torch.tensor([i for i in range(classes) if i != label])
        rows = eye[label] - eye[others]
        return Specification(rows, torch.zeros(len(rows), dtype=torch.float64), torch.arange(len(rows)))

    @staticmethod
    def never(unsafe: Sequence[tuple[Tensor, Tensor]]) -> Specification:
        """Return the specification that no output lies in one of the sets `{z : rows . z <= limits}`.

        Each set is a pair of rows `[m, outputs]` and limits `[m]`.
        """
        parts = [(torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64)) for a, b in unsafe]
        clause = torch.cat([torch.full((len(a),), k) for k, (a, _) in enumerate(parts)])
        return Specification(torch.cat([a for a, _ in parts]), -torch.cat([b for _, b in parts]), clause)


def worst_clause(values: Tensor, members: Tensor) -> Tensor:
    """Return the least over the clauses of their largest row, `[n]`, for values of the rows `[n, rows]`."""
    inside = torch.where(members, values[:, None], -torch.inf)
    return inside.amax(2).amin(1)
