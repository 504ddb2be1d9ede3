"""Counterexamples: points are moved into the exact set and replayed by forward passes before they count."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from polycert.forms import Dense
from polycert.sets.ball import Ball, Region
from polycert.sets.geometry import power_norm
from polycert.sets.interval import Interval
from polycert.verification.pre_activation import relax
from polycert.verification.rational import Undecided
from polycert.verification.snapshot import NetworkSnapshot
from polycert.verification.specification import Specification, worst_clause

LARGEST_POWER = 64  # norms that are whole numbers up to this one are checked in fractions
ROOM = 1e-9  # other norms are checked in float64 with this relative margin
LOWEST = -Fraction(sys.float_info.max)  # the least margin that a record can hold


@dataclass(frozen=True, eq=False)
class Counterexample:
    """An input of the exact set at which the specification fails."""

    # [*shape], float64; its entries are numbers of the network's own type where that is possible
    input: Tensor = field(repr=False)
    margin: float  # the margin of the worst clause in float64, <= 0
    own_margin: float  # the same margin in the network's own type
    output: Tensor | None = field(default=None, repr=False)  # the output of onnxruntime, where that decides

    @property
    def agreed(self) -> bool:
        """Whether both forward passes show the failure, or onnxruntime does."""
        return self.output is not None or (self.margin <= 0 and self.own_margin <= 0)


@dataclass(frozen=True, eq=False)
class CounterexampleCheck:
    """Checks whether points of one set are counterexamples."""

    net: NetworkSnapshot
    region: Region  # one sample, float64
    spec: Specification

    def __call__(self, points: Tensor) -> Counterexample | None:
        """Move candidates `[n, inputs]` or `[n, *shape]` into the set, and return the best counterexample or None."""
        shaped = points.detach().double().reshape(-1, *self.region.x.shape[1:])
        found = [self.best(self.inward(shaped, dtype)) for dtype in dict.fromkeys((self.net.own.dtype, torch.float64))]
        failing = [one for one in found if one is not None]
        return min(failing, key=lambda one: (not one.agreed, one.margin), default=None)

    def best(self, points: Tensor) -> Counterexample | None:
        """Return the best counterexample among candidates `[n, *shape]`, float64, which are taken as they are."""
        with torch.no_grad():
            margin = self.spec.worst(self.net.double.forward(points))
            own = self.spec.worst(self.net.own.forward(points.to(self.net.own.dtype)))
        order = torch.where(margin <= 0, torch.maximum(margin, own), torch.inf)
        k = int(order.argmin())
        if not float(margin[k]) <= 0 or not self.inside(points[k]) or self._refuted(points[k]):
            return None
        return Counterexample(points[k], float(margin[k]), float(own[k]))

    def exactly(self, point: Tensor) -> Counterexample | None:
        """Return a point `[inputs]`, float64, as a counterexample if it fails in exact arithmetic, else None."""
        shaped = point.reshape(self.region.x.shape[1:])
        try:
            margin = self.margin(shaped)
        except Undecided:
            return None
        if margin > 0 or not self.inside(shaped):
            return None
        with torch.no_grad():
            own = self.spec.worst(self.net.own.forward(shaped[None].to(self.net.own.dtype)))
        return Counterexample(shaped, float(max(margin, LOWEST)), float(own[0]))

    def margin(self, point: Tensor) -> Fraction:
        """Return the least over the clauses of their largest row at one input `[*shape]`, without rounding."""
        outputs = self.net.exact.outputs(point).fractions()
        rows = [
            sum((Fraction(a) * z for a, z in zip(row, outputs, strict=True) if a), Fraction(constant))
            for row, constant in zip(self.spec.rows.flatten(1).tolist(), self.spec.constants.tolist(), strict=True)
        ]
        found: Fraction = min(max(rows[k] for k in clause.nonzero().flatten().tolist()) for clause in self.spec.members)
        return found

    def _refuted(self, point: Tensor) -> bool:
        """Whether a point that fails in float64 does not fail in exact arithmetic, which only happens near ties."""
        if not self._near_a_tie(point):
            return False
        try:
            return self.margin(point) > 0
        except Undecided:
            return False

    def _near_a_tie(self, point: Tensor) -> bool:
        """Whether intervals with all rounding covered do not show that the point fails."""
        highest = -relax(
            self.net.double, Ball(eps=0.0).at(point[None]), Dense(-self.spec.rows[None]), "ibp", "parallel"
        ).rows
        return not float(worst_clause(highest + self.spec.constants, self.spec.members)) <= 0

    @cached_property
    def box(self) -> Interval:
        """Return the smallest box around the set, rounded inward: `[1, *shape]`."""
        region = self.region
        lower, upper = -_sum_down(-region.x, region.eps), _sum_down(region.x, region.eps)
        if region.low is not None:
            lower = torch.maximum(lower, region.low)
        if region.high is not None:
            upper = torch.minimum(upper, region.high)
        return Interval(lower, upper)

    def inward(self, points: Tensor, dtype: torch.dtype) -> Tensor:
        """Return points `[n, *shape]` moved into the exact set; `dtype` can hold their entries where x allows it."""
        x = self.region.x
        points = torch.maximum(torch.minimum(points, self.box.upper), self.box.lower)
        if not math.isinf(self.region.norm):
            delta = (points - x).flatten(1)
            size = power_norm(delta.abs(), self.region.norm)
            shrink = (self.region.eps / size.clamp(min=1e-300)).clamp(max=1) * (1 - 2 * ROOM)
            points = x + (delta * shrink[:, None]).reshape(points.shape)
            points = torch.maximum(torch.minimum(points, self.box.upper), self.box.lower)
        # A step towards x stays inside: the set is convex, and so is each coordinate's interval.
        rounded = points.to(dtype)
        back = torch.where(rounded.double() > points, -torch.inf, torch.inf).to(dtype)
        beyond = (rounded.double() - x).abs() > (points - x).abs()
        towards = torch.where(beyond, torch.nextafter(rounded, back), rounded).double()
        fits = (towards - x).abs() <= (points - x).abs()
        return torch.where(fits, towards, x)

    def inside(self, point: Tensor) -> bool:
        """Whether a point `[*shape]` lies in ball and box, without any rounding."""
        region, flat = self.region, point.flatten()
        within = bool((point >= self.box.lower[0]).all() and (point <= self.box.upper[0]).all())
        if math.isinf(region.norm) or not within:
            return within
        deltas = [
            abs(Fraction(a) - Fraction(b)) for a, b in zip(flat.tolist(), region.x.flatten().tolist(), strict=True)
        ]
        eps = Fraction(float(region.eps))
        if float(region.norm).is_integer() and region.norm <= LARGEST_POWER:
            return sum(d ** int(region.norm) for d in deltas) <= eps ** int(region.norm)
        sizes = torch.tensor([float(d) for d in deltas], dtype=torch.float64)
        return float(power_norm(sizes, region.norm)) * (1 + ROOM) <= float(eps)


def _sum_down(x: Tensor, eps: Tensor) -> Tensor:
    """Return `x + eps` rounded down, which is exact: the error of a float64 sum is itself a float64 number."""
    eps = eps.reshape(-1, *(1,) * (x.dim() - 1))
    total = x + eps
    part = total - x
    error = (x - (total - part)) + (eps - part)
    below = torch.nextafter(total, torch.tensor(-torch.inf, dtype=total.dtype))
    return torch.where(error < 0, below, total)
