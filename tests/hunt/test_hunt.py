"""Two minutes of the hunt with a fixed seed, and every find of the past."""

from __future__ import annotations

import pytest

from polycert.rules import RULES
from polycert.rules.registry import rules
from tests.hunt.keeping import Kept, kept
from tests.hunt.kinds import KINDS, Entry, by_name
from tests.hunt.nets import NETS
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
    """A new op needs a line in `oracle.py`; its networks are the registry's examples."""
    assert {target for target in RULES if op_of(target) not in OPS} == set()
    assert missing() == set()
    assert {example.name for declared in rules() for example in declared.examples} <= NETS.keys()


@pytest.mark.parametrize("find", list(kept()), ids=lambda find: find.name)
def test_finds_stay_mended(find: Kept) -> None:
    outcome = try_case(by_name(find.kind), find.case)
    assert not outcome.found, f"{outcome.how}: {outcome.sentence}"
