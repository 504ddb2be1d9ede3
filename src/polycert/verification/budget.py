"""What a search may take in time and memory, and what it has spent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from polycert.bounding.backward import Pass
from polycert.sets.interval import Interval

PreActivation = Callable[[Pass, int], Interval]


@dataclass(eq=False)
class Budget:
    """A limit of time and memory, and counts of what was spent."""

    seconds: float
    memory: int = 2**30  # bytes that open nodes may take
    evaluations: int = 0  # bounds evaluated, one for each node and step
    nodes: int = 0  # nodes of the search tree without the roots
    started: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Return the seconds left, below 0 if the time is up."""
        return self.seconds - self.spent

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.left <= 0


class OutOfTime(Exception):
    """The deadline passed while bounds were computed."""


def in_time(bounds: PreActivation, deadline: float) -> PreActivation:
    """Return the same pre-activation bounds, which raise `OutOfTime` after a deadline of `time.monotonic()`."""

    def bounded(run: Pass, index: int) -> Interval:
        if time.monotonic() > deadline:
            raise OutOfTime
        return bounds(run, index)

    return bounds if math.isinf(deadline) else bounded
