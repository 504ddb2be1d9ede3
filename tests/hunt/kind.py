"""What a kind of case must know, and how it tells the runner what polycert claimed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

CLAIM = "claim"


class Kind(Protocol):
    """A way to attack polycert. Everything random comes from `rng`, so that seed and number give the case again."""

    name: str  # one word or two, e.g. "networks"
    seconds: float  # what one case may take before it counts as a hang

    def generate(self, rng: random.Random) -> Any:
        """A case: plain and JSON-able (dicts, lists, strings, integers, floats as `float.hex`)."""

    def check(self, case: Any) -> str | None:
        """None if nothing is wrong, else one sentence: what was claimed, and what is true.

        A `PolycertError` counts as refused; any other exception is a crash.
        """

    def shrink(self, case: Any) -> Iterator[Any]:
        """Smaller cases to try, in order."""


_notes: ContextVar[Counter[str] | None] = ContextVar("notes", default=None)


def claimed() -> None:
    """To be called by `check` where polycert really claimed something (proved, robust, a radius above 0)."""
    note(CLAIM)


def note(what: str) -> None:
    """To be called by `check`: counts something else that the table should show, such as `unknown`."""
    notes = _notes.get()
    if notes is not None:
        notes[what] += 1


@contextmanager
def noted() -> Iterator[Counter[str]]:
    """What is noted meanwhile."""
    notes: Counter[str] = Counter()
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)
