"""Settings, which say for what data set, network and ball a row of the paper was trained and evaluated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from polycert.records.run_folder import RunFolder
from polycert.training.recipe_files import library

DATASETS = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
ACTIVATIONS = {"relu": "ReLU", "leaky_relu": "leaky ReLU"}


@dataclass(frozen=True)
class Setting:
    """A data set, a network and a ball; `eps` is text as in the recipe, such as `2/255`."""

    name: str
    dataset: str
    architecture: str
    activation: str
    norm: str
    eps: str

    @property
    def radius(self) -> float:
        """The radius of the ball as a number."""
        return float(Fraction(self.eps))

    @property
    def title(self) -> str:
        """The setting as tables show it, such as `MNIST FC1, ReLU, l_inf, eps 0.1`."""
        activation = ACTIVATIONS.get(self.activation, self.activation)
        network = self.architecture.upper()
        return f"{DATASETS.get(self.dataset, self.dataset)} {network}, {activation}, l_{self.norm}, eps {self.eps}"

    def train(self, method: str, *more: str, run: str = "") -> str:
        """Return the command that trains a row's network."""
        row = f"{self.name}-{method}"
        return " ".join(("polycert train", row, *more, "--run-dir", f"runs/{run or row}"))

    def evaluate(self, run: str, out: str, *more: str) -> str:
        """Return the commands that write a trained network's record."""
        ball = f"--dataset {self.dataset} --norm {self.norm} --eps {self.eps}"
        folder = f"mkdir -p {Path(out).parent} &&"
        return " ".join((folder, f"polycert evaluate {trained_model(run)} {ball}", *more, f"--out {out}"))


def trained_model(run: str) -> str:
    """Return the path where the commands of this package put a trained network."""
    return RunFolder(Path("runs", run)).model.as_posix()


def settings(names: Iterable[str]) -> dict[str, Setting]:
    """Return the settings by name, from the recipes of the library."""
    recipes = library()
    found: dict[str, Setting] = {}
    for name in dict.fromkeys(names):
        values = next(values for recipe, values in recipes.items() if recipe == f"{name}-{values['method']}")
        found[name] = _setting(name, values)
    return found


def _setting(name: str, values: dict[str, Any]) -> Setting:
    """Return a setting from a recipe's values."""
    return Setting(
        name=name,
        dataset=values["dataset"],
        architecture=values["architecture"],
        activation=values.get("activation", "relu"),
        norm=str(values["norm"]),
        eps=str(values["target"]),
    )
