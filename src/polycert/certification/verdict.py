"""Verdicts: from envelopes to certified radii, in the network's own type and once more in float64 where needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.bounding.methods import get_method
from polycert.bounding.precision import error_model, provable
from polycert.certification.envelope import Envelope, better, envelopes
from polycert.graph import Graph, Network
from polycert.sets.ball import Region
from polycert.sets.rounding import Rounding

# A sample that fails by less than this many times its slack is looked at again in float64. A margin loses its own
# slack, and more through wider hidden bounds: 4.4 times its slack at most on 500 images of one released network. A
# second chance only: too small a number costs certificates, never soundness.
SECOND_LOOK = 5
DISTANCE_NUMBERS = 2**18  # coefficients whose distances are found at a time: more would leave the cache


class BatchVerdict(NamedTuple):
    """The result of one batch by one envelope, all `[batch]`."""

    radius: Tensor  # float64
    certified: Tensor
    margin: Tensor  # float64
    nearest: Tensor
    distance: Tensor  # float64, to the envelope; infinite where it was not needed
    unsettled: Tensor  # rounding or overflow alone stands between the sample and its certificate


def verdict_of(env: Envelope, *, beyond: bool = False) -> BatchVerdict:
    """Margins over the ball, then distances of the rows that the ball does not settle.

    `beyond`: also where it settles all rows of a sample, the distance to the nearest of them.
    """
    margins = env.margins()
    open_rows = ~(margins > 0)
    eps = env.region.eps
    distance = _put_distances(torch.full_like(margins, torch.inf, dtype=torch.float64), env, open_rows)
    if beyond:
        distance = _nearest_beyond(distance, env, margins, ~open_rows.any(1, keepdim=True))
    nearest_distance, by_distance = distance.min(1)
    certified = nearest_distance > eps
    margin, by_margin = margins.min(1)
    row = torch.where(certified, by_margin, by_distance)
    close = margins if env.slack is None else margins + SECOND_LOOK * env.slack
    unsettled = ~certified & ((close > 0) | ~torch.isfinite(margins)).all(1)
    nearest = env.classes.gather(1, row[:, None]).squeeze(1)
    radius = torch.minimum(nearest_distance, eps)
    return BatchVerdict(radius, certified, margin.double(), nearest, nearest_distance, unsettled)


def _put_distances(distance: Tensor, env: Envelope, wanted: Tensor) -> Tensor:
    """Distances `[batch, classes - 1]` with those of the wanted rows put in, a few rows at a time."""
    samples, rows = wanted.nonzero(as_tuple=True)
    if samples.numel() == 0:
        return distance
    few = max(1, DISTANCE_NUMBERS // math.prod(env.slope.shape[2:]))
    for some, of in zip(samples.split(few), rows.split(few), strict=True):
        found = env.select(some, of).distances().squeeze(1).double()
        distance = distance.index_put((some, of), found.nan_to_num(nan=0.0, posinf=torch.inf))
    return distance


def _nearest_beyond(distance: Tensor, env: Envelope, margins: Tensor, settled: Tensor) -> Tensor:
    """Distances with those put in, of the settled samples, that can be the smallest.

    The least value of a form over a ball is convex in the radius: beyond eps it stays above the chord from 0 to eps,
    and crosses 0 no earlier.
    """
    at_x = env.values_at_x()
    fall = at_x - margins
    reach = torch.where(fall > 0, env.region.eps[:, None] * at_x / fall, torch.inf)
    first = torch.zeros_like(reach, dtype=torch.bool).scatter(1, reach.argmin(1, keepdim=True), True) & settled
    distance = _put_distances(distance, env, first)
    return _put_distances(distance, env, settled & ~first & (reach < distance.amin(1, keepdim=True)))


@dataclass(frozen=True, eq=False)
class Certifier:
    """Decides batches: in the network's own type, and once more in float64 where rounding alone is in the way."""

    net: Network
    method: str
    relaxation: str
    rigorous: bool

    @cached_property
    def graph(self) -> Graph:
        """The network as it is."""
        return self.net.bind()

    @cached_property
    def double(self) -> Graph:
        """The same in float64."""
        return self.net.bind(torch.float64)

    def rounding(self, graph: Graph) -> Rounding | None:
        """The error model of a rigorous run, or None."""
        return error_model(graph) if self.rigorous else None

    def envelope(self, graph: Graph, region: Region, label: Tensor) -> Envelope:
        """The best envelope that the relaxations give."""
        found = envelopes(graph, region, label, self.method, self.relaxation, self.rounding(graph))
        return reduce(better, found)

    @cached_property
    def _first(self) -> Graph:
        """Where a rigorous run starts: the network's own type, if its arithmetic is what the error model says."""
        return provable(self.net, self.graph) if self.rigorous else self.graph

    def decide(self, region: Region, label: Tensor, *, beyond: bool = False) -> tuple[BatchVerdict, Tensor]:
        """The verdict of each sample, and whether it was decided in float64; `beyond`: see `verdict_of`.

        For proofs the caller sees to `plain_products`, for all of its threads at once.
        """
        with torch.no_grad() if get_method(self.method).descends else torch.inference_mode():
            verdict, in_double = self._decided(region, label, beyond=beyond)
        # Tensors of that mode may neither be changed nor meet gradients later: the caller gets ordinary ones.
        return BatchVerdict(*(part.clone() for part in verdict)), in_double.clone()

    def _decided(self, region: Region, label: Tensor, *, beyond: bool) -> tuple[BatchVerdict, Tensor]:
        first = self._first
        own = region.to(first.dtype)
        verdict = verdict_of(self.envelope(first, own, label), beyond=beyond)
        in_double = torch.full_like(verdict.certified, first.dtype == torch.float64)
        if not self.rigorous or first.dtype == torch.float64:
            return verdict, in_double
        # The claim is about the inputs as given: where this type cannot hold them, only float64 counts.
        rounded = (own.x.double() != region.x.double()).flatten(1).any(1)
        again = (verdict.unsettled | rounded).nonzero().squeeze(1)
        if len(again) == 0:
            return verdict, in_double
        double = self.envelope(self.double, region[again].to(torch.float64), label[again])
        second = verdict_of(double, beyond=beyond)
        merged = (a.index_put((again,), b) for a, b in zip(verdict, second, strict=True))
        return BatchVerdict(*merged), in_double.index_fill(0, again, True)
