"""Lines on disk, each with a checksum; what was written is there after the process was killed at any moment."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from polycert import __version__
from polycert.errors import PolycertError
from polycert.graph.fingerprint import fingerprint
from polycert.records.files import check_place
from polycert.runtime.execution import lock

FORMAT = 2
SYNC_SECONDS = 1.0  # lines reach the system at once, the disk itself at least so often
LONGEST_HEADER = 4096
FIRST = b'{"question": '
SEAL = re.compile(rb'(.*), "seal": "([0-9a-f]{64})"}\n', re.DOTALL)


class NumberedLine(NamedTuple):
    """A line by its number, counted from 1; without content if it is not as it was written."""

    number: int
    content: bytes | None  # a JSON object


class ChecksummedLines:
    """A locked file of JSON objects, one a line, under a header that says what they are about.

    A line's seal is a checksum of its text and of what the file is about: it does not fit a line that was changed, or
    comes from another file. It guards against accidents, not against those who compute a seal.

    Attributes:
        lines: those that were there; a last line that was not finished is removed.
    """

    def __init__(self, path: Path, about: str, longest: int) -> None:
        """`longest` is the number of bytes that a line's content may have."""
        self.path, self.about = path, fingerprint(FORMAT, about)
        self.longest = longest + len(self._sealed({"": ""}))
        self.header = _text({"question": self.about, "format": FORMAT, "polycert": __version__}) + b"\n"
        self.file = check_place(path).open("a+b")
        try:
            lock(self.file, path)
            self.file.seek(0)
            begun = self._begun()
            self.lines = tuple(self._read())
            if not begun:
                self._write(self.header)
        except BaseException:
            self.file.close()
            raise
        self.synced = time.monotonic()

    def __enter__(self) -> ChecksummedLines:
        return self

    def __exit__(self, *_: object) -> None:
        self._sync()
        self.file.close()

    def append(self, content: dict[str, Any]) -> None:
        """One more line."""
        self._write(self._sealed(content))
        if time.monotonic() - self.synced > SYNC_SECONDS:
            self._sync()

    def _begun(self) -> bool:
        """Whether a whole header is there; refuses what has another one."""
        found = self.file.readline(LONGEST_HEADER)
        if found == self.header:
            return True
        if self.header.startswith(found):  # nothing, or killed at its first line
            self.file.truncate(0)
            return False
        remedy = "remove it, or write to another file"
        if not found.startswith(FIRST) or not found.endswith(b"}\n"):
            raise PolycertError(f"{self.path} is no journal of verify: {remedy}")
        raise PolycertError(
            f"{self.path} holds results about another network, norm or box, or of another version of polycert: {remedy}"
        )

    def _read(self) -> Iterator[NumberedLine]:
        """All lines after the header; the file is cut after the last whole one."""
        number, end = 1, self.file.tell()
        while (text := self.file.readline(self.longest)).endswith(b"\n") or self._skip(text):
            number, end = number + 1, self.file.tell()
            yield NumberedLine(number, self._unsealed(text))
        self.file.truncate(end)

    def _skip(self, text: bytes) -> bool:
        """Read on to the end of a line that is too long; whether it has one."""
        while text and not text.endswith(b"\n"):
            text = self.file.readline(self.longest)
        return bool(text)

    def _sealed(self, content: dict[str, Any]) -> bytes:
        text = _text(content)
        return text[:-1] + b', "seal": "' + fingerprint(self.about, text).encode() + b'"}\n'

    def _unsealed(self, text: bytes) -> bytes | None:
        found = SEAL.fullmatch(text)
        if found is None:
            return None
        content = found[1] + b"}"
        return content if fingerprint(self.about, content).encode() == found[2] else None

    def _write(self, line: bytes) -> None:
        self.file.write(line)
        self.file.flush()

    def _sync(self) -> None:
        os.fsync(self.file.fileno())
        self.synced = time.monotonic()


def _text(content: dict[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False).encode()
