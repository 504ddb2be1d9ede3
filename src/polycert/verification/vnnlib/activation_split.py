"""Clauses handed to the complete certifier: the demand is that in every clause some row is positive."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polycert.exact import Specification
from polycert.exact import decide as decide_exactly
from polycert.graph import Network
from polycert.verification.input_split import Boxes
from polycert.verification.verdicts import FALSIFIED, ROBUST
from polycert.verification.vnnlib.property import Box, Clause


def complete(network: Network, box: Box, clauses: list[Clause], seconds: float) -> tuple[bool, Tensor | None]:
    """Whether all clauses are excluded, rounding covered; else a point `[1, *input_shape]` in one, if one is found."""
    sides = (torch.from_numpy(side).reshape(1, *network.input_shape) for side in (box.lower, box.upper))
    spec = Specification(
        torch.from_numpy(np.concatenate([c.rows for c in clauses])).reshape(-1, *network.output_shape),
        torch.from_numpy(np.concatenate([c.constants for c in clauses])),
        torch.cat([torch.full((len(c.rows),), k) for k, c in enumerate(clauses)]),
    )
    found = decide_exactly(network, Boxes(*sides).region(), spec, timeout=seconds)
    if found.status == ROBUST:
        return True, None
    witness = found.witness if found.status == FALSIFIED else None
    return False, None if witness is None else witness.input.reshape(1, *network.input_shape)
