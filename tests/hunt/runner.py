"""Shares time, or a number of cases, over kinds; shrinks and keeps what it finds."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hunt.keeping import FOLDER, Kept
from tests.hunt.kind import CLAIM
from tests.hunt.kinds import Entry
from tests.hunt.outcome import CRASH, HANG, REFUSED, VIOLATION, Outcome, case_of
from tests.hunt.worker import Worker

log = logging.getLogger("hunt")
SHRINKING = 20.0  # seconds for one find
ALIKE = 1  # finds with one signature that are shrunk and kept; the rest are counted


@dataclass
class Tally:
    """What happened to the cases of one kind."""

    kind: str
    cases: int = 0
    refused: int = 0
    informative: int = 0
    violations: int = 0
    crashes: int = 0
    hangs: int = 0
    seconds: float = 0.0
    notes: dict[str, int] = field(default_factory=dict)
    finds: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not (self.violations or self.crashes or self.hangs)

    def count(self, outcome: Outcome) -> None:
        """Add one case."""
        self.cases += 1
        self.refused += outcome.how == REFUSED
        self.informative += outcome.notes[CLAIM] > 0
        self.violations += outcome.how == VIOLATION
        self.crashes += outcome.how == CRASH
        self.hangs += outcome.how == HANG
        for what in outcome.notes.keys() - {CLAIM}:
            self.notes[what] = self.notes.get(what, 0) + outcome.notes[what]


class Hunt:
    """Cases of some kinds, tried in workers until `end` says so."""

    def __init__(
        self, entries: Sequence[Entry], seed: int, *, keep: Path | None = FOLDER, shrinking: float = SHRINKING
    ) -> None:
        self.entries, self.seed, self.keep, self.shrinking = entries, seed, keep, shrinking
        self.tallies = {entry.kind.name: Tally(entry.kind.name) for entry in entries}
        self._started = dict.fromkeys(self.tallies, 0)
        self._alike: Counter[str] = Counter()
        self._lock = threading.Lock()

    def for_seconds(self, seconds: float, workers: int = 1) -> list[Tally]:
        """Share so much time over the kinds by their weights."""
        end = time.monotonic() + seconds
        self._run(lambda: None if time.monotonic() > end else self._poorest(), workers)
        return list(self.tallies.values())

    def for_counts(self, counts: dict[str, int]) -> list[Tally]:
        """Try so many cases of each kind."""
        self._run(lambda: next((e for e in self.entries if self._started[e.kind.name] < counts[e.kind.name]), None), 1)
        return list(self.tallies.values())

    def _poorest(self) -> Entry:
        """The kind that has had least of its share."""
        return min(self.entries, key=lambda entry: self.tallies[entry.kind.name].seconds / entry.weight)

    def _run(self, choose: Callable[[], Entry | None], workers: int) -> None:
        threads = [threading.Thread(target=self._loop, args=(choose,), daemon=True) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _loop(self, choose: Callable[[], Entry | None]) -> None:
        worker = Worker()
        try:
            while True:
                with self._lock:
                    entry = choose()
                    if entry is None:
                        return
                    number = self._started[entry.kind.name]
                    self._started[entry.kind.name] += 1
                self._try(worker, entry, number)
        finally:
            worker.close()

    def _try(self, worker: Worker, entry: Entry, number: int) -> None:
        kind, begin = entry.kind, time.monotonic()
        case = case_of(kind, self.seed, number)
        outcome = worker.run(kind, case)
        tally = self.tallies[kind.name]
        with self._lock:
            tally.count(outcome)
            self._alike[outcome.signature] += outcome.found
            rare = self._alike[outcome.signature] <= ALIKE
        if outcome.found and rare:
            case, outcome = shrunk(worker, entry, case, outcome, self.shrinking)
            origin = f"seed {self.seed}, case {number}"
            find = Kept(kind.name, case, outcome.how, outcome.sentence, origin)
            log.warning("%s, %s of %s (%s): %s", find.name, outcome.how, kind.name, origin, outcome.sentence)
            tally.finds.append(f"{find.name}: {outcome.how}: {outcome.sentence}")
            if self.keep is not None:
                find.save(self.keep)
        with self._lock:
            tally.seconds += time.monotonic() - begin


def shrunk(worker: Worker, entry: Entry, case: Any, outcome: Outcome, seconds: float) -> tuple[Any, Outcome]:
    """The smallest case that a greedy search finds in time for which the same kind of thing is wrong."""
    end = time.monotonic() + seconds
    while True:
        for smaller in entry.kind.shrink(case):
            if time.monotonic() > end:
                return case, outcome
            found = worker.run(entry.kind, smaller)
            if found.how == outcome.how and _place(found) == _place(outcome):
                case, outcome = smaller, found
                break
        else:
            return case, outcome


def _place(outcome: Outcome) -> str:
    """Where a crash happened: another one is another bug."""
    return outcome.sentence.partition(":")[0] if outcome.how == CRASH else ""


def table(tallies: Sequence[Tally]) -> str:
    """The columns of `Tally` as text, one line a kind."""
    heads = ("kind", "cases", "refused", "informative", "violations", "crashes", "hangs", "seconds", "noted")
    rows: list[tuple[str, ...]] = [heads]
    for t in tallies:
        numbers = (t.cases, t.refused, t.informative, t.violations, t.crashes, t.hangs, round(t.seconds))
        rows.append((t.kind, *map(str, numbers), ", ".join(f"{k} {v}" for k, v in sorted(t.notes.items()))))
    widths = [max(len(row[k]) for row in rows) for k in range(len(heads))]
    lines = [
        "  ".join(
            cell.ljust(w) if k in (0, 8) else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
