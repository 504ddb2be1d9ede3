"""Finds are kept as files, and replayed by the tests for ever."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "cases"


class Kept(NamedTuple):
    """A find: a case of a kind, and what was wrong with it."""

    kind: str
    case: Any
    how: str
    sentence: str
    origin: str

    @property
    def name(self) -> str:
        """Of its file, without the ending."""
        digest = hashlib.sha256(json.dumps(self.case, sort_keys=True).encode()).hexdigest()[:10]
        return f"{self.kind.replace(' ', '-')}-{digest}"

    def save(self, folder: Path = FOLDER) -> Path:
        """Write it, whole or not at all; one that is there already stays as it is."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        if not path.exists():
            draft = path.with_suffix(".part")
            draft.write_text(json.dumps(self._asdict(), indent=1) + "\n", encoding="utf-8")
            draft.replace(path)
        return path


def kept(folder: Path = FOLDER) -> Iterator[Kept]:
    """All finds of a folder, by name."""
    for path in sorted(folder.glob("*.json")):
        yield Kept(**json.loads(path.read_text(encoding="utf-8")))
