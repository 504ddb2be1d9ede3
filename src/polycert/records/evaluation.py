"""The files of an evaluation: `NAME.json`, and with samples `NAME.samples.parquet` and `NAME.examples.npz`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from polycert.errors import PolycertError
from polycert.records.files import check_output, finite, save_frame, whole_file

MEASURED = [
    "index",
    "label",
    "prediction",
    "nearest",
    "margin",
    "radius",
    "certified",
    "certified_crown",
    "certified_ibp",
    "largest",
    "attacked",
    "attack_radius",
    "status",
    "evaluations_bisection",
    "evaluations_envelope",
    "evaluations_root",
]
ORIGIN = [
    "norm",
    "eps",
    "box",
    "rigorous",
    "network",
    "version",
]  # facts of the record that every line of the samples repeats
COLUMNS = [*MEASURED, *ORIGIN]
_FLAT_LIST = re.compile(r"\[[^\[\]{}\"]*\]")
EXAMPLES = 24  # samples with the smallest certified radius that are kept, and as many with the largest


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of `evaluate`.

    Attributes:
        record: the row, one JSON object; see the page on evaluation for its keys.
        columns: what was measured on each sample, arrays `[n]`.
        inputs: the samples `[n, *shape]`.
        points: the nearest counterexample of each sample `[n, *shape]`, NaN where none was found; None if none was
            searched for.
        resumed: how many measured `samples` and `exact verdicts` were taken over from an earlier run.
    """

    record: dict[str, Any]
    columns: Mapping[str, np.ndarray]
    inputs: np.ndarray
    points: np.ndarray | None
    resumed: Mapping[str, int] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """Return a frame with one line for each sample, which repeats what the record says about its origin."""
        frame = pd.DataFrame({name: self.columns[name] for name in MEASURED if name in self.columns})
        for name in (name for name in frame.columns if name.startswith("evaluations_")):
            frame[name] = frame[name].astype("Int64")  # missing where the sample was not searched
        if "attack_radius" not in frame:
            frame["attack_radius"] = np.nan
        status = frame["status"].replace("", None) if "status" in frame else None
        origin = {name: self.record[name] for name in ORIGIN}
        return frame.assign(status=pd.Series(status, index=frame.index, dtype="object"), **origin)[COLUMNS]

    def examples(self) -> dict[str, np.ndarray]:
        """Return `index`, `input` and `counterexample` of samples with the smallest and the largest certified radius.

        Samples with the same radius keep their order. Misclassified samples have radius 0 and would crowd out all
        others, so they only fill up what is left.
        """
        largest, right = self.columns["largest"], self.columns["prediction"] == self.columns["label"]
        order = np.argsort(largest, kind="stable")[: int((~np.isnan(largest)).sum())]  # NaN sorts last
        inner, others = order[right[order]], order[~right[order]]
        ends = [np.concatenate([way, others])[:EXAMPLES] for way in (inner, inner[::-1])]
        chosen = np.unique(np.concatenate(ends))
        points = np.full_like(self.inputs[chosen], np.nan) if self.points is None else self.points[chosen]
        inputs, found = (np.asarray(values, dtype=np.float32) for values in (self.inputs[chosen], points))
        return {"index": self.columns["index"][chosen], "input": inputs, "counterexample": found}

    def save(self, path: str | Path) -> None:
        """Write the record, and the samples if counterexamples were searched for; each file whole or not at all."""
        target = check_record(path)
        if self.points is not None:
            save_frame(self.to_frame(), beside(target, "samples.parquet"))
            found = self.examples()
            with whole_file(beside(target, "examples.npz")) as name, name.open("wb") as file:
                np.savez_compressed(
                    file, index=found["index"], input=found["input"], counterexample=found["counterexample"]
                )
        with whole_file(target) as name:  # written last: where there is a record, its other files are there
            name.write_text(record_text(self.record), encoding="utf-8")


def check_record(path: str | Path) -> Path:
    """Return the path; raises `PolycertError` if no record can be written to it."""
    target = check_output(path)
    if target.suffix != ".json":
        raise PolycertError(f"an evaluation is one record: its file must end in .json, got {target.name!r}")
    return target


def beside(path: Path, ending: str) -> Path:
    """Return the path of another file of the same evaluation, `NAME.ending` beside `NAME.json`."""
    return path.with_name(f"{path.stem}.{ending}")


def record_text(record: Mapping[str, Any]) -> str:
    """Return a record as JSON with each list of numbers on one line."""
    text = json.dumps(finite(record), indent=1)
    return _FLAT_LIST.sub(lambda found: " ".join(found[0].split()), text) + "\n"
