"""Made-up records with the files beside them, in the format that `polycert evaluate --samples` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

EPS = 0.1
SIDE = 24


def record(**changes: Any) -> dict[str, Any]:
    """A record with most figures; `changes` replace some, and None takes one away."""
    values = {
        "model": "made-up",
        "dataset": "mnist",
        "architecture": "fc1",
        "activation": "relu",
        "norm": "inf",
        "eps": EPS,
        "method": "c-per",
        "seed": 0,
        "n": 1000,
        "CTE": 2.0,
        "PGD": 6.5,
        "attack": "PGD: 20 steps; PGD_strong: 50 steps with momentum",
        "PGD_strong": 7.25,
        "CRE_Lin": 13.5,
        "CRE_CROWN": 12.75,
        "CRE_IBP": 60.0,
        "ACB_PEC": 0.0931,
        "radius_mean": 0.1412,
        "T_bisection": 12.0,
        "T_envelope": 8.4,
        "T_root": 5.1,
        "parameter_norm": 40.5,
        "intervals": {"CTE": [1.3, 3.07], "CRE_CROWN": [10.8, 15.0]},
        "seconds": {"total": 12.5},
        "command": "polycert evaluate model.safetensors --dataset mnist --eps 0.1",
        "version": "0.1.0",
    }
    values.update(changes)
    return {key: value for key, value in values.items() if value is not None}


def samples(count: int, seed: int = 0) -> pd.DataFrame:
    """Samples whose columns agree with each other: radius <= largest < attack_radius, 2 % misclassified."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 10, count)
    wrong = rng.random(count) < 0.02
    largest = np.where(wrong, 0.0, np.clip(rng.normal(0.14, 0.04, count), 0, 0.4))
    attack_radius = np.where(wrong, 0.0, largest + 1e-4 + rng.exponential(0.02, count))
    attack_radius[attack_radius > 0.2] = np.nan
    certified = largest >= EPS
    return pd.DataFrame(
        {
            "index": np.arange(count),
            "label": label,
            "prediction": np.where(wrong, (label + 1) % 10, label),
            "nearest": (label + rng.integers(1, 10, count)) % 10,
            "margin": np.where(certified, 1.0, -1.0) * rng.exponential(4.0, count),
            "radius": np.minimum(largest, EPS),
            "certified": certified,
            "certified_crown": certified,
            "certified_ibp": certified & (rng.random(count) < 0.5),
            "largest": largest,
            "attacked": attack_radius <= EPS,
            "attack_radius": attack_radius,
            "status": np.where(certified, "robust", np.where(attack_radius <= EPS, "falsified", "unknown")),
            "evaluations_bisection": np.full(count, 12),
            "evaluations_envelope": rng.integers(6, 11, count),
            "evaluations_root": rng.integers(4, 7, count),
        }
    )


def examples(frame: pd.DataFrame, shape: tuple[int, ...] = (1, 28, 28)) -> dict[str, Any]:
    """Arrays for the samples with the smallest and the largest radii; only the hardest have counterexamples."""
    rng = np.random.default_rng(1)
    order = np.argsort(frame["largest"].to_numpy(), kind="stable")
    chosen = np.concatenate([order[:SIDE], order[-SIDE:]])
    inputs = rng.random((len(chosen), *shape), dtype=np.float32)
    found = np.clip(inputs + rng.choice([-0.05, 0.05], inputs.shape).astype(np.float32), 0, 1)
    found[SIDE:] = np.nan
    return {"index": frame["index"].to_numpy()[chosen], "input": inputs, "counterexample": found}


def write_evaluation(
    path: Path, *, count: int = 200, shape: tuple[int, ...] = (1, 28, 28), seed: int = 0, **changes: Any
) -> Path:
    """A record with both companions."""
    frame = samples(count, seed)
    path.write_text(json.dumps(record(n=count, **changes)), encoding="utf-8")
    frame.to_parquet(path.with_suffix(".samples.parquet"), index=False)
    np.savez_compressed(path.with_suffix(".examples.npz"), **examples(frame, shape))
    return path


def write_training(folder: Path, *, epochs: int = 12, error: float = 12.0, **recipe: Any) -> Path:
    """A run folder without an evaluation; `error` is the last certified error in validation."""
    folder.mkdir(parents=True)
    values = {"dataset": "mnist", "architecture": "fc1", "method": "c-per", "norm": "inf", "target": EPS, "batch": 100}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**values, **recipe}.items()]
    (folder / "recipe.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = [
        {
            "epoch": epoch,
            "loss": 2.0 / epoch,
            "eps": EPS * min(1.0, epoch / 6),
            "lr": 1e-3,
            "validation_CTE": 2 + 3 / epoch,
            "validation_CRE": error + 80.0 * (1 / epoch - 1 / epochs),
            "seconds": 3.0 * epoch,
        }
        for epoch in range(1, epochs + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder
