"""The published models: `NAME.safetensors` with its recipe `.toml` and its record `.json`, and a manifest of hashes."""

from __future__ import annotations

import difflib
import re
import shutil
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from polycert.errors import PolycertError
from polycert.graph import Network
from polycert.models.model_files import load as load_file
from polycert.models.model_files import load_module
from polycert.records.evaluation import record_text
from polycert.records.files import read_object, whole_file
from polycert.records.run_folder import RunFolder

MANIFEST = "manifest.json"
LARGEST = 20 * 2**20  # bytes that all models together may take
MODEL, RECIPE, RECORD = ".safetensors", ".toml", ".json"
_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]*")


def home() -> Path:
    """Return the folder of the models."""
    return Path(str(resources.files("polycert") / "zoo" / "models"))


@dataclass(frozen=True)
class Entry:
    """A model's files: weights, recipe and record.

    Examples:
        >>> entry("mnist-fc1-linf-45ep-c-per").record["dataset"]
        'mnist'
    """

    name: str
    sha256: str
    folder: Path

    def path(self, ending: str = MODEL) -> Path:
        """Return the path of one of the model's files."""
        return self.folder / f"{self.name}{ending}"

    @property
    def recipe(self) -> str:
        """The recipe that trained the model, as TOML."""
        return self.path(RECIPE).read_text(encoding="utf-8")

    @property
    def record(self) -> dict[str, Any]:
        """The record that `polycert evaluate` wrote about the model."""
        return read_object(self.path(RECORD))

    def verify(self) -> None:
        """Raise `PolycertError` unless the weights have the hash in the manifest."""
        found = digest(self.path())
        if found != self.sha256:
            raise PolycertError(
                f"the zoo's model {self.name!r} is damaged: its sha256 must be {self.sha256}, got {found}; "
                "install polycert again"
            )


def names(folder: Path | None = None) -> tuple[str, ...]:
    """Return the names of the models in the zoo."""
    return tuple(sorted(_manifest(folder or home())))


def entry(name: str, folder: Path | None = None) -> Entry:
    """Return a model by name; raises `PolycertError` if there is none."""
    where = folder or home()
    known = _manifest(where)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the models are {', '.join(sorted(known)) or 'none yet'}"
        raise PolycertError(f"there is no model {name!r} in the zoo: {hint}")
    return Entry(name, known[name], where)


def load(name: str, *, device: torch.device | str = "cpu") -> Network:
    """Return a published model by name, after its sha256 is verified; `names()` lists all.

    Examples:
        >>> load("mnist-fc1-linf-45ep-c-per").input_shape
        (1, 28, 28)
    """
    found = entry(name)
    found.verify()
    return load_file(found.path(), device=device)


def add(run_dir: Path, name: str | None = None, folder: Path | None = None) -> Entry:
    """Put a trained and evaluated run into the zoo, in place of the model of that name.

    Args:
        run_dir: a folder with a model, its recipe and its record.
        name: the model's name, if it is not the folder's.
        folder: the folder of the zoo, if it is not the package's own.
    """
    where, called = folder or home(), name or run_dir.resolve().name
    if not _NAME.fullmatch(called):
        raise PolycertError(f"a model's name must be of small letters, digits and . + -, got {called!r}")
    run = RunFolder(run_dir)
    for file in (run.model, run.recipe, run.record):
        if not file.is_file():
            raise PolycertError(
                f"{run_dir} has no {file.name}: train with --run-dir, then polycert evaluate {run.model} "
                f"--out {run.record}"
            )
    load_module(run.model)
    run.read_recipe()  # raises an error unless it is TOML; `polycert evaluate` has checked its values
    record = read_object(run.record)
    others = sum(Entry(other, "", where).path().stat().st_size for other in _manifest(where) if other != called)
    if others + run.model.stat().st_size > LARGEST:
        raise PolycertError(f"the zoo's models may take {LARGEST // 2**20} MB together, and {called!r} does not fit in")
    return _put(run, Entry(called, digest(run.model), where), {**record, "model": called})


def _put(run: RunFolder, made: Entry, record: dict[str, Any]) -> Entry:
    """Write the model's files and its line in the manifest."""
    for ending, file in ((MODEL, run.model), (RECIPE, run.recipe)):
        with whole_file(made.path(ending)) as target:
            shutil.copyfile(file, target)
    _write(made.path(RECORD), record)
    _write(made.folder / MANIFEST, dict(sorted({**_manifest(made.folder), made.name: made.sha256}.items())))
    return made


def _write(path: Path, value: dict[str, Any]) -> None:
    with whole_file(path) as name:
        name.write_text(record_text(value), encoding="utf-8")


def digest(path: Path) -> str:
    """Return the sha256 of a file."""
    return sha256(path.read_bytes()).hexdigest()


def _manifest(folder: Path) -> dict[str, str]:
    """Return the sha256 of each model by name; none without a manifest."""
    path = folder / MANIFEST
    return read_object(path) if path.is_file() else {}
