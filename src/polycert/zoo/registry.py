"""The registry of published models: `NAME.safetensors`, its recipe `.toml`, its row `.json`, a manifest of hashes."""

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
    """Where the models are."""
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
        """One of its files."""
        return self.folder / f"{self.name}{ending}"

    @property
    def recipe(self) -> str:
        """The recipe that it was trained by, as TOML."""
        return self.path(RECIPE).read_text(encoding="utf-8")

    @property
    def record(self) -> dict[str, Any]:
        """Its row, as `polycert evaluate` wrote it."""
        return read_object(self.path(RECORD))

    def verify(self) -> None:
        """The weights are those that were put here, or a clear error."""
        found = digest(self.path())
        if found != self.sha256:
            raise PolycertError(
                f"the zoo's model {self.name!r} is damaged: its sha256 must be {self.sha256}, got {found}; "
                "install polycert again"
            )


def names(folder: Path | None = None) -> tuple[str, ...]:
    """The models of the zoo."""
    return tuple(sorted(_manifest(folder or home())))


def entry(name: str, folder: Path | None = None) -> Entry:
    """A model by name, or a clear error."""
    where = folder or home()
    known = _manifest(where)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the models are {', '.join(sorted(known)) or 'none yet'}"
        raise PolycertError(f"there is no model {name!r} in the zoo: {hint}")
    return Entry(name, known[name], where)


def load(name: str, *, device: torch.device | str = "cpu") -> Network:
    """A published model by name, its sha256 verified first; `names()` lists them.

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
        run_dir: with a model, its recipe and its record.
        name: of the model, if not the folder's.
        folder: the zoo's, if not the package's own.
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
    run.read_recipe()  # `polycert evaluate` has read what it says: here it must only be one
    record = read_object(run.record)
    others = sum(Entry(other, "", where).path().stat().st_size for other in _manifest(where) if other != called)
    if others + run.model.stat().st_size > LARGEST:
        raise PolycertError(f"the zoo's models may take {LARGEST // 2**20} MB together, and {called!r} does not fit in")
    return _put(run, Entry(called, digest(run.model), where), {**record, "model": called})


def _put(run: RunFolder, made: Entry, record: dict[str, Any]) -> Entry:
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
    """sha256 of a file."""
    return sha256(path.read_bytes()).hexdigest()


def _manifest(folder: Path) -> dict[str, str]:
    path = folder / MANIFEST
    return read_object(path) if path.is_file() else {}
