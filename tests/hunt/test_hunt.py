"""Two minutes of the hunt with a fixed seed, and every find of the past."""

from __future__ import annotations

import pytest

from hunt.keeping import Kept, kept
from hunt.kinds import KINDS, Entry, by_name
from hunt.outcome import try_case
from hunt.runner import Hunt, table

SEED = 23


@pytest.mark.parametrize("entry", KINDS, ids=lambda entry: entry.kind.name)
def test_a_short_hunt_finds_nothing(entry: Entry) -> None:
    (tally,) = Hunt([entry], SEED, keep=None).for_counts({entry.kind.name: entry.count})
    print(table([tally]))
    assert tally.clean, "\n".join(tally.finds)
    assert tally.cases == entry.count
    assert tally.informative > 0


@pytest.mark.parametrize("find", list(kept()), ids=lambda find: find.name)
def test_finds_stay_mended(find: Kept, request: pytest.FixtureRequest) -> None:
    if find.open is not None:
        request.applymarker(pytest.mark.xfail(reason=find.open, strict=True))
    outcome = try_case(by_name(find.kind), find.case)
    assert not outcome.found, f"{outcome.how}: {outcome.sentence}"
