"""All kinds of cases: a new one needs one line here."""

from __future__ import annotations

from typing import NamedTuple

from tests.hunt import fingerprints, journals, onnx_mutants, properties, readers
from tests.hunt.assembled import Mixtures
from tests.hunt.decisions import Decisions
from tests.hunt.geometry import Geometry
from tests.hunt.inputs import Inputs
from tests.hunt.kind import Kind
from tests.hunt.nets import LINEAR, THIN
from tests.hunt.networks import Networks
from tests.hunt.relaxations import Relaxations


class Entry(NamedTuple):
    """A kind, its share of a hunt's time, and how many of its cases the tests try."""

    kind: Kind
    weight: float
    cases: int


KINDS: tuple[Entry, ...] = (
    Entry(Networks(), 4.0, 25),
    Entry(Networks("linear", tuple(case.name for case in LINEAR)), 1.0, 50),
    Entry(Networks("underflow", THIN, opposite=0.9), 1.0, 60),
    Entry(Decisions(), 2.0, 50),
    Entry(Mixtures(), 2.0, 40),
    Entry(Geometry(), 1.0, 600),
    Entry(Inputs(), 0.5, 80),
    Entry(Relaxations(), 1.0, 200),
    Entry(onnx_mutants.KINDS[0], 3.0, 100),
    Entry(readers.KINDS[0], 1.0, 400),
    Entry(properties.KINDS[0], 0.5, 150),
    Entry(properties.KINDS[1], 0.5, 100),
    Entry(journals.KINDS[0], 1.5, 12),
    Entry(fingerprints.KINDS[0], 0.5, 25),
)


def by_name(name: str) -> Kind:
    """The kind of a name."""
    for entry in KINDS:
        if entry.kind.name == name:
            return entry.kind
    raise KeyError(f"no kind {name!r}: there are {', '.join(entry.kind.name for entry in KINDS)}")
