"""A small evaluation with the files that a report reads: enough for the demo.

The record, `NAME.samples.parquet` and `NAME.examples.npz` are those of `polycert evaluate --samples`, which knows more
figures and scales to whole test sets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from polycert.attacks import attack, margin_of
from polycert.certify import certify
from polycert.graph import Network
from polycert.radius import largest_radius
from polycert.records import whole_file
from polycert.sets import Ball

SIDE = 24  # samples at either end that are kept as arrays
TRIED = (0.5, 1.0, 1.5, 2.0)  # sizes of the attack's balls, in units of eps


def write_row(
    network: Network, x: Tensor, y: Tensor, ball: Ball, out: Path, about: Mapping[str, Any], *, upper: float
) -> None:
    """Certify, search up to `upper`, attack, and write `out` (.json) with its two companions."""
    certs = certify(network, x, y, ball)
    frame = certs.to_frame()[["index", "label", "prediction", "nearest", "margin", "radius", "certified"]]
    frame["certified_crown"] = certify(network, x, y, ball, relaxation="adaptive").certified.numpy()
    frame["certified_ibp"] = certify(network, x, y, ball, method="ibp").certified.numpy()
    found = largest_radius(network, x, y, norm=ball.norm, upper=upper, low=ball.low, high=ball.high)
    frame["largest"] = found.radius.numpy()
    frame["evaluations_root"] = found.evaluations.numpy()
    points, distance = _smallest_attacks(network, x, y, ball)
    frame["attack_radius"] = distance.numpy()
    frame["attacked"] = (distance <= float(ball.eps) * (1 + 1e-6)).numpy()
    _write(frame, out.with_suffix(".samples.parquet"))
    _write_examples(frame, x, points, out.with_suffix(".examples.npz"))
    with whole_file(out) as name:
        name.write_text(json.dumps({**about, **_figures(frame, ball)}, indent=1) + "\n", encoding="utf-8")


def _smallest_attacks(network: Network, x: Tensor, y: Tensor, ball: Ball) -> tuple[Tensor, Tensor]:
    """For each sample the nearest adversarial point over all balls tried, and its distance; NaN where there is none."""
    best, nearest = torch.full_like(x, torch.nan), torch.full((len(x),), torch.inf, dtype=torch.float64)
    for factor in TRIED:
        here = Ball(ball.norm, float(ball.eps) * factor, ball.low, ball.high)
        hits = attack(network, x, y, here, steps=30, restarts=1)
        points = _pulled_back(network, x, y, hits.inputs)
        distance = torch.linalg.vector_norm((points - x).flatten(1).double(), ball.norm, dim=1)
        better = hits.success & (distance < nearest)
        nearest = torch.where(better, distance, nearest)
        best[better] = points[better]
    return best, nearest.where(nearest.isfinite(), torch.nan)


def _pulled_back(network: Network, x: Tensor, y: Tensor, points: Tensor, halvings: int = 10) -> Tensor:
    """Points on the way from `points` to x that still have another class, by halving; those of x's class stay."""
    graph, shape = network.bind(), (-1, *[1] * (x.dim() - 1))
    good, bad = torch.ones(len(x)), torch.zeros(len(x))
    for _ in range(halvings):
        middle = (good + bad) / 2
        with torch.no_grad():
            broken = margin_of(graph.forward(x + middle.view(shape) * (points - x)), y) <= 0
        good, bad = torch.where(broken, middle, good), torch.where(broken, bad, middle)
    return torch.where((good < 1).view(shape), x + good.view(shape) * (points - x), points)


def _figures(frame: pd.DataFrame, ball: Ball) -> dict[str, Any]:
    def error(right: Sequence[bool] | pd.Series[bool]) -> float:
        return round(100 * (1 - float(np.mean(right))), 4)

    return {
        "norm": f"{ball.norm:g}",
        "eps": float(ball.eps),
        "n": len(frame),
        "CTE": error(frame["prediction"] == frame["label"]),
        "PGD_strong": error(~frame["attacked"]),
        "CRE_Lin": error(frame["certified"]),
        "CRE_CROWN": error(frame["certified_crown"]),
        "CRE_IBP": error(frame["certified_ibp"]),
        "ACB_PEC": float(frame["radius"].mean()),
        "radius_mean": float(frame["largest"].mean()),
        "T_root": float(frame["evaluations_root"].mean()),
    }


def _write(frame: pd.DataFrame, path: Path) -> None:
    with whole_file(path) as name:
        frame.to_parquet(name, index=False)


def _write_examples(frame: pd.DataFrame, x: Tensor, points: Tensor, path: Path) -> None:
    wrong = (frame["prediction"] != frame["label"]).to_numpy()
    order = np.lexsort((frame["largest"].to_numpy(), wrong))
    right = order[: len(order) - int(wrong.sum())]
    chosen = np.unique(np.concatenate([order[:SIDE], right[-SIDE:]]))
    with whole_file(path) as name, name.open("wb") as file:
        index = frame["index"].to_numpy()[chosen]
        np.savez_compressed(file, index=index, input=x[chosen].numpy(), counterexample=points[chosen].numpy())
