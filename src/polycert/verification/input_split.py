"""Branch and bound on the input: for networks with few inputs, boxes are halved until every one is proved.

The condition "some row is positive" is checked for a batch of boxes at a time. Where no row's lower bound is positive,
the rows' linear bounds first cut the box down to the part in which all of them allow failure. Then the box is halved
along the input that moves its best row most.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.bounding.backward import LOWER
from polycert.bounding.methods import get_method, passes
from polycert.forms import Dense
from polycert.graph import Graph
from polycert.sets.ball import Region
from polycert.sets.interval import Rounding, at_least
from polycert.verification.budget import in_time

BATCH = 512  # boxes that are bounded together
# What the arithmetic of cutting a box may lose, relative to the sizes involved: far above any rounding in float64.
SAFE = 1e-9


class Boxes(NamedTuple):
    """Several boxes of inputs, each side `[n, *input_shape]`."""

    lower: Tensor
    upper: Tensor

    def __len__(self) -> int:
        return len(self.lower)

    def pick(self, index: Tensor) -> Boxes:
        """Return some of the boxes, by a mask or by positions."""
        return Boxes(self.lower[index], self.upper[index])

    @property
    def centre(self) -> Tensor:
        """Return the middle of each box, `[n, *input_shape]`; rounding never moves it outside."""
        return torch.minimum(torch.maximum((self.lower + self.upper) / 2, self.lower), self.upper)

    def region(self, dtype: torch.dtype | None = None) -> Region:
        """Return the boxes as sets for bound methods; `dtype` can hold their centres where a box allows it."""
        centre = self.centre
        if dtype is not None:
            near = centre.to(dtype).to(centre.dtype)
            centre = torch.where((near >= self.lower) & (near <= self.upper), near, centre)
        radius = torch.maximum(centre - self.lower, self.upper - centre).flatten(1).amax(1).double()
        eps = (radius * (1 + 1e-6) + 1e-300).clamp(max=torch.finfo(radius.dtype).max)
        return Region(centre, math.inf, eps, self.lower, self.upper, "open")


class Rows(NamedTuple):
    """The rows of one clause: linear functions of the output, `coef . y + constant`, of which one must be positive."""

    coef: Tensor  # [k, *output_shape]
    constant: Tensor  # [k]


class LinearLowerBounds(NamedTuple):
    """Lower bounds of all rows over each box: linear functions of the input, and their least values."""

    slope: Tensor  # [n, k, inputs]
    offset: Tensor  # [n, k]
    value: Tensor  # [n, k], rigorous


@dataclass(eq=False)
class InputSplitting:
    """The search for one clause: the boxes that are open, and how many were bounded."""

    graph: Graph
    rows: Rows
    rounding: Rounding | None
    waiting: list[Boxes]
    relaxation: str = "adaptive"
    deadline: float = math.inf  # of `time.monotonic()`, checked before the bounds of each layer
    bounded: int = 0

    def run(self, deadline: float, is_counterexample: Callable[[Tensor], bool]) -> bool | None:
        """Halve boxes until all are proved, a counterexample is found, or the deadline passes.

        Args:
            deadline: a moment of `time.monotonic()`.
            is_counterexample: whether one of some points is a counterexample; it is called with the centres of boxes
                that could not be proved.

        Returns:
            True if the clause is proved for all inputs, False if there is a counterexample, and None if the time is
            up; a further call then goes on.
        """
        while self.waiting:
            if time.monotonic() > deadline:
                return None
            boxes = self._next()
            found = self.bound(boxes)
            open_boxes = ~(found.value > 0).any(1)
            self.bounded += len(boxes)
            if not bool(open_boxes.any()):
                continue
            left, kept = self._cut(boxes.pick(open_boxes), LinearLowerBounds(*(part[open_boxes] for part in found)))
            if len(left) == 0:
                continue
            if is_counterexample(left.centre):
                return False
            self.waiting.extend(_halve(left, kept))
        return True

    def bound(self, boxes: Boxes) -> LinearLowerBounds:
        """Return lower bounds of the rows over each box."""
        region = boxes.region()
        (run,) = passes(self.graph, region, "crown", self.relaxation, self.rounding)
        run.pre_activation = in_time(run.pre_activation, self.deadline)
        bound = get_method("crown").final(run, Dense(self.rows.coef.unsqueeze(0)), LOWER)
        offset = bound.offset + self.rows.constant
        value = at_least(region.concretise(bound.form, self.rounding)[0] + offset)
        slope = bound.form.dense().coef.flatten(2)
        return LinearLowerBounds(slope.expand(len(boxes), -1, -1), offset, self._down(value))

    def _down(self, value: Tensor) -> Tensor:
        """Return values less what rounding may have got wrong in the sum with the constant."""
        if self.rounding is None:
            return value
        return value - 4 * self.rounding.unit * (value.abs() + 2 * self.rows.constant.abs())

    def _next(self) -> Boxes:
        """Take a batch of the newest boxes: the search goes depth first, so that few boxes are ever waiting."""
        taken = [self.waiting.pop()]
        while self.waiting and sum(map(len, taken)) < BATCH:
            taken.append(self.waiting.pop())
        whole = Boxes(torch.cat([b.lower for b in taken]), torch.cat([b.upper for b in taken]))
        if len(whole) > BATCH:
            self.waiting.append(Boxes(whole.lower[BATCH:], whole.upper[BATCH:]))
        return Boxes(whole.lower[:BATCH], whole.upper[:BATCH])

    def _cut(self, boxes: Boxes, found: LinearLowerBounds) -> tuple[Boxes, LinearLowerBounds]:
        """Return the part of each box in which no row's linear bound is positive; boxes without one are proved.

        A counterexample needs `slope . x + offset <= 0` for every row. With the other inputs at their best, this bounds
        each input.
        """
        lower, upper = boxes.lower.flatten(1), boxes.upper.flatten(1)
        for k in range(found.slope.shape[1]):
            slope, offset = found.slope[:, k], found.offset[:, k]
            least = torch.minimum(slope * lower, slope * upper)
            total = least.sum(1) + offset
            size = (slope.abs() * torch.maximum(lower.abs(), upper.abs())).sum(1) + offset.abs()
            slack = -(total[:, None] - least) + SAFE * size[:, None]  # slope_j x_j is at most this
            ends = slack / torch.where(slope == 0, torch.ones_like(slope), slope)
            known = torch.isfinite(ends)  # a bound that overflowed cuts nothing
            upper = torch.where(known & (slope > 0), torch.minimum(upper, ends), upper)
            lower = torch.where(known & (slope < 0), torch.maximum(lower, ends), lower)
        alive = (lower <= upper).all(1)
        shape = boxes.lower.shape
        cut = Boxes(lower.reshape(shape)[alive], upper.reshape(shape)[alive])
        return cut, LinearLowerBounds(*(part[alive] for part in found))


def _halve(boxes: Boxes, found: LinearLowerBounds) -> Iterator[Boxes]:
    """Yield both halves of each box, split along the input that moves its best row most."""
    best = found.value.argmax(1)
    slope = found.slope[torch.arange(len(best)), best].abs()
    lower, upper = boxes.lower.flatten(1), boxes.upper.flatten(1)
    width = upper - lower
    # A row without slope says nothing: then the widest input is halved.
    weight = torch.where(slope.amax(1, keepdim=True) > 0, slope, torch.ones_like(slope)) * width
    axis = weight.argmax(1, keepdim=True)
    middle = boxes.centre.flatten(1).gather(1, axis)
    shape = boxes.lower.shape
    yield Boxes(boxes.lower, upper.scatter(1, axis, middle).reshape(shape))
    yield Boxes(lower.scatter(1, axis, middle).reshape(shape), boxes.upper)
