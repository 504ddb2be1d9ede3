"""How the cost of bounds grows with samples, width and depth: measured exponents and a plot.

Usage: python benchmarks/growth.py [--plot docs/images/growth.png]

Random ReLU networks on 784 inputs, one thread, CPU time, `rigorous=False`. An exponent is the slope of a line through
the logarithms of the last three points.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from bounds import seconds
from torch import nn

import polycert as pc

METHODS = ("ibp", "forward", "crown-ibp", "crown")
SAMPLES, WIDTHS, DEPTHS = (25, 100, 400, 1600), (128, 256, 512, 1024, 2048), (1, 2, 4, 8)


def net(width: int, depth: int) -> pc.Network:
    """`depth` hidden layers of `width` units."""
    torch.manual_seed(0)
    sizes = [784, *[width] * depth]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return pc.capture(nn.Sequential(*layers, nn.Linear(width, 10)), (1, 28, 28))


def cost(method: str, samples: int = 20, width: int = 256, depth: int = 2) -> float:
    """Seconds for all samples."""
    subject = net(width, depth)
    x = torch.rand(samples, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    ball = pc.Ball(eps=0.01, low=0.0, high=1.0)
    return seconds(lambda: pc.certify(subject, x, None, ball, method=method, rigorous=False), repeat=2)


def exponent(sizes: tuple[int, ...], costs: list[float]) -> float:
    """Slope in logarithms, least squares over the last three points."""
    x, y = ([math.log(v) for v in values[-3:]] for values in (sizes, costs))
    mean_x, mean_y = sum(x) / 3, sum(y) / 3
    rise = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return rise / sum((a - mean_x) ** 2 for a in x)


def main() -> None:
    """Measure, print the exponents as a table, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    axes: dict[str, tuple[tuple[int, ...], Callable[[str, int], float]]] = {
        "samples": (SAMPLES, lambda method, n: cost(method, samples=n)),
        "width": (WIDTHS, lambda method, n: cost(method, width=n)),
        "depth": (DEPTHS, lambda method, n: cost(method, depth=n)),
    }
    figure, panels = plt.subplots(1, 3, figsize=(10, 3.2), constrained_layout=True)
    print("| method | " + " | ".join(axes) + " |\n|---|---|---|---|")
    for method in METHODS:
        found = []
        for panel, (name, (sizes, measure)) in zip(panels, axes.items(), strict=True):
            costs = [measure(method, size) for size in sizes]
            found.append(f"{exponent(sizes, costs):.2f}")
            panel.loglog(sizes, [1e3 * c for c in costs], marker="o", label=method)
            panel.set_xlabel(name)
            panel.set_xticks(sizes, [str(size) for size in sizes])
            panel.minorticks_off()
        print(f"| {method} | " + " | ".join(found) + " |", flush=True)
    panels[0].set_ylabel("ms")
    panels[0].legend(frameon=False)
    if options.plot:
        figure.savefig(options.plot, dpi=130)


if __name__ == "__main__":
    main()
