"""Records that say how they came about, and how they become frames and files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import pandas as pd
import torch
from torch import Tensor

from polycert import __version__
from polycert.errors import PolycertError
from polycert.records.files import save_frame
from polycert.sets.ball import Array, norm_text

Joined = TypeVar("Joined", bound="SampleRecords")


def box_text(low: float | Array | None, high: float | Array | None) -> str:
    """Return the box as records write it.

    Examples:
        >>> box_text(0.0, 1.0), box_text(None, [0.5, 1.0])
        ('[0, 1]', '[-inf, per feature]')
    """
    return f"[{_side_text(low, '-inf')}, {_side_text(high, 'inf')}]"


def _side_text(side: float | Array | None, unbounded: str) -> str:
    """Return one side of the box as text."""
    if side is None:
        return unbounded
    least, most = torch.as_tensor(side, dtype=torch.float64).aminmax()
    return norm_text(float(least)) if least == most else "per feature"  # with all digits, as norms are


@dataclass(frozen=True, eq=False, kw_only=True)
class Provenance(ABC):
    """Records that say what was asked, about which network, and which version of polycert answered.

    Attributes:
        norm: the ball's norm.
        box: the ball's box as text, such as `[0, 1]`; None where it was not kept.
        network: SHA-256 of the graph with its weights; None where it was not computed.
        version: the version of polycert.
    """

    ASKED: ClassVar[tuple[str, ...]] = ()  # further attributes that are the same for all samples

    norm: float
    box: str | None = None
    network: str | None = None
    version: str = __version__

    @abstractmethod
    def rows(self) -> pd.DataFrame:
        """Return a frame of what was found, without how it came about."""

    def to_frame(self) -> pd.DataFrame:
        """Return a frame of what was found; every row also says how it came about."""
        asked = {name: getattr(self, name) for name in (*self.ASKED, "box", "network", "version")}
        return self.rows().assign(norm=norm_text(self.norm), **asked)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a `.csv`, `.json` or `.parquet` file, whole or not at all."""
        save_frame(self.to_frame(), path)


@dataclass(frozen=True, eq=False, kw_only=True)
class SampleRecords(Provenance):
    """Records whose attributes hold a tensor or a tuple with an entry for each sample.

    Attributes:
        label: the class that was checked.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ()  # attributes that a frame shows

    label: Tensor

    def __len__(self) -> int:
        return len(self.label)

    def rows(self) -> pd.DataFrame:
        """Return a frame with one row for each sample."""
        return pd.DataFrame({name: _plain(getattr(self, name)) for name in self.COLUMNS})

    @classmethod
    def join(cls: type[Joined], parts: Sequence[Joined]) -> Joined:
        """Return the records of several batches as one."""
        if not parts:
            raise PolycertError("there are no samples: give at least one")
        values = {item.name: [getattr(part, item.name) for part in parts] for item in fields(cls)}
        return cls(**{name: _joined(found) for name, found in values.items()})


def _plain(values: Tensor | Sequence[str]) -> Any:
    """Return a column of a frame; floating-point numbers become float64."""
    if not isinstance(values, Tensor):
        return list(values)
    numbers = values.detach().cpu()
    return (numbers.double() if numbers.is_floating_point() else numbers).numpy()


def _joined(values: list[Any]) -> Any:
    """Return tensors and tuples concatenated; any other value is the same in all parts and returned once."""
    if isinstance(values[0], Tensor):
        return torch.cat(values)
    return sum(values, ()) if isinstance(values[0], tuple) else values[0]
