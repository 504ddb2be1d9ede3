"""Figures 6 and 7: the lines around ReLU and sigmoid, as the library chooses them."""

from __future__ import annotations

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from polycert.bounding.relaxations import parallel
from polycert.report.plots import LIN_COLOUR, PEC_COLOUR, STYLE
from polycert.rules.activation import Activation
from polycert.rules.piecewise_linear import Relu
from polycert.rules.s_shaped import Tanh
from polycert.sets.interval import Interval
from polycert_paper.figures.figure import Picture

INTERVALS = {"lower ≤ upper ≤ 0": (-3.0, -0.8), "lower < 0 < upper": (-2.0, 3.0), "0 ≤ lower ≤ upper": (0.8, 3.0)}


def relu_picture() -> Picture:
    """Return Figure 6, for ReLU."""
    return _picture("figure6", "ReLU between two lines of one slope", Relu(()), "ReLU", "relu(z)")


def sigmoid_picture() -> Picture:
    """Return Figure 7, for sigmoid."""
    sigmoid = Tanh((), shift=0.5, outer=0.5, inner=0.5)
    return _picture("figure7", "sigmoid between two lines of one slope", sigmoid, "sigmoid", "sigmoid(z)")


def _picture(name: str, title: str, activation: Activation, word: str, formula: str) -> Picture:
    """Return a figure with a panel for each kind of interval."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.0), layout="constrained")
        panels = figure.subplots(1, 3, sharex=True, sharey=True)
        for axes, (case, ends) in zip(panels, INTERVALS.items(), strict=True):
            _draw(axes, activation, ends, formula)
            axes.set_title(case, fontsize=10)
            axes.set_xlabel("pre-activation z")
        panels[0].set_ylabel("output")
        figure.legend(*panels[1].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=4)
    caption = (
        f"The lines that the relaxation `parallel` puts around {word} on an interval: both have the slope of "
        "the chord. Computed by the library."
    )
    return Picture(name, title, caption, figure)


def _draw(axes: Axes, activation: Activation, ends: tuple[float, float], formula: str) -> None:
    """Draw an activation and the lines around it on one interval."""
    lower, upper = (torch.tensor(end, dtype=torch.float64) for end in ends)
    lines = parallel(activation, Interval(lower, upper))
    z, inside = torch.linspace(-4, 4, 321, dtype=torch.float64), torch.linspace(*ends, 2, dtype=torch.float64)
    high = lines.upper_slope * inside + lines.upper_offset
    low = lines.lower_slope * inside + lines.lower_offset
    axes.fill_between(inside, low, high, color=PEC_COLOUR, alpha=0.15, linewidth=0, label="relaxation")
    axes.plot(z, activation.forward(z), color="0.2", linewidth=2, label=formula)
    axes.plot(inside, low, color=PEC_COLOUR, linewidth=2.4, label="lower line")
    # The upper line is dashed and on top, so that both lines show where they coincide.
    axes.plot(inside, high, color=LIN_COLOUR, linewidth=1.6, linestyle=(0, (4, 3)), label="upper line")
    for end in ends:
        axes.axvline(end, color="0.7", linewidth=0.8, linestyle=":")
