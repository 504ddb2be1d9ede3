"""Measurements of a network for figures, stored in small files: a curve, or a histogram."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from polycert import data
from polycert.certification.radius import largest_radius
from polycert.errors import PolycertError
from polycert.evaluation.settings import usual_upper
from polycert.graph import Network, capture
from polycert.models.model_files import load_module
from polycert.records.files import whole_file
from polycert.records.run_folder import RunFolder
from polycert.report.plots import phases
from polycert.training.recipe_files import read_recipe

Progress = Callable[[int, int], None]
OURS, THEIRS = "ours", "released networks"
WIDTH, BINS = 1.0, 100  # parameters are counted from -WIDTH to WIDTH
DATASETS, NORMS = ("mnist", "cifar10"), ("inf", "2")  # of the paper's networks
SHOWN, PER_TARGET = 5, 16  # radii are drawn up to SHOWN targets, with so many bins for each


@dataclass(frozen=True)
class Origin:
    """How a network was trained, as the files beside it say."""

    path: Path
    source: str
    dataset: str
    norm: str
    eps: float
    method: str

    @property
    def run(self) -> str:
        """The name of the network's folder."""
        return self.path.resolve().parent.name

    @property
    def name(self) -> str:
        """The name of the stored file: that of the run, or of a released network's method."""
        return self.run if self.source == OURS else f"released-{self.method}"

    @property
    def upper(self) -> float:
        """The largest radius that is searched, as in the paper."""
        return usual_upper(self.dataset, float(self.norm), self.eps)

    def plain(self) -> dict[str, Any]:
        """Return the facts that the stored file holds."""
        return {
            "model": f"{self.run}/{self.path.name}" if self.source == OURS else self.path.stem,
            "source": self.source,
            "dataset": self.dataset,
            "norm": self.norm,
            "eps": self.eps,
            "method": self.method,
        }


@dataclass(frozen=True)
class Settings:
    """The settings of a measurement: how many samples, or which one, and how it runs."""

    limit: int | None = None
    index: int | None = None
    data_dir: Path | None = None
    threads: int = 1
    progress: Progress | None = None


def origin(path: Path) -> Origin:
    """Return the origin of a network, from the recipe of its run or the `index.json` of the released networks."""
    run = RunFolder(path.parent)
    if run.recipe.is_file():
        found = read_recipe(str(run.recipe))
        return Origin(path, OURS, found.dataset, found.norm, float(found.target), found.method)
    about = load_module(path).about if path.suffix == ".npz" else {}
    if not {"dataset", "norm", "eps", "method"} <= set(about):
        raise PolycertError(
            f"it is not known how {path.name} was trained: give a model in its run directory, with "
            f"{run.recipe.name}, or an .npz with its entry in index.json"
        )
    norm = {"linf": "inf", "l2": "2"}[about["norm"]]
    return Origin(path, THEIRS, about["dataset"], norm, float(about["eps"]), about["method"].lower())


def curve(found: Origin, settings: Settings) -> dict[str, Any]:
    """Return the curve of Figure 1 for one sample, by default the first that is correctly classified."""
    if found.norm != "inf":
        raise PolycertError(f"figure1 is about the norm inf, but {found.path.name} was trained for {found.norm}")
    network, test = _network(found), data.load(found.dataset, "test", settings.data_dir)
    if settings.index is not None and not 0 <= settings.index < len(test):
        raise PolycertError(f"--index must be from 0 to {len(test) - 1}, got {settings.index}")
    index = settings.index if settings.index is not None else _first_right(network, test)
    sample, label = test.x[index], int(test.y[index])
    result = phases(network, sample, label, upper=found.upper)
    return {
        **found.plain(),
        "index": index,
        "label": label,
        "eps": _rounded(result.eps),
        "radius": _rounded(result.radius),
        "certified": result.certified.tolist(),
    }


def parameters(found: Origin, settings: Settings) -> dict[str, Any]:
    """Return the histogram of Figures 3 and 8, of all weights and biases."""
    module = load_module(found.path).module
    values = torch.cat([value.detach().double().flatten() for value in module.parameters()]).numpy()
    norm = float(np.sqrt((values**2).sum()))
    return {**found.plain(), **_counted(values, -WIDTH, WIDTH, BINS), "parameter_norm": round(norm, 4)}


def radii(found: Origin, settings: Settings) -> dict[str, Any]:
    """Return the histogram of Figures 5 and 9, of the largest certified radii.

    The radii are those that `evaluate` stored beside the model, or else they are searched.
    """
    stored = RunFolder(found.path.parent).samples
    values = _stored(stored) if stored.is_file() else _searched(found, settings)
    counted = _counted(values[values > 0], 0.0, SHOWN * found.eps, SHOWN * PER_TARGET)
    return {**found.plain(), **counted, "zero": int((values <= 0).sum())}


def _stored(path: Path) -> np.ndarray:
    """Return the largest radii in a file of samples, `[n]`."""
    try:
        return pd.read_parquet(path, columns=["largest"])["largest"].to_numpy(dtype=np.float64)
    except (OSError, ValueError, KeyError) as error:
        raise PolycertError(f"{path} has no column 'largest' ({error}): evaluate the model anew") from None


def _searched(found: Origin, settings: Settings) -> np.ndarray:
    """Return the largest certified radius of each sample by a search, `[n]`."""
    test = data.load(found.dataset, "test", settings.data_dir)
    result = largest_radius(
        _network(found),
        test.x[: settings.limit],
        test.y[: settings.limit],
        norm=float(found.norm),
        upper=found.upper,
        low=0.0,
        high=1.0,
        threads=settings.threads,
        progress=settings.progress,
    )
    return result.radius.numpy()


def _network(found: Origin) -> Network:
    """Return the network, if the paper has networks for its data set and norm."""
    if found.dataset not in DATASETS or found.norm not in NORMS:
        raise PolycertError(f"the paper has no networks for {found.dataset}, l_{found.norm}: {found.path.name}")
    file = load_module(found.path)
    return capture(file.module, file.input_shape)


def _first_right(network: Network, test: data.Dataset) -> int:
    """Return the position of the first sample that is correctly classified, or 0 if none of the first 100 is."""
    with torch.no_grad():
        right = network(test.x[:100]).argmax(1) == test.y[:100]
    return int(right.nonzero()[0]) if bool(right.any()) else 0


def _counted(values: np.ndarray, low: float, high: float, bins: int) -> dict[str, Any]:
    """Return a histogram from low to high, with the counts of values outside."""
    counts, _ = np.histogram(values, bins=bins, range=(low, high))
    return {
        "low": low,
        "high": high,
        "counts": counts.tolist(),
        "below": int((values < low).sum()),
        "above": int((values > high).sum()),
    }


def _rounded(values: np.ndarray) -> list[float]:
    """Return values rounded down to seven decimals, so that no stored radius is larger than the certified one."""
    return [math.floor(value * 1e7) / 1e7 for value in values.tolist()]


MEASURES: dict[str, Callable[[Origin, Settings], dict[str, Any]]] = {
    "figure1": curve,
    "figure3": parameters,
    "figure5": radii,
    "figure8": parameters,
    "figure9": radii,
}


def add(figure: str, model: Path, records: Path, settings: Settings) -> Path:
    """Measure what a figure needs of a model, store it, and return the file's path."""
    if figure not in MEASURES:
        raise PolycertError(f"--add goes with {', '.join(MEASURES)}, not {figure}")
    found = origin(model)
    values = MEASURES[figure](found, settings)
    target = records / figure / f"{found.name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as name:
        name.write_text(json.dumps(values) + "\n", encoding="utf-8")
    return target
