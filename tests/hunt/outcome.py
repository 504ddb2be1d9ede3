"""What came of one case."""

from __future__ import annotations

import random
import re
import traceback
from collections import Counter
from typing import Any, NamedTuple

from polycert.errors import PolycertError
from tests.hunt.kind import Kind, noted

FINE, REFUSED, VIOLATION, CRASH, HANG = "fine", "refused", "violation", "crash", "hang"
FINDS = (VIOLATION, CRASH, HANG)


class Outcome(NamedTuple):
    """How a case ended, in a sentence if it is a find, and what polycert claimed on the way."""

    how: str
    sentence: str
    notes: Counter[str]

    @property
    def found(self) -> bool:
        """Whether something is wrong."""
        return self.how in FINDS

    @property
    def signature(self) -> str:
        """The same for finds that are probably one bug: how, and the sentence without its numbers."""
        return f"{self.how}: {re.sub(r'-?[0-9][-+.0-9a-z]*|nan|-?inf', '#', self.sentence)}"


def case_of(kind: Kind, seed: int, number: int) -> Any:
    """A kind's case by its number: the same for the same seed, whatever ran before it."""
    return kind.generate(random.Random(f"{seed} {kind.name} {number}"))


def try_case(kind: Kind, case: Any) -> Outcome:
    """Check a case in this process."""
    with noted() as notes:
        try:
            sentence = kind.check(case)
        except PolycertError:
            return Outcome(REFUSED, "", notes)
        except Exception as error:  # of any type: that is what is hunted
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__} in {where.filename.rpartition('/')[2]}:{where.lineno}: {error}"
            return Outcome(CRASH, " ".join(said.split())[:600], notes)
    return Outcome(FINE if sentence is None else VIOLATION, sentence or "", notes)
