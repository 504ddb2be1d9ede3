"""Figures before they are written."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure

from polycert_paper.table import Missing


@dataclass(frozen=True)
class Picture:
    """A figure of the paper, drawn from our records; `figure` is None if there are no records yet."""

    name: str
    title: str
    caption: str
    figure: Figure | None
    missing: tuple[Missing, ...] = ()

    @property
    def number(self) -> str:
        """The figure's number in the paper."""
        return self.name.removeprefix("figure")
