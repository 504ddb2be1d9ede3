"""All kinds of cases: a new one needs one line here."""

from __future__ import annotations

from typing import NamedTuple

from hunt.decisions import Decisions
from hunt.geometry import Geometry
from hunt.inputs import Inputs
from hunt.kind import Kind
from hunt.nets import LINEAR, THIN
from hunt.networks import Networks
from hunt.relaxations import Relaxations


class Entry(NamedTuple):
    """A kind, its share of a hunt's time, and how many of its cases the tests try.

    `open`: why it is known to find something that is not mended yet; the tests then expect it to, or not to.
    """

    kind: Kind
    weight: float
    cases: int
    open: str | None = None


KINDS: tuple[Entry, ...] = (
    Entry(Networks(), 4.0, 25),
    Entry(Networks("linear", tuple(case.name for case in LINEAR)), 1.0, 50),
    Entry(Networks("underflow", THIN, opposite=0.9), 1.0, 60, open="coefficients that underflow"),
    Entry(Decisions(), 2.0, 50, open="counterexamples are replayed in float64, not exactly"),
    Entry(Geometry(), 1.0, 600, open="a distance of one subnormal number"),
    Entry(Inputs(), 0.5, 80, open="arguments of wrong types"),
    Entry(Relaxations(), 1.0, 200, open="a leak below the range of float32"),
)


def by_name(name: str) -> Kind:
    """The kind of a name."""
    for entry in KINDS:
        if entry.kind.name == name:
            return entry.kind
    raise KeyError(f"no kind {name!r}: there are {', '.join(entry.kind.name for entry in KINDS)}")
