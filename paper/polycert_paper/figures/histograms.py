"""Figures 3, 5, 8 and 9: how parameters and largest certified radii are distributed, from stored histograms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, Field, model_validator

from polycert.report.plots import LIN_COLOUR, PEC_COLOUR, STYLE, THIRD_COLOUR
from polycert_paper.figures.figure import Picture
from polycert_paper.printed_figures import METHOD_NAMES
from polycert_paper.settings import Setting, settings, trained_model
from polycert_paper.stored_records import Store
from polycert_paper.table import Missing

SETTINGS = {
    "figure3": "cifar10-cnn-linf",
    "figure5": "cifar10-cnn-linf",
    "figure8": "cifar10-cnn-l2",
    "figure9": "cifar10-cnn-l2",
}
# Euclidean norms of all parameters that the captions of the paper's Figures 3 and 8 give.
PRINTED_NORMS = {
    "figure3": {"kw": "18.08", "mmr+at": "38.36", "c-per+at": "94.63"},
    "figure8": {"kw": "71.34", "mmr+at": "62.97", "c-per+at": "141.77"},
}
FEW = 2000  # fewer samples than these get wider bins
LOOKS: dict[str, dict[str, Any]] = {
    "kw": {"color": LIN_COLOUR, "linestyle": (0, (4, 1.5))},
    "mmr+at": {"color": THIRD_COLOUR, "linestyle": (0, (1, 1))},
    "c-per+at": {"color": PEC_COLOUR, "linestyle": "-"},
}


class Histogram(BaseModel):
    """Counts in equal bins from `low` to `high`, and the counts of values below, above and (for radii) at exactly 0."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    source: str
    dataset: str
    norm: str
    method: str
    low: float
    high: float
    counts: list[int] = Field(min_length=1)
    below: int
    above: int
    zero: int = 0
    parameter_norm: float | None = None

    @model_validator(mode="after")
    def _has_something(self) -> Histogram:
        """Check that something was counted, and that the range is not empty."""
        if self.total < 1 or self.high <= self.low:
            raise ValueError("a histogram must have counts, and low < high")
        return self

    @property
    def total(self) -> int:
        """The number of all values."""
        return sum(self.counts) + self.below + self.above + self.zero

    def steps(self, merge: int) -> tuple[np.ndarray, np.ndarray]:
        """Return shares in per cent, `[bins]`, and the bins' edges, `[bins + 1]`, with every `merge` bins as one."""
        counts = np.array(self.counts).reshape(-1, merge if len(self.counts) % merge == 0 else 1).sum(1)
        return 100 * counts / self.total, np.linspace(self.low, self.high, len(counts) + 1)


def parameter_picture(name: str, store: Store) -> Picture:
    """Return Figure 3 or 8, the distribution of all weights and biases."""
    setting = settings([SETTINGS[name]])[SETTINGS[name]]
    title = f"distribution of the parameters, l_{setting.norm}"
    caption = (
        "Values of all weights and biases, with the Euclidean norm of all of them (in brackets: as the paper "
        "gives it); "
        f"networks for {setting.title}."
    )

    def draw(axes: Axes, found: Histogram) -> None:
        norm = "" if found.parameter_norm is None else f", norm {found.parameter_norm:.2f}"
        printed = PRINTED_NORMS[name].get(found.method)
        label = f"{METHOD_NAMES[found.method]}{norm}{f' ({printed})' if printed else ''}"
        axes.stairs(*found.steps(2), label=label, linewidth=1.6, **LOOKS[found.method])
        axes.set(yscale="log", xlabel="value of a parameter", xlim=(found.low, found.high))

    return _picture(name, title, caption, setting, store, draw, "share of the parameters (%)")


def radius_picture(name: str, store: Store) -> Picture:
    """Return Figure 5 or 9, the distribution of the largest certified radii of test images."""
    setting = settings([SETTINGS[name]])[SETTINGS[name]]
    title = f"distribution of the largest certified radii, l_{setting.norm}"
    caption = (
        "The largest radius that is certified for a test image, with the target as a vertical line; networks "
        f"for {setting.title}. "
        "Images whose radius is 0 are counted in the legend and not drawn."
    )

    def draw(axes: Axes, found: Histogram) -> None:
        share = 100 * found.zero / found.total
        label = f"{METHOD_NAMES[found.method]}: {share:.1f} % at 0, n = {found.total}"
        axes.stairs(*found.steps(4 if found.total < FEW else 1), label=label, linewidth=1.6, **LOOKS[found.method])
        axes.set(xlabel=f"largest certified radius (l_{setting.norm}, pixels in [0, 1])", xlim=(found.low, found.high))

    def finish(axes: Axes) -> None:
        axes.axvline(setting.radius, color="0.1", linewidth=1.4, label=f"target {setting.eps}")

    return _picture(name, title, caption, setting, store, draw, "share of the images (%)", finish)


def _picture(
    name: str,
    title: str,
    caption: str,
    setting: Setting,
    store: Store,
    draw: Callable[[Axes, Histogram], None],
    ylabel: str,
    finish: Callable[[Axes], None] = lambda axes: None,
) -> Picture:
    """Return a figure with a panel for each source of networks and a line for each of the paper's three methods."""
    sources: dict[str, dict[str, Histogram]] = {}
    for found in store.read(name, Histogram).values():
        if found.dataset == setting.dataset and found.norm == setting.norm and found.method in LOOKS:
            sources.setdefault(found.source, {})[found.method] = found
    missing = _missing(name, setting, sources.get("ours", {}))
    if not sources:
        return Picture(name, title, "", None, missing)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6 if len(sources) == 1 else 9.6, 3.8), layout="constrained")
        panels = figure.subplots(1, len(sources), sharex=True, sharey=True, squeeze=False)[0]
        for axes, (source, methods) in zip(panels, sorted(sources.items()), strict=True):
            for method in LOOKS:
                if method in methods:
                    draw(axes, methods[method])
            finish(axes)
            axes.set_title(source, fontsize=10)
            axes.legend(frameon=False, fontsize=8, loc="upper right")
        panels[0].set_ylabel(ylabel)
    return Picture(name, title, caption, figure, missing)


def _missing(name: str, setting: Setting, have: dict[str, Histogram]) -> tuple[Missing, ...]:
    """Return the commands that measure the methods we lack."""
    rows = (f"{setting.name}-{method}" for method in LOOKS if method not in have)
    return tuple(
        Missing(
            row,
            f"polycert train {row} --run-dir runs/{row} && polycert reproduce {name} --add {trained_model(row)}",
        )
        for row in rows
    )
