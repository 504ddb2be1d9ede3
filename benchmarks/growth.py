"""Measure how the cost of bounds and training steps grows with samples, width and depth, as exponents and a plot.

Usage: python benchmarks/growth.py [--small] [--out paper/results/table5/growth.json] [--plot docs/images/growth.png]

Random ReLU networks on 784 inputs, one thread, CPU time, `rigorous=False`. An exponent is the slope of a line through
the logarithms of the last three points. `--out` writes what `polycert reproduce table5` reads, after every method; what
the file has already is not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from bounds import seconds
from torch import Tensor, nn

import polycert as pc

# What is varied, and its sizes. The others stay at 20 samples, 256 units and 2 hidden layers.
Axes = dict[str, tuple[int, ...]]
LARGE: Axes = {"samples": (25, 100, 400, 1600), "width": (128, 256, 512, 1024, 2048), "depth": (1, 2, 4, 8)}
SMALL: Axes = {"samples": (25, 100, 400), "width": (128, 256, 512), "depth": (1, 2, 4)}
BALL = pc.Ball(eps=0.01, low=0.0, high=1.0)
Record = dict[str, Any]
Work = Callable[[pc.Network, Tensor], object]


def net(width: int, depth: int) -> pc.Network:
    """Return a random network with `depth` hidden layers of `width` units."""
    torch.manual_seed(0)
    sizes = [784, *[width] * depth]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return pc.capture(nn.Sequential(*layers, nn.Linear(width, 10)), (1, 28, 28))


def bounds(method: str) -> Work:
    """Return a function that computes bounds of the margins, and distances."""
    return lambda subject, x: pc.certify(subject, x, None, BALL, method=method, rigorous=False)


def step(loss: pc.losses.Loss) -> Work:
    """Return a function that computes a loss and its gradients."""

    def run(subject: pc.Network, x: Tensor) -> None:
        loss(subject, x, torch.arange(len(x)) % 10, BALL).backward()

    return run


WORKS: dict[str, Work] = {
    "ibp": bounds("ibp"),
    "forward": bounds("forward"),
    "crown-ibp": bounds("crown-ibp"),
    "crown": bounds("crown"),
    "pgd": lambda subject, x: pc.attack(subject, x, torch.arange(len(x)) % 10, BALL, steps=20, restarts=1),
    "kw": step(pc.losses.KW()),
    "mmr": step(pc.losses.MMR()),
    "i-per": step(pc.losses.PER(method="forward")),
    "c-per": step(pc.losses.PER()),
}


def cost(work: Work, samples: int = 20, width: int = 256, depth: int = 2) -> float:
    """Return the seconds that the work takes on all samples."""
    subject = net(width, depth)
    x = torch.rand(samples, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    return seconds(lambda: work(subject, x), repeat=2)


def exponent(sizes: tuple[int, ...], costs: list[float]) -> float:
    """Return the slope of the logarithms, by least squares over the last three points."""
    x, y = ([math.log(v) for v in values[-3:]] for values in (sizes, costs))
    mean_x, mean_y = sum(x) / 3, sum(y) / 3
    rise = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return rise / sum((a - mean_x) ** 2 for a in x)


def main() -> None:
    """Measure, print the exponents as a table, store and draw them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="a .json file for the record")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--small", action="store_true", help="smaller sizes: minutes instead of an hour")
    options = parser.parse_args()
    torch.set_num_threads(1)
    axes = SMALL if options.small else LARGE
    record: Record = {"exponents": {}, "milliseconds": {}, "sizes": axes, "version": pc.__version__}
    if options.out and options.out.is_file():
        record = json.loads(options.out.read_text(encoding="utf-8"))
    print("| method | " + " | ".join(axes) + " |\n|---|---|---|---|")
    for name, work in WORKS.items():
        if name not in record["exponents"]:
            measure(name, work, axes, record)
            store(record, options.out)
        print(f"| {name} | " + " | ".join(f"{v:.2f}" for v in record["exponents"][name].values()) + " |", flush=True)
    if options.plot:
        plot(record["milliseconds"], axes, options.plot)


def measure(name: str, work: Work, axes: Axes, record: Record) -> None:
    """Put one method's costs and exponents into the record."""
    costs = {axis: [cost(work, **{axis: size}) for size in sizes] for axis, sizes in axes.items()}
    record["milliseconds"][name] = {axis: [round(1e3 * one, 3) for one in own] for axis, own in costs.items()}
    record["exponents"][name] = {axis: round(exponent(sizes, costs[axis]), 3) for axis, sizes in axes.items()}


def store(record: Record, path: Path | None) -> None:
    """Write the record, if a path is given."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def plot(milliseconds: dict[str, dict[str, list[float]]], axes: Axes, path: Path) -> None:
    """Draw the cost over each size, both logarithmic."""
    figure, panels = plt.subplots(1, 3, figsize=(10, 3.2), constrained_layout=True)
    for panel, (axis, sizes) in zip(panels, axes.items(), strict=True):
        for name, own in milliseconds.items():
            panel.loglog(sizes, own[axis], marker="o", label=name)
        panel.set_xlabel(axis)
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.minorticks_off()
    panels[0].set_ylabel("ms")
    panels[0].legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
