"""Pictures of certified radii, drawn by matplotlib without a display."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from polycert.certification.certify import certify
from polycert.graph import Network
from polycert.records.files import whole_file
from polycert.sets.ball import Ball

STYLE: Any = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 10}
PEC_COLOUR, LIN_COLOUR, BAD_COLOUR, THIRD_COLOUR = "#1b6ca8", "#d1495b", "#d1495b", "#b8860b"
# The files hold no metadata that change from run to run.
_METADATA: dict[str, dict[str, None]] = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}


class Phases(NamedTuple):
    """The phases of one sample, `[points]` each: eps of balls, certified radii, whether the whole ball is certified."""

    eps: np.ndarray
    radius: np.ndarray
    certified: np.ndarray


def phases(network: Network, sample: Tensor, label: int, *, upper: float, points: int = 81) -> Phases:
    """Certify one sample (l_inf, box [0, 1]) in balls of growing size."""
    eps = np.linspace(0, upper, points)
    x = sample.unsqueeze(0).expand(points, *sample.shape)
    certs = certify(network, x, torch.full((points,), label), Ball(eps=torch.tensor(eps), low=0.0, high=1.0))
    return Phases(eps, certs.radius.numpy(), certs.certified.numpy())


def two_phases(network: Network, sample: Tensor, label: int, path: Path, *, upper: float, points: int = 81) -> None:
    """Draw the certified radius of one sample against eps (Figure 1), and write the picture."""
    save(draw_phases(phases(network, sample, label, upper=upper, points=points)), path)


def draw_phases(found: Phases) -> Figure:
    """Draw the certified radius against eps (Figure 1): all or nothing by Fast-Lin, and in part by PEC."""
    eps, radius = found.eps, found.radius
    whole = np.where(found.certified, eps, 0.0)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        axes = figure.add_subplot()
        near = eps[eps <= 1.2 * max(radius.max(), 1e-3)]  # ends below the legend
        axes.plot(near, near, color="0.7", linewidth=1, linestyle="--", label="eps itself")
        axes.plot(eps, radius, color=PEC_COLOUR, linewidth=2.2, label="PEC (the envelope)")
        axes.plot(
            eps,
            whole,
            color=LIN_COLOUR,
            linewidth=1.4,
            linestyle=(0, (4, 2)),
            label="KW / Fast-Lin (all or nothing)",
        )
        best = int(radius.argmax())
        axes.annotate(
            f"optimal eps ≈ {eps[best]:.3f}",
            (eps[best], radius[best]),
            xytext=(12, 4),
            textcoords="offset points",
            fontsize=9,
        )
        axes.set(
            xlabel="eps of the ball the bounds are built for (l_inf)",
            ylabel="certified radius",
            xlim=(0, eps[-1]),
        )
        axes.set_ylim(0, 1.6 * max(radius.max(), 1e-3))
        axes.legend(frameon=False, fontsize=9, loc="upper right")
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a picture as `.png` or `.svg`, whole or not at all; the same picture gives the same bytes."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "polycert"}), whole_file(path) as name:
        figure.savefig(name, dpi=150, metadata=_METADATA[path.suffix])


def digits(images: Tensor, radius: Tensor, path: Path, *, target: float, columns: int = 10) -> None:
    """Draw a grid of images with their certified radii, and write it; a cross marks radii below the target."""
    rows = math.ceil(len(images) / columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(columns * 0.85, rows * 1.05), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for position, axes in enumerate(grid.flat):
            axes.set_axis_off()
            if position >= len(images):
                continue
            image = images[position].permute(1, 2, 0).numpy()
            axes.imshow(image, cmap="gray_r" if image.shape[2] == 1 else None, vmin=0, vmax=1)
            good = float(radius[position]) >= target
            text = f"{float(radius[position]):.3f}" if good else f"✗ {float(radius[position]):.3f}"
            axes.set_title(text, fontsize=9, pad=2, color=PEC_COLOUR if good else BAD_COLOUR)
        figure.suptitle(f"certified l_inf radius of each digit (target {target:g})", fontsize=10)
    save(figure, path)
