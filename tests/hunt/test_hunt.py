"""Two minutes of the hunt with a fixed seed, and every find of the past."""

from __future__ import annotations

import pytest

from polycert.rules import RULES
from tests.hunt.keeping import Kept, kept
from tests.hunt.kinds import KINDS, Entry, by_name
from tests.hunt.nets import traced
from tests.hunt.networks import ALL
from tests.hunt.oracle import OPS, op_of
from tests.hunt.outcome import try_case
from tests.hunt.relaxations import missing
from tests.hunt.runner import Hunt, table

SEED = 23


@pytest.mark.parametrize("entry", KINDS, ids=lambda entry: entry.kind.name)
def test_a_short_hunt_finds_nothing(entry: Entry) -> None:
    (tally,) = Hunt([entry], SEED, keep=None, shrinking=0.0).for_counts({entry.kind.name: entry.cases})
    print(table([tally]))
    assert tally.clean, "\n".join(tally.finds)
    assert tally.cases == entry.cases
    assert tally.informative > 0


def test_every_rule_has_an_oracle() -> None:
    """A new op needs a line in `oracle.py`, a new activation one in `relaxations.py`."""
    assert {target for target in RULES if op_of(target) not in OPS} == set()
    assert missing() == set()


@pytest.mark.slow
def test_every_rule_is_in_a_network() -> None:
    """A new op needs a case in `cases.py`: then it is hunted."""
    seen = {target for name in ALL for target in traced(name, "float64").oracle.targets}
    built = {RULES[target] for target in seen if target in RULES}
    assert {target for target, builder in RULES.items() if builder not in built} == set()


@pytest.mark.parametrize("find", list(kept()), ids=lambda find: find.name)
def test_finds_stay_mended(find: Kept) -> None:
    outcome = try_case(by_name(find.kind), find.case)
    assert not outcome.found, f"{outcome.how}: {outcome.sentence}"
