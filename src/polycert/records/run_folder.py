"""The folder of a training run. Only this module names its files. Checkpoints survive a kill at any moment.

| file | what |
|---|---|
| `recipe.toml` | the whole recipe |
| `state.json` | what is finished, and which file of tensors belongs to it |
| `checkpoint-N.safetensors` | weights, averages and the optimiser's moments after N epochs |
| `model.safetensors` | the model so far, for `polycert certify` |
| `metrics.jsonl` | a line per epoch |
| `evaluation.json` | the record that `polycert evaluate` wrote, with its other files beside it |

`state.json` is replaced last and at once, so it always names a complete file of tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from polycert.errors import PolycertError
from polycert.records.evaluation import beside
from polycert.records.files import whole_file
from polycert.runtime.limits import RECIPE, parse_json, parse_toml, read_text

FORMAT = 2


class Checkpoint(NamedTuple):
    """The state of a run after an epoch: facts that JSON can hold, and tensors by name."""

    facts: dict[str, Any]
    tensors: dict[str, Tensor]


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state, self.recipe, self.model, self.metrics, self.record = (
            path / name
            for name in ("state.json", "recipe.toml", "model.safetensors", "metrics.jsonl", "evaluation.json")
        )

    @property
    def samples(self) -> Path:
        """The file with one line for each sample, beside the record."""
        return beside(self.record, "samples.parquet")

    @property
    def trained(self) -> bool:
        """Whether a training has left files here."""
        return self.recipe.is_file() or self.metrics.is_file()

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint."""
        return self.state.is_file()

    def make(self, recipe: str) -> None:
        """Make the folder, remove what a killed run left half-written, and write the recipe."""
        if self.path.exists() and not self.path.is_dir():
            raise PolycertError(f"cannot train into {str(self.path)!r}: it is a file; give a folder")
        self._check_foreign(recipe)
        self.path.mkdir(parents=True, exist_ok=True)
        for file in (self.state, self.recipe, self.model, self.metrics, self.path / "checkpoint-*.safetensors"):
            for part in self.path.glob(f".{file.stem}-????????{file.suffix}"):  # what a kill left half-written
                part.unlink()
        self.write_text(self.recipe, recipe)

    def _check_foreign(self, recipe: str) -> None:
        """Refuse to write over files of anything but a run of this recipe.

        A run that was killed in its first epoch has left its recipe and no checkpoint.
        """
        own = self.started or (self.recipe.is_file() and self.recipe.read_bytes() == recipe.encode())
        found = [file.name for file in (self.recipe, self.model, self.metrics) if file.exists()]
        if found and not own:
            raise PolycertError(
                f"{str(self.path)!r} holds {', '.join(found)} of something else: give another --run-dir, or move them"
            )

    def write(self, epoch: int, checkpoint: Checkpoint) -> None:
        """Write the tensors, then the state that names them; remove older tensors last."""
        name = f"checkpoint-{epoch}.safetensors"
        tensors = {key: value.detach().contiguous() for key, value in checkpoint.tensors.items()}
        with whole_file(self.path / name) as part:
            safetensors.torch.save_file(tensors, part)
        facts = {"format": FORMAT, "epoch": epoch, "tensors": name, **checkpoint.facts}
        self.write_text(self.state, json.dumps(facts, indent=1) + "\n")
        for old in self.path.glob("checkpoint-*.safetensors"):
            if old.name != name:
                old.unlink()

    def read(self) -> tuple[int, Checkpoint]:
        """Return the number of finished epochs and their checkpoint; raises `PolycertError` if none can be read."""
        if not self.started:
            raise PolycertError(f"there is no checkpoint in {str(self.path)!r}: train without --resume first")
        try:
            facts = parse_json(read_text(self.state))
            if facts["format"] != FORMAT:
                raise PolycertError(f"{self.state} has format {facts['format']}, this version reads {FORMAT}")
            tensors = safetensors.torch.load_file(self.path / str(facts["tensors"]))
            return int(facts["epoch"]), Checkpoint(facts, tensors)
        except (OSError, ValueError, KeyError, TypeError, ArithmeticError, SafetensorError) as error:
            raise PolycertError(f"the checkpoint in {str(self.path)!r} cannot be read: {error}") from None

    def read_recipe(self) -> dict[str, Any]:
        """Return the recipe's values as they are written, none if there is no file."""
        if not self.recipe.is_file():
            return {}
        try:
            return parse_toml(read_text(self.recipe, RECIPE))
        except ValueError as error:
            raise PolycertError(
                f"{str(self.recipe)!r} is no recipe ({error}): restore the file that the training wrote"
            ) from None

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return one row for each epoch, as the function `read_metrics` does."""
        return read_metrics(self.metrics)

    def cut_metrics(self, epochs: int) -> None:
        """Keep the metrics of the first `epochs`; the others will be run again."""
        if self.metrics.is_file():
            kept = [row for row in self.read_metrics() if row["epoch"] <= epochs]
            self.write_text(self.metrics, "".join(f"{json.dumps(row)}\n" for row in kept))

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Append the metrics of an epoch."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def write_text(self, target: Path, text: str) -> None:
        """Write a text file, whole or not at all."""
        with whole_file(target) as part:
            part.write_text(text, encoding="utf-8")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return one row for each epoch, none if there is no file. A last line that a kill cut short does not count."""
    lines = read_text(path).splitlines() if path.is_file() else []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise PolycertError(f"line {number} of {str(path)!r} is not JSON ({error}): remove it") from error
        if not (isinstance(row, dict) and isinstance(row.get("epoch"), int)):
            raise PolycertError(f"line {number} of {str(path)!r} has no epoch: remove it")
        rows.append(row)
    return rows
