"""Measure the search for the largest radius on the released FC1 checkpoints: its cost, and where strategies differ.

Usage: python benchmarks/search.py [--samples 2000]   (needs `$POLYCERT_SHARED`, or `shared` beside the project)

Means are over correctly classified samples; a misclassified one needs no evaluation. T_PEC is the paper's figure for
what is called `envelope` here.
"""

import argparse
import json
import os
from pathlib import Path

import torch

import polycert as pc
from polycert.certification.radius import STRATEGIES

TOLERANCE = 1e-4


def main() -> None:
    """Print a Markdown table and the samples on which the strategies disagree."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=2000)
    count = parser.parse_args().samples
    torch.set_num_threads(1)
    zoo = Path(os.environ.get("POLYCERT_SHARED", Path(__file__).parents[2] / "shared")) / "zoo"
    test = pc.data.load("mnist")
    x, y = test.x[:count], test.y[:count]
    print(f"First {count} test images, l_inf, [0, 0.4], tolerance {TOLERANCE:g}, `rigorous=False`.\n")
    print("| FC1 | T_PEC | bisection | envelope | root | agree | mean radius |")
    print("|---|---|---|---|---|---|---|")
    notes = []
    for name, entry in json.loads((zoo / "index.json").read_text(encoding="utf-8"))["models"].items():
        if "relu_linf__mnist_fc1" not in name or "T_PEC" not in entry["paper"]:
            continue
        net = pc.load(zoo / entry["file"])
        settings = {"upper": 0.4, "low": 0.0, "high": 1.0, "tolerance": TOLERANCE, "rigorous": False}
        found = {key: pc.largest_radius(net, x, y, strategy=key, **settings) for key in STRATEGIES}
        right = found["root"].prediction == y
        means = [float(found[key].evaluations[right].float().mean()) for key in ("bisection", "envelope", "root")]
        radii = torch.stack([radius.radius for radius in found.values()])
        # Each result is the lower end of a bracket one tolerance wide.
        apart = (radii.amax(0) - radii.amin(0)) > 2 * TOLERANCE
        cells = " | ".join(f"{mean:.2f}" for mean in means)
        share = 100 * (1 - float(apart.float().mean()))
        short, mean = name.split("_l1_")[1], float(found["root"].radius.mean())
        print(f"| {short} | {entry['paper']['T_PEC']} | {cells} | {share:.2f} % | {mean:.4f} |", flush=True)
        for k in apart.nonzero().squeeze(1).tolist():
            values = ", ".join(f"{key} {float(radius.radius[k]):.5f}" for key, radius in found.items())
            notes.append(f"- {short}, sample {k}: {values}")
    print("\nDisagreements by more than two tolerances (d(eps) rises with eps there, so a larger ball proves more):\n")
    print("\n".join(notes) or "none")


if __name__ == "__main__":
    main()
