"""A figure before it is written."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure

from polycert_paper.table import Missing


@dataclass(frozen=True)
class Picture:
    """A figure of the paper from our records; `figure` is None where there is nothing to draw yet."""

    name: str
    title: str
    caption: str
    figure: Figure | None
    missing: tuple[Missing, ...] = ()

    @property
    def number(self) -> str:
        """As in the paper."""
        return self.name.removeprefix("figure")
