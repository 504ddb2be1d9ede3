"""The input of a report: records, the files beside them, and the folders of trained models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet
from pandas.api.types import is_numeric_dtype

from polycert.errors import PolycertError
from polycert.records.evaluation import beside
from polycert.records.files import finite, read_json
from polycert.records.run_folder import RunFolder
from polycert.runtime.limits import ENTRIES, read_arrays

Record = Mapping[str, Any]
FloatArray = npt.NDArray[np.float32]
RECORD_KEYS = ("model", "norm", "eps", "n")
SAMPLE_KEYS = ("index", "label", "prediction")


@dataclass(frozen=True, eq=False)
class Examples:
    """Samples as arrays: `index[k]`, `inputs[k, *shape]`, `counterexamples[k, *shape]` (NaN where there is none)."""

    index: npt.NDArray[np.int64]
    inputs: FloatArray
    counterexamples: FloatArray


@dataclass(frozen=True, eq=False)
class ReportedModel:
    """A model with all that its files say about it.

    Attributes:
        name: what the page calls it.
        path: the record, or the folder of a training without one.
        record: the record of `polycert evaluate`; empty if the model was not evaluated.
        samples: one line per sample, or None.
        examples: the hardest and the easiest samples, or None.
        metrics: one object per epoch; empty if the training left none.
        recipe: the recipe of the training; empty if there is none.
    """

    name: str
    path: Path
    record: Record = field(default_factory=dict)
    samples: pd.DataFrame | None = None
    examples: Examples | None = None
    metrics: Sequence[Record] = ()
    recipe: Record = field(default_factory=dict)

    @property
    def about_model(self) -> bool:
        """Whether it was trained or evaluated; a record of benchmarks/claims.py alone only serves the claims."""
        return "CTE" in self.record or self.samples is not None or bool(self.metrics) or bool(self.recipe)

    def fact(self, key: str) -> Any:
        """Return a value of the record, or else of the recipe; None if neither has it."""
        return self.record.get(key, self.recipe.get("target" if key == "eps" else key))


def gather(paths: Iterable[Path]) -> list[ReportedModel]:
    """Return the runs in `paths` (records, run folders, folders of either), each once, in the order given."""
    found: dict[Path, ReportedModel] = {}
    for path in paths:
        if not path.exists():
            raise PolycertError(f"there is no {str(path)!r}: give records (.json) or folders that hold some")
        before = len(found)
        for run in _of_folder(path) if path.is_dir() else _of_file(path):
            found.setdefault(run.path.resolve(), run)
        if len(found) == before and path.is_dir() and not any(_of_folder(path)):
            raise PolycertError(
                f"{str(path)!r} holds neither a record nor a training: "
                "`polycert evaluate MODEL --out FILE.json` writes records, `polycert train` run folders"
            )
    if not found:
        raise PolycertError("a report needs at least one record or run folder, got none")
    return list(found.values())


def _of_file(path: Path) -> Iterator[ReportedModel]:
    """Yield the run of a record; raises `PolycertError` if the file is no record."""
    if path.suffix != ".json":
        raise PolycertError(f"records are .json files, got {path.name!r}: give the one that `polycert evaluate` wrote")
    content = read_json(path)
    if not _is_record(content):
        raise PolycertError(
            f"{str(path)!r} is not a record: it must be one object with {', '.join(RECORD_KEYS)} "
            "(eps and n are numbers), as `polycert evaluate` writes"
        )
    yield _with_files(path, finite(content))


def _of_folder(folder: Path) -> Iterator[ReportedModel]:
    """Yield the runs of a folder and of the folders below it."""
    run = RunFolder(folder)
    if run.trained:
        yield from _of_training(run)
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _of_folder(path)
        elif path.suffix == ".json" and _is_record(content := read_json(path)):
            yield _with_files(path, finite(content))


def _of_training(run: RunFolder) -> Iterator[ReportedModel]:
    """Yield one run for each record of a training's folder, or the training alone if it has no record."""
    recipe, metrics = run.read_recipe(), finite(run.read_metrics())
    records = [(path, content) for path in sorted(run.path.glob("*.json")) if _is_record(content := read_json(path))]
    if not records:
        yield ReportedModel(name=run.path.resolve().name, path=run.path, metrics=metrics, recipe=recipe)
    for path, content in records:
        yield _with_files(path, finite(content), metrics, recipe)


def _with_files(
    path: Path, record: Record, metrics: Sequence[Record] = (), recipe: Record | None = None
) -> ReportedModel:
    """Return a record with the files beside it."""
    training = record.get("training")
    own = training.get("metrics", ()) if isinstance(training, Mapping) else ()
    return ReportedModel(
        name=str(record["model"]),
        path=path,
        record=record,
        samples=read_samples(beside(path, "samples.parquet")),
        examples=read_examples(beside(path, "examples.npz")),
        metrics=metrics or [row for row in own if isinstance(row, Mapping)],
        recipe=recipe or {},
    )


def _is_record(content: Any) -> bool:
    """Return whether a JSON value is a record of `polycert evaluate`."""
    if not isinstance(content, dict) or not all(key in content for key in RECORD_KEYS):
        return False
    return isinstance(content["eps"], int | float) and isinstance(content["n"], int)


def read_samples(path: Path) -> pd.DataFrame | None:
    """Return the file with one line for each sample; None if there is none. Raises `PolycertError` if it is damaged."""
    if not path.is_file():
        return None
    try:
        declared = pyarrow.parquet.read_metadata(path)
        if declared.num_rows * declared.num_columns > ENTRIES:
            raise PolycertError(f"{str(path)!r} declares more than {ENTRIES} entries: evaluate again with --samples")
        frame = pd.read_parquet(path)
    except PolycertError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, pyarrow.ArrowException) as error:
        raise PolycertError(f"cannot read {str(path)!r} as parquet: evaluate again with --samples") from error
    missing = [key for key in SAMPLE_KEYS if key not in frame or not is_numeric_dtype(frame[key])]
    if missing or frame.empty:
        what = f"lacks the columns of numbers {', '.join(missing)}" if missing else "has no samples"
        raise PolycertError(f"{str(path)!r} {what}: evaluate again with --samples")
    return frame


def flag(frame: pd.DataFrame, name: str) -> pd.Series[bool]:
    """Return a column as bool; values that are missing count as False."""
    return pd.to_numeric(frame[name], errors="coerce").astype("float64").eq(1.0)


def read_examples(path: Path) -> Examples | None:
    """Return the file with samples as arrays; None if there is none. Raises `PolycertError` if it is damaged."""
    if not path.is_file():
        return None
    try:
        content = read_arrays(path)
        index, inputs, found = (content[name] for name in ("index", "input", "counterexample"))
    except (PolycertError, KeyError) as error:
        raise PolycertError(
            f"cannot read index, input and counterexample from {str(path)!r}: evaluate again with --samples"
        ) from error
    if inputs.shape != found.shape or index.shape != inputs.shape[:1]:
        raise PolycertError(
            f"the arrays in {str(path)!r} must be index[k], input[k, ...] and counterexample[k, ...], "
            f"got {index.shape}, {inputs.shape} and {found.shape}: evaluate again with --samples"
        )
    return Examples(index.astype(np.int64), inputs.astype(np.float32), found.astype(np.float32))
