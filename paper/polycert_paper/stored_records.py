"""Stored records: `TABLE/ROW.json` and `released/NAME.json` of `polycert evaluate`, `FIGURE/NAME.json` of pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from polycert.errors import PolycertError
from polycert.records.figures import FIGURES
from polycert.records.files import read_object
from polycert_paper.settings import Setting
from polycert_paper.table import Figure

RECORDS = Path(__file__).parents[1] / "results"  # of a checkout
RELEASED = "released"


def _real(value: float) -> float:
    """Return the value; raises `ValueError` unless it is finite."""
    if not math.isfinite(value):
        raise ValueError(f"must be finite, got {value}")
    return value


Real = Annotated[float, AfterValidator(_real)]


def _as_counted(figures: dict[str, Figure]) -> dict[str, Figure]:
    """Return the figures; raises `ValueError` if one is an interval and should not be, or the other way round."""
    for key, value in figures.items():
        if isinstance(value, tuple) != FIGURES[key].group.kind.pair:
            raise ValueError(f"{key} must be {'one number' if isinstance(value, tuple) else '[lower, upper]'}")
    return figures


class Figures(BaseModel):
    """The figures of a record that were measured: errors in per cent, radii in input units."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    n: Annotated[int, Field(ge=1)] | None = None
    figures: Annotated[dict[str, Real | tuple[Real, Real]], AfterValidator(_as_counted)] = {}

    @model_validator(mode="before")
    @classmethod
    def _gathered(cls, content: Any) -> Any:
        """Return the content with its figures gathered in one entry; a record holds them beside its other entries."""
        if not isinstance(content, dict):
            return content  # which is refused with a sentence
        found = {key: content[key] for key in FIGURES if content.get(key) is not None}
        return {**content, "figures": found or content.get("figures", {})}


class Training(BaseModel):
    """How a network was trained: the command and what it took; CPU time is that of the first process."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    command: str
    metrics: list[dict[str, Any]] = []
    minutes_wall: Real | None = None
    minutes_cpu: Real | None = None


class Record(Figures):
    """The record of an evaluated network."""

    model: str = ""
    dataset: str
    architecture: str
    activation: str = "relu"
    norm: str
    eps: Real
    method: str
    seed: int | None = None
    training: Training | None = None
    intervals: dict[str, tuple[Real, Real]] = {}
    clean_half: Figures | None = None
    limits: dict[str, int] = {}

    def of(self, setting: Setting, method: str) -> bool:
        """Return whether the record belongs to a row."""
        mine = (self.dataset, self.architecture.lower(), self.activation, self.norm, self.method.lower())
        row = (setting.dataset, setting.architecture, setting.activation, setting.norm, method)
        return mine == row and math.isclose(self.eps, setting.radius, rel_tol=1e-6)


Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Store:
    """A folder of records."""

    folder: Path

    def records(self, part: str) -> dict[str, Record]:
        """Return the records of a subfolder, by file name without its ending."""
        return self.read(part, Record)

    def read(self, part: str, kind: type[Model]) -> dict[str, Model]:
        """Return the files of a subfolder as models of one kind, by file name without its ending."""
        return {path.stem: _checked(path, kind) for path in sorted((self.folder / part).glob("*.json"))}

    def row(self, part: str, setting: Setting, method: str) -> Record | None:
        """Return the record that is named after a row, or None; raises `PolycertError` if its content does not fit."""
        path = self.folder / part / f"{setting.name}-{method}.json"
        if not path.is_file():
            return None
        record = _checked(path, Record)
        if not record.of(setting, method):
            found = f"{record.dataset} {record.architecture} {record.activation} l_{record.norm} {record.eps:g}"
            raise PolycertError(
                f"{path} must hold {setting.title}, {method}, as its name says, got {found}, {record.method}: rename it"
            )
        return record


def _checked(path: Path, kind: type[Model]) -> Model:
    """Return a file's content as a model; raises `PolycertError` if it does not fit."""
    try:
        return kind.model_validate(read_object(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise PolycertError(f"{path} is no such record: {place}: {first['msg']}; write it anew") from None
