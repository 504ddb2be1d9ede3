"""Where an activation's lines do not pass through 0: what rows pick up on their way back."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from polycert.forms import Form
from polycert.rules import Lines

FEW_UNITS = 1 / 8  # of a layer: above this share, all of them at once cost less than the chosen ones


class CentredOffsets(NamedTuple):
    """Of two lines around an activation: halfway between them at 0, and half their distance there."""

    middle: Tensor
    half_gap: Tensor


class NonzeroOffsets(NamedTuple):
    """The units of each sample whose lines do not pass through 0, filled up with others where a sample has fewer."""

    units: Tensor  # [batch, count]
    offsets: CentredOffsets  # [batch, count] each


class LineOffsets(NamedTuple):
    """The offsets of an activation's lines: at all units, and at those that have any if they are few."""

    all: CentredOffsets
    few: NonzeroOffsets | None

    @staticmethod
    def of(lines: Lines) -> LineOffsets:
        """Looked up once for all rows that pass the activation."""
        whole = CentredOffsets(lines.middle, lines.half_gap)
        bent = ((lines.lower_offset != 0) | (lines.upper_offset != 0)).flatten(1)
        units = _few(bent)
        if units is None:
            return LineOffsets(whole, None)
        return LineOffsets(
            whole, NonzeroOffsets(units, CentredOffsets(*(part.flatten(1).gather(1, units) for part in whole)))
        )

    def met_by(self, form: Form) -> tuple[Form, CentredOffsets]:
        """The rows and the offsets to multiply: at the few units that have any, where those are cheap to pick."""
        picked = None if self.few is None else form.at(self.few.units)
        return (form, self.all) if self.few is None or picked is None else (picked, self.few.offsets)


def _few(bent: Tensor) -> Tensor | None:
    """The bent units of each sample and, where others have more, some that are not, `[batch, count]`; None if many."""
    most = FEW_UNITS * bent.shape[1]
    if bent.shape[0] == 1:
        units = bent.squeeze(0).nonzero().T
        return units if units.shape[1] <= most else None
    count = int(bent.sum(1).max())
    return bent.byte().topk(count, dim=1).indices if count <= most else None
