"""Damaged files of every kind: each is read, or refused with one sentence, in little memory and time."""

from __future__ import annotations

import base64
import random
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from polycert.errors import LONGEST, PolycertError
from tests.helpers import mutants
from tests.helpers.mutants import Mutant
from tests.hunt.kind import claimed

MEMORY = 2**30  # bytes that reading one file may take beyond what the process has


class Readers:
    """The mutants of `tests/helpers/mutants.py`, one file a case."""

    name = "readers"
    seconds = 5.0

    def generate(self, rng: random.Random) -> Any:
        """A kind of file, and its damaged content in base64."""
        kind, content = rng.choice([item for item in mutants.originals().items() if item[0] in mutants.readable()])
        return _case(kind.file, mutants.damaged(content, rng))

    def check(self, case: Any) -> str | None:
        """Errors of other kinds come through, as crashes."""
        kind = next(kind for kind in mutants.KINDS if kind.file == case["file"])
        _read_once(kind)
        with tempfile.TemporaryDirectory() as name, limited_memory(MEMORY):
            folder = Path(name)
            if kind.file == "state.json":
                kind.write(folder / kind.file)  # what stands beside it
            why = mutants.refusal(Mutant(kind, base64.b64decode(case["content"])), folder)
        if why is None:
            claimed()
            return None
        if len(why) > LONGEST + 1 or "\n" in why:
            return f"a damaged {kind.file} is refused with more than a sentence: {why[:300]!r}"
        raise PolycertError(why)

    def shrink(self, case: Any) -> Iterator[Any]:
        """Without a piece, large ones first."""
        content = base64.b64decode(case["content"])
        size = len(content)
        while size := size // 2:
            for begin in range(0, len(content), size):
                yield _case(case["file"], content[:begin] + content[begin + size :])


@cache
def _read_once(kind: mutants.Kind) -> None:
    """Read the undamaged file: what a reader imports and what its threads take is no file's fault."""
    with tempfile.TemporaryDirectory() as name:
        kind.write(Path(name) / kind.file)
        kind.read(Path(name) / kind.file)


def _case(file: str, content: bytes) -> Any:
    return {"file": file, "content": base64.b64encode(content).decode()}


@contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """What the process has now and so many bytes more, as long as the block runs."""
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


KINDS = (Readers(),)
