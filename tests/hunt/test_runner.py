"""The runner notices all that can go wrong, goes on, shrinks and keeps."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

from polycert.errors import PolycertError
from tests.hunt.keeping import kept
from tests.hunt.kind import claimed
from tests.hunt.kinds import Entry
from tests.hunt.runner import Hunt


class Numbers:
    """Numbers, most of which do something bad."""

    name = "numbers"
    seconds = 1.0

    def generate(self, rng: random.Random) -> int:
        return rng.choice((8, 11, 32, 43, 25))

    def check(self, case: int) -> str | None:
        if case % 10 == 1:
            raise PolycertError("no ones")
        if case % 10 == 2:
            raise ZeroDivisionError("twos")
        if case % 10 == 3:
            os.abort()
        if case > 20:
            return f"{case} was claimed to be at most 20"
        claimed()
        return None

    def shrink(self, case: int) -> Iterator[int]:
        yield from (smaller for smaller in (case - 10, case - 1) if smaller >= 0)


class Busy(Numbers):
    """One that never ends, and computes."""

    name = "busy"

    def check(self, case: int) -> str | None:
        while True:
            pass


def test_everything_bad_is_noticed_counted_shrunk_and_kept(tmp_path: Path) -> None:
    hunt = Hunt([Entry(Numbers(), 1.0, 0)], 5, keep=tmp_path, shrinking=2.0)
    (tally,) = hunt.for_counts({"numbers": 15})
    assert tally.cases == 15
    assert tally.refused
    assert tally.informative
    assert tally.violations
    assert tally.crashes
    finds = list(kept(tmp_path))
    assert {find.how for find in finds} <= {"violation", "crash", "hang"}
    assert {find.case for find in finds if find.how == "violation"} == {24}
    assert any(find.case % 10 == 2 and "ZeroDivisionError" in find.sentence for find in finds)
    assert any(find.case % 10 == 3 and "died" in find.sentence for find in finds)


def test_a_hang_is_ended() -> None:
    (tally,) = Hunt([Entry(Busy(), 1.0, 0)], 5, keep=None, shrinking=0.0).for_counts({"busy": 1})
    assert tally.hangs == 1


def test_time_is_shared_by_weight() -> None:
    entries = [Entry(Busy(), 1.0, 0), Entry(Numbers(), 3.0, 0)]
    hunt = Hunt(entries, 5, keep=None)
    hunt.tallies["busy"].seconds, hunt.tallies["numbers"].seconds = 2.0, 5.0
    assert hunt._poorest() is entries[1]
    hunt.tallies["numbers"].seconds = 7.0
    assert hunt._poorest() is entries[0]
