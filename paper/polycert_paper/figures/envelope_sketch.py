"""Figure 2: the envelope of a point in the plane, computed for a real network with two inputs."""

from __future__ import annotations

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import nn

from polycert.certification.certify import envelope
from polycert.graph import Network, capture
from polycert.report.plots import LIN_COLOUR, STYLE, THIRD_COLOUR
from polycert.sets.ball import Ball
from polycert_paper.figures.figure import Picture

POINT = (0.1, -0.05)
RADII = (0.42, 0.54)  # a ball that is proved, and one that is not
SIDE, BENT, OTHERS, FAR = 1.5, 20, 5, 4.0
GREEN = "#3a8f5c"


def network() -> Network:
    """Return a network whose class 0 falls off on all sides, and whose other classes rise in one direction each."""
    angles = 2 * np.pi * np.arange(BENT) / BENT
    sides = 2 * np.pi * (np.arange(OTHERS) + 0.35) / OTHERS
    every = np.concatenate([angles, sides])
    bent = np.cos(angles[None] - sides[:, None]).clip(min=0) ** 2
    straight = 0.6 * np.eye(OTHERS)
    last = np.block([[np.full((1, BENT), -0.25), np.zeros((1, OTHERS))], [bent, straight]])
    layers = nn.Linear(2, BENT + OTHERS, dtype=torch.float64), nn.Linear(BENT + OTHERS, 1 + OTHERS, dtype=torch.float64)
    # The last units are active on all that is drawn, so they are linear there; the last layer subtracts their offset.
    places = np.concatenate([0.75 + 0.5 * np.cos(7 * np.arange(BENT)), np.full(OTHERS, -FAR)])
    values = np.stack([np.cos(every), np.sin(every)], 1), -places, last, np.array([0.75] + [-0.6 * FAR] * OTHERS)
    with torch.no_grad():
        for layer, weight, bias in zip(layers, values[::2], values[1::2], strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
    return capture(nn.Sequential(layers[0], nn.ReLU(), layers[1]).eval(), (2,))


def sketch_picture() -> Picture:
    """Return Figure 2, with one panel for each size of the ball."""
    net = network()
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 5.2), layout="constrained")
        panels = figure.subplots(1, 2, sharex=True, sharey=True)
        for axes, eps in zip(panels, RADII, strict=True):
            distance = _draw(axes, net, eps)
            sign, verdict = (
                ("≥", "the whole ball is proved") if distance >= eps else ("<", "a smaller radius is proved")
            )
            axes.set_title(f"distance {distance:.2f} {sign} eps {eps:.2f}:\n{verdict}", fontsize=10)
            axes.set_xlabel("input x₁")
        panels[0].set_ylabel("input x₂")
        figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=3)
    caption = (
        f"The envelope of one point of a network with two inputs, {BENT + OTHERS} ReLU units and {1 + OTHERS} "
        "classes, computed by `pc.envelope` for two sizes of the ball (l_2). Inside the ball no point of the shaded "
        "envelope changes its class; a larger ball makes the envelope smaller."
    )
    return Picture("figure2", "sketch of the envelope in the plane", caption, figure)


def _draw(axes: Axes, net: Network, eps: float) -> float:
    """Draw one panel; returns the distance from the point to the envelope's border."""
    point = torch.tensor([POINT], dtype=torch.float64)
    found = envelope(net, point, torch.tensor([0]), Ball(norm=2, eps=eps))
    grid = np.linspace(-SIDE, SIDE, 321)
    places = np.stack(np.meshgrid(grid, grid), axis=-1)
    slopes, offsets = found.slope[0].detach().numpy(), found.offset[0].detach().numpy()
    inside = (places @ slopes.T + offsets).min(-1)
    with torch.no_grad():
        outputs = net(torch.from_numpy(places).reshape(-1, 2)).reshape(*places.shape[:2], -1).numpy()
    margin = outputs[..., 0] - outputs[..., 1:].max(-1)
    axes.contourf(grid, grid, inside, levels=[0, np.inf], colors=[GREEN], alpha=0.18)
    axes.contour(grid, grid, margin, levels=[0], colors=["#16325c"], linewidths=[2.6])
    for slope, offset in zip(slopes, offsets, strict=True):
        nearest = -offset * slope / (slope @ slope)
        along = np.array([-slope[1], slope[0]]) / np.linalg.norm(slope)
        axes.axline(nearest, nearest + along, color="#7fb2e5", linewidth=1)
    axes.contour(grid, grid, inside, levels=[0], colors=[GREEN], linewidths=[2])
    distance = float(found.distances().detach().min())
    axes.add_patch(Circle(POINT, eps, fill=False, color=LIN_COLOUR, linestyle=":", linewidth=2))
    axes.add_patch(Circle(POINT, distance, fill=False, color=THIRD_COLOUR, linestyle="--", linewidth=1.8))
    axes.plot(*POINT, marker="o", color="0.1", markersize=5, linestyle="none")
    axes.set(xlim=(-SIDE, SIDE), ylim=(-SIDE, SIDE), aspect="equal")
    _name(axes)
    return distance


def _name(axes: Axes) -> None:
    """Add entries of the legend, since contours have none."""
    nowhere: list[float] = []
    axes.plot(nowhere, nowhere, color="#16325c", linewidth=2.6, label="decision boundary")
    axes.plot(nowhere, nowhere, color="#7fb2e5", linewidth=1, label="hyperplanes, one for each other class")
    axes.plot(nowhere, nowhere, color=GREEN, linewidth=2, label="envelope")
    axes.plot(nowhere, nowhere, color=LIN_COLOUR, linestyle=":", linewidth=2, label="ball of radius eps")
    axes.plot(nowhere, nowhere, color=THIRD_COLOUR, linestyle="--", linewidth=1.8, label="distance to the envelope")
    axes.plot(nowhere, nowhere, color="0.1", marker="o", markersize=5, linestyle="none", label="input")
