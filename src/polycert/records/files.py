"""Files that are written whole or not at all, frames as `.csv`, `.json` or `.parquet`, and JSON that is read back."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from polycert.errors import PolycertError
from polycert.runtime.limits import parse_json, read_text


def _write_json(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame as a list of objects, one for each row."""
    # Numbers are written as Python prints them and read back exactly: a radius must never be rounded up.
    rows = frame.to_dict(orient="records")
    path.write_text(json.dumps(finite(rows), indent=1) + "\n", encoding="utf-8")


def finite(value: Any) -> Any:
    """Return the value with NaN and infinities, which JSON lacks, replaced by None."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


WRITERS: dict[str, Callable[[pd.DataFrame, Path], None]] = {
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
    ".json": _write_json,
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False),
}


def check_output(path: str | os.PathLike[str]) -> Path:
    """Return the path; raises `PolycertError` if `save_frame` cannot write it."""
    target = Path(path)
    if target.suffix not in WRITERS:
        raise PolycertError(f"cannot write {target.name!r}: the name must end in {', '.join(WRITERS)}")
    return check_place(target)


def check_place(target: Path) -> Path:
    """Return the path; raises `PolycertError` if it is a folder, or if its folder is missing."""
    if target.is_dir():
        raise PolycertError(f"cannot write {str(target)!r}: it is a folder")
    if not target.resolve().parent.is_dir():
        raise PolycertError(f"cannot write {str(target)!r}: its folder does not exist; make it first")
    return target


def save_frame(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a frame, whole or not at all, in the format of the path's ending."""
    target = check_output(path)
    with whole_file(target) as name:
        WRITERS[target.suffix](frame, name)


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`. The file replaces `target` at the end, and vanishes on failure."""
    handle, name = tempfile.mkstemp(dir=target.resolve().parent, prefix=f".{target.stem}-", suffix=target.suffix)
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raises `PolycertError` if the file holds anything else."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise PolycertError(
            f"{str(path)!r} must hold one JSON object, got {type(found).__name__}: "
            "write it again with the command that made it"
        )
    return found


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; raises `PolycertError` if the file holds none."""
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise PolycertError(
            f"{str(path)!r} is not JSON ({error}): write it again with the command that made it"
        ) from None


def _umask() -> int:
    """Return the mask of permissions for new files."""
    current = os.umask(0)
    os.umask(current)
    return current
