"""The folder that keeps measured slices of samples, so that an interrupted evaluation continues."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polycert import __version__
from polycert.errors import PolycertWarning
from polycert.evaluation.measurements import Measurements, measure
from polycert.evaluation.settings import EvaluationQuestion, Stage
from polycert.graph.fingerprint import fingerprint
from polycert.records.files import whole_file
from polycert.runtime.execution import locked
from polycert.runtime.limits import read_arrays

SLICE = 1000  # samples: few enough to lose little, and enough for full batches of attacks on unproved samples
COLUMN, SECONDS = "column_", "seconds_"
SEAL = "seal"


@dataclass(frozen=True)
class MeasurementStore:
    """A folder of measured slices, each named by a fingerprint of all that it depends on; None keeps no slices."""

    folder: Path | None

    @contextmanager
    def locked(self, rank: int) -> Iterator[None]:
        """Hold a lock, so that no second process does the same work."""
        if self.folder is None:
            yield
            return
        with locked(self.folder.with_suffix(f".lock{rank or ''}")):
            yield

    def measured(self, question: EvaluationQuestion, stage: Stage) -> Measurements:
        """Return the measurements of a slice from disk, or measure the slice and write it there."""
        if self.folder is None:
            return measure(question, stage)
        about = _fingerprint(question)
        path = self.folder / f"{about}.npz"
        part = _read(path, about) if path.is_file() else None
        if part is not None:
            return replace(part, resumed={"samples": len(part)})
        part = measure(question, stage)
        self.folder.mkdir(exist_ok=True)
        with whole_file(path) as name, name.open("wb") as file:
            np.savez(file, **_sealed(_flat(part), about))
        return part

    def clear(self) -> None:
        """Remove the slices, and the folder unless something else is in it."""
        if self.folder is None or not self.folder.is_dir():
            return
        for path in self.folder.glob("*.npz"):
            path.unlink()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()


def _flat(part: Measurements) -> dict[str, np.ndarray]:
    """Return the measurements as the named arrays that a file holds."""
    seconds = {SECONDS + name: np.array(value) for name, value in part.seconds.items()}
    return {
        **{COLUMN + k: v for k, v in part.columns.items()},
        **seconds,
        "points": part.points,
        "hits": part.counterexamples,
    }


def _sealed(arrays: dict[str, np.ndarray], about: str) -> dict[str, Any]:
    """Return the arrays with a checksum of them and of what they are about."""
    return {**arrays, SEAL: np.array(fingerprint(about, arrays))}


def _read(path: Path, about: str) -> Measurements | None:
    """Return a slice from disk, or warn and return None if it is damaged or about something else."""
    try:
        arrays = read_arrays(path)
        seal = arrays.pop(SEAL)
        whole = bool(_sealed(arrays, about)[SEAL] == seal)
    except Exception:  # damaged files break in many ways
        whole = False
    if not whole:
        warnings.warn(f"{path} is damaged, and its samples are measured again", PolycertWarning, stacklevel=2)
        return None
    columns = {name.removeprefix(COLUMN): value for name, value in arrays.items() if name.startswith(COLUMN)}
    seconds = {name.removeprefix(SECONDS): float(value) for name, value in arrays.items() if name.startswith(SECONDS)}
    return Measurements(columns, arrays["points"], arrays["hits"], seconds)


def _fingerprint(question: EvaluationQuestion) -> str:
    """Return the fingerprint of the network, the ball, the settings and the samples; batches do not matter."""
    with torch.no_grad():
        network = (question.network.bind(), question.network.bind(torch.float64))
    samples = (question.x, question.y, question.index, question.searched)
    return fingerprint(__version__, network, question.ball, question.settings, samples)


def slices(total: int) -> list[slice]:
    """Return the slices of all samples, of `SLICE` samples each but for the last."""
    return [slice(begin, min(begin + SLICE, total)) for begin in range(0, total, SLICE)]
