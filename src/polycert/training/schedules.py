"""Numbers that change over training: a function of the time in epochs, a fraction inside an epoch."""

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
    """A fraction such as "2/255" as a number; anything else as it is."""
    if isinstance(value, str) and "/" in value:
        try:
            return float(Fraction(value))
        except (ValueError, ZeroDivisionError, OverflowError):
            return value
    return value


Number = Annotated[float, BeforeValidator(number), Field(allow_inf_nan=False)]
Limit = Annotated[float, BeforeValidator(number), Field(gt=0)]  # perhaps none, which is infinity
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Schedule(BaseModel):
    """A number over time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def at(self, time: float) -> float:
        """The value at a time in epochs."""

    def extremes(self, epochs: float) -> tuple[float, float]:
        """The smallest and largest value in a run of so many epochs, whose very end no step sees."""
        values = [self.at(time) for time in (0.0, *self.turns(epochs), epochs * (1 - 1e-9))]
        return min(values), max(values)

    def turns(self, epochs: float) -> tuple[float, ...]:
        """Where in a run of so many epochs it may go from growing to falling or back; nowhere if it is monotone."""
        return ()

    def stretched(self, factor: float) -> Schedule:
        """The same in a run that is so many times as long."""
        return self


class Constant(Schedule):
    """One value; in a recipe simply a number."""

    kind: Literal["constant"] = "constant"
    value: Number

    def at(self, time: float) -> float:
        """Always the value."""
        return self.value


class Doubling(Schedule):
    """`first`, times `factor` every `every` epochs, up to `most`: the paper's growth of eps."""

    kind: Literal["doubling"]
    first: Number
    every: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    factor: Factor = 2.0
    most: Limit = math.inf

    def at(self, time: float) -> float:
        """Constant between doublings."""
        try:
            grown = self.factor ** math.floor(time / self.every)
        except OverflowError:
            grown = math.inf
        return min(self.most, self.first * grown)

    def stretched(self, factor: float) -> Doubling:
        """As many doublings."""
        return self.model_copy(update={"every": self.every * factor})


class Ramp(Schedule):
    """From `first` at epoch `begin` to `last` at epoch `end`."""

    first: Number
    last: Number
    begin: Time = 0.0
    end: Time

    @model_validator(mode="after")
    def _ordered(self) -> Ramp:
        if not self.begin < self.end:
            raise ValueError(f"begin must be before end, got {self.begin:g} and {self.end:g}")
        return self

    @abstractmethod
    def shape(self, share: float) -> float:
        """How much of the way is done, 0 to 1, after a share of the time."""

    def at(self, time: float) -> float:
        """Constant before and after."""
        share = min(1.0, max(0.0, (time - self.begin) / (self.end - self.begin)))
        done = self.shape(share)
        return self.first * (1 - done) + self.last * done

    def stretched(self, factor: float) -> Ramp:
        """Begin and end move along."""
        return self.model_copy(update={"begin": self.begin * factor, "end": self.end * factor})


class LinearRamp(Ramp):
    """A straight ramp, up or down."""

    kind: Literal["linear"]

    def shape(self, share: float) -> float:
        """The share itself."""
        return share


class Smooth(Ramp):
    """A ramp that starts and ends flat, steepest in the middle."""

    kind: Literal["smooth"]

    def shape(self, share: float) -> float:
        """`3 s^2 - 2 s^3`."""
        return share * share * (3 - 2 * share)


class Cosine(Ramp):
    """Half a period of the cosine: the usual decay of a learning rate."""

    kind: Literal["cosine"]

    def shape(self, share: float) -> float:
        """`(1 - cos(pi s)) / 2`."""
        return (1 - math.cos(math.pi * share)) / 2


class StepDecay(Schedule):
    """`first`, times `factor` from each of the `epochs` on."""

    kind: Literal["step"]
    first: Number
    epochs: tuple[Time, ...]
    factor: Factor = 0.1

    def at(self, time: float) -> float:
        """Constant between steps."""
        return self.first * self.factor ** sum(time >= epoch for epoch in self.epochs)

    def stretched(self, factor: float) -> StepDecay:
        """The steps move along."""
        return self.model_copy(update={"epochs": tuple(epoch * factor for epoch in self.epochs)})


class Points(Schedule):
    """Straight lines from each of the `values` at its epoch to the next; constant before and after."""

    kind: Literal["points"]
    epochs: Annotated[tuple[Time, ...], Field(min_length=1)]
    values: tuple[Number, ...]

    @model_validator(mode="after")
    def _paired(self) -> Points:
        if len(self.values) != len(self.epochs):
            raise ValueError(f"there must be one value for each epoch, got {len(self.values)} and {len(self.epochs)}")
        if any(later <= earlier for earlier, later in pairwise(self.epochs)):
            raise ValueError(f"epochs must grow, got {', '.join(format(epoch, 'g') for epoch in self.epochs)}")
        return self

    def at(self, time: float) -> float:
        """Between the two points around it."""
        return float(np.interp(time, self.epochs, self.values))

    def turns(self, epochs: float) -> tuple[float, ...]:
        """At its points."""
        return tuple(epoch for epoch in self.epochs if epoch < epochs)

    def stretched(self, factor: float) -> Points:
        """The points move along."""
        return self.model_copy(update={"epochs": tuple(epoch * factor for epoch in self.epochs)})


def _from_number(value: Any) -> Any:
    """A plain number is a constant."""
    value = number(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"kind": "constant", "value": value}
    if isinstance(value, Schedule):
        return value
    if not isinstance(value, dict) or value.get("kind") not in KINDS:
        raise ValueError(f"must be a number, or a table whose kind is one of {', '.join(KINDS)}, got {value!r}")
    return value


def _to_plain(schedule: Schedule) -> Any:
    """As written in a recipe."""
    if isinstance(schedule, Constant):
        return schedule.value
    return {key: value for key, value in schedule.model_dump(mode="json").items() if value is not None}


AnySchedule = Annotated[
    Annotated[Constant | Doubling | LinearRamp | Smooth | Cosine | StepDecay | Points, Field(discriminator="kind")],
    BeforeValidator(_from_number),
    PlainSerializer(_to_plain),
]
