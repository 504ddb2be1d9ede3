"""`Certificates`: the one record of results that tables, figures and reports read."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from polycert.errors import PolycertError
from polycert.sets.ball import norm_text


@dataclass(frozen=True, eq=False)
class Certificates:
    """What was proved about each sample of a batch.

    Attributes:
        index: position of the sample in its data set.
        label: the class that was checked.
        prediction: the model's own class.
        margin: a lower bound of the worst margin over the whole ball.
        certified: the whole ball is proved.
        radius: every point of the box nearer than this keeps the label; 0 where nothing is proved.
        nearest: the other class whose border is nearest (by distance, or by margin where the ball is proved).
        dtype: floating-point type in which the sample was decided.
        seconds: time per sample of its batch.
        eps, norm, method, relaxation, rigorous: what was asked.
    """

    index: Tensor
    label: Tensor
    prediction: Tensor
    margin: Tensor
    certified: Tensor
    radius: Tensor
    nearest: Tensor
    eps: Tensor
    seconds: Tensor
    dtype: tuple[str, ...]
    norm: float
    method: str
    relaxation: str
    rigorous: bool

    def __len__(self) -> int:
        return len(self.label)

    def to_frame(self) -> pd.DataFrame:
        """One row per sample."""
        columns = (
            "index",
            "label",
            "prediction",
            "certified",
            "radius",
            "margin",
            "nearest",
            "eps",
            "seconds",
        )
        frame = pd.DataFrame({name: getattr(self, name).cpu().numpy() for name in columns})
        frame["status"] = [self._status(k) for k in range(len(self))]
        frame["dtype"] = list(self.dtype)
        for name in ("norm", "method", "relaxation", "rigorous"):
            frame[name] = norm_text(self.norm) if name == "norm" else getattr(self, name)
        return frame

    def _status(self, k: int) -> str:
        if bool(self.certified[k]):
            return "certified"
        if int(self.prediction[k]) != int(self.label[k]):
            return "misclassified"
        return "partial" if float(self.radius[k]) > 0 else "unproved"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `.csv`, `.json` or `.parquet`, whole or not at all."""
        save_frame(self.to_frame(), path)

    def summary(self) -> dict[str, float]:
        """Clean error, certified robust error (per cent) and the average certified bound."""
        count = max(len(self), 1)
        return {
            "n": float(len(self)),
            "CTE": 100 * float((self.prediction != self.label).sum()) / count,
            "CRE": 100 * (1 - float(self.certified.sum()) / count),
            "ACB": float(self.radius.sum()) / count,
        }

    @staticmethod
    def join(parts: Sequence[Certificates]) -> Certificates:
        """The records of several batches as one."""
        if not parts:
            raise PolycertError("there are no samples: give at least one")
        joined: dict[str, Any] = {}
        for item in fields(Certificates):
            values = [getattr(part, item.name) for part in parts]
            if isinstance(values[0], Tensor):
                joined[item.name] = torch.cat(values)
            else:
                joined[item.name] = sum(values, ()) if item.name == "dtype" else values[0]
        return Certificates(**joined)


def _write_json(frame: pd.DataFrame, path: Path) -> None:
    # Numbers as Python prints them, which reads back exactly: a radius must never be rounded up.
    rows = frame.to_dict(orient="records")
    records = [{key: _json_value(value) for key, value in row.items()} for row in rows]
    path.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


def _json_value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


WRITERS: dict[str, Callable[[pd.DataFrame, Path], None]] = {
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
    ".json": _write_json,
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False),
}


def check_output(path: str | os.PathLike[str]) -> Path:
    """A path that `save_frame` can write, or a clear error before any work is done."""
    target = Path(path)
    if target.suffix not in WRITERS:
        raise PolycertError(f"cannot write {target.name!r}: the name must end in {', '.join(WRITERS)}")
    return check_place(target)


def check_place(target: Path) -> Path:
    """A path in a folder that is there, and not a folder itself, or a clear error."""
    if target.is_dir():
        raise PolycertError(f"cannot write {str(target)!r}: it is a folder")
    if not target.resolve().parent.is_dir():
        raise PolycertError(f"cannot write {str(target)!r}: its folder does not exist; make it first")
    return target


def save_frame(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write records under a temporary name in the same folder, then rename."""
    target = check_output(path)
    with whole_file(target) as name:
        WRITERS[target.suffix](frame, name)


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A temporary name beside `target` that takes its place when all is written, and vanishes on failure."""
    handle, name = tempfile.mkstemp(dir=target.resolve().parent, prefix=f".{target.stem}-", suffix=target.suffix)
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
