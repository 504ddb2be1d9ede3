"""Locks: what one process writes, a second one is told to leave alone. The system frees them, even after `kill -9`."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from polycert.errors import PolycertError, PolycertWarning, reason

HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)  # by system

if sys.platform == "win32":
    import msvcrt

    FAR = 2**30  # a locked byte cannot be read by others

    def _take(file: BinaryIO) -> None:
        file.seek(FAR)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _take(file: BinaryIO) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock(file: BinaryIO, path: Path) -> None:
    """Lock an open file until it is closed, or refuse if another has locked it."""
    try:
        _take(file)
    except OSError as error:
        if error.errno in HELD:
            raise _in_use(path) from None
        # Some network drives have no locks; checksums still tell which lines two writers have mixed up.
        warnings.warn(
            f"{path} cannot be locked ({reason(error)}): make sure that no second process writes to it",
            PolycertWarning,
            stacklevel=2,
        )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """An empty file that is there, and locked, as long as the block runs."""
    with path.open("ab") as file:
        lock(file, path)
        if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise _in_use(path)  # its owner was just removing it
        try:
            yield
        finally:
            if sys.platform != "win32":  # which removes no open file
                path.unlink(missing_ok=True)


def _in_use(path: Path) -> PolycertError:
    return PolycertError(f"another process is writing to {path}: wait until it has ended, or write to another file")
