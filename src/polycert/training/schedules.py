"""Schedules: numbers that change over training, as functions of the time in epochs."""

from __future__ import annotations

import math
from abc import abstractmethod
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

KINDS = ("constant", "doubling", "linear", "smooth", "cosine", "step", "points")


def number(value: Any) -> Any:
    """Return a fraction such as "2/255" as a number, and anything else as it is."""
    if isinstance(value, str) and "/" in value:
        try:
            return float(Fraction(value))
        except (ValueError, ZeroDivisionError, OverflowError):
            return value
    return value


Number = Annotated[float, BeforeValidator(number), Field(allow_inf_nan=False)]
Limit = Annotated[float, BeforeValidator(number), Field(gt=0)]  # infinity means no limit
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Schedule(BaseModel):
    """A number that changes over time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def at(self, time: float) -> float:
        """Return the value at a time in epochs."""

    def value_range(self, epochs: float) -> tuple[float, float]:
        """Return the smallest and the largest value in a run; its very end is left out, since no step reaches it."""
        values = [self.at(time) for time in (0.0, *self.turns(epochs), epochs * (1 - 1e-9))]
        return min(values), max(values)

    def turns(self, epochs: float) -> tuple[float, ...]:
        """Return the times at which the value may turn from growing to falling or back; none if it is monotone."""
        return ()

    def stretched(self, factor: float) -> Schedule:
        """Return the schedule for a run that is `factor` times as long."""
        return self


class Constant(Schedule):
    """One value; in a recipe simply a number."""

    kind: Literal["constant"] = "constant"
    value: Number

    def at(self, time: float) -> float:
        """Return the value, at all times."""
        return self.value


class Doubling(Schedule):
    """The paper's growth of eps: from `first`, multiplied by `factor` every `every` epochs, up to `most`."""

    kind: Literal["doubling"]
    first: Number
    every: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    factor: Factor = 2.0
    most: Limit = math.inf

    def at(self, time: float) -> float:
        """Return the value, which is constant between doublings."""
        try:
            grown = self.factor ** math.floor(time / self.every)
        except OverflowError:
            grown = math.inf
        return min(self.most, self.first * grown)

    def stretched(self, factor: float) -> Doubling:
        """Return a schedule with as many doublings."""
        return self.model_copy(update={"every": self.every * factor})


class Ramp(Schedule):
    """A number that goes from `first` at epoch `begin` to `last` at epoch `end`."""

    first: Number
    last: Number
    begin: Time = 0.0
    end: Time

    @model_validator(mode="after")
    def _ordered(self) -> Ramp:
        """Check that the ramp begins before it ends."""
        if not self.begin < self.end:
            raise ValueError(f"begin must be before end, got {self.begin:g} and {self.end:g}")
        return self

    @abstractmethod
    def shape(self, share: float) -> float:
        """Return how much of the way is done after a share of the time, both from 0 to 1."""

    def at(self, time: float) -> float:
        """Return the value, which is constant before and after the ramp."""
        share = min(1.0, max(0.0, (time - self.begin) / (self.end - self.begin)))
        done = self.shape(share)
        return self.first * (1 - done) + self.last * done

    def stretched(self, factor: float) -> Ramp:
        """Return a ramp whose begin and end are scaled."""
        return self.model_copy(update={"begin": self.begin * factor, "end": self.end * factor})


class LinearRamp(Ramp):
    """A straight ramp, up or down."""

    kind: Literal["linear"]

    def shape(self, share: float) -> float:
        """Return the share itself."""
        return share


class Smooth(Ramp):
    """A ramp that starts and ends flat, steepest in the middle."""

    kind: Literal["smooth"]

    def shape(self, share: float) -> float:
        """Return `3 s^2 - 2 s^3` for a share s."""
        return share * share * (3 - 2 * share)


class Cosine(Ramp):
    """Half a period of the cosine: the usual decay of a learning rate."""

    kind: Literal["cosine"]

    def shape(self, share: float) -> float:
        """Return `(1 - cos(pi s)) / 2` for a share s."""
        return (1 - math.cos(math.pi * share)) / 2


class StepDecay(Schedule):
    """A number that starts at `first` and is multiplied by `factor` at each of the `epochs`."""

    kind: Literal["step"]
    first: Number
    epochs: tuple[Time, ...]
    factor: Factor = 0.1

    def at(self, time: float) -> float:
        """Return the value, which is constant between steps."""
        return self.first * self.factor ** sum(time >= epoch for epoch in self.epochs)

    def stretched(self, factor: float) -> StepDecay:
        """Return a schedule whose steps are scaled."""
        return self.model_copy(update={"epochs": tuple(epoch * factor for epoch in self.epochs)})


class Points(Schedule):
    """Straight lines between the `values` at their `epochs`; constant before the first and after the last."""

    kind: Literal["points"]
    epochs: Annotated[tuple[Time, ...], Field(min_length=1)]
    values: tuple[Number, ...]

    @model_validator(mode="after")
    def _paired(self) -> Points:
        """Check that there is a value for each epoch, and that the epochs grow."""
        if len(self.values) != len(self.epochs):
            raise ValueError(f"there must be one value for each epoch, got {len(self.values)} and {len(self.epochs)}")
        if any(later <= earlier for earlier, later in pairwise(self.epochs)):
            raise ValueError(f"epochs must grow, got {', '.join(format(epoch, 'g') for epoch in self.epochs)}")
        return self

    def at(self, time: float) -> float:
        """Return the value on the line between the two points around the time."""
        return float(np.interp(time, self.epochs, self.values))

    def turns(self, epochs: float) -> tuple[float, ...]:
        """Return the epochs of the points."""
        return tuple(epoch for epoch in self.epochs if epoch < epochs)

    def stretched(self, factor: float) -> Points:
        """Return a schedule whose epochs are scaled."""
        return self.model_copy(update={"epochs": tuple(epoch * factor for epoch in self.epochs)})


def _from_number(value: Any) -> Any:
    """Return a plain number as a constant schedule, and anything else that may be a schedule as it is."""
    value = number(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"kind": "constant", "value": value}
    if isinstance(value, Schedule):
        return value
    if not isinstance(value, dict) or value.get("kind") not in KINDS:
        raise ValueError(f"must be a number, or a table whose kind is one of {', '.join(KINDS)}, got {value!r}")
    return value


def _to_plain(schedule: Schedule) -> Any:
    """Return a schedule as recipes write it: a number, or a table."""
    if isinstance(schedule, Constant):
        return schedule.value
    return {key: value for key, value in schedule.model_dump(mode="json").items() if value is not None}


AnySchedule = Annotated[
    Annotated[Constant | Doubling | LinearRamp | Smooth | Cosine | StepDecay | Points, Field(discriminator="kind")],
    BeforeValidator(_from_number),
    PlainSerializer(_to_plain),
]
