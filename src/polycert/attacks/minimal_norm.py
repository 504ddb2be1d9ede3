"""The smallest counterexample of each sample: attacks on ever smaller balls, and the segment back to the sample."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.attacks.pgd import apgd_attack, margin_of, over
from polycert.graph import Graph
from polycert.sets.ball import Region
from polycert.sets.geometry import power_norm

HALVINGS = 12  # along the segment from a counterexample to the sample
ROUNDS, ROUND_STEPS = 3, 20  # attacks on ever smaller balls


class SmallestCounterexamples(NamedTuple):
    """The nearest counterexample found for each sample: its norm `[n]` (float64), NaN where none is, and the point.

    It is one in float64: ties by the rounding of float32 alone would contradict proofs about the real-valued network.
    """

    radius: Tensor
    points: Tensor


def falls(graph: Graph, points: Tensor, label: Tensor) -> Tensor:
    """Whether points have another class, or tie, `[n]`."""
    with torch.no_grad():
        return margin_of(graph.forward(points), label) <= 0


class MinimalNorm(NamedTuple):
    """Moves the counterexamples of one batch towards their samples; `double` is the graph in float64."""

    graph: Graph
    double: Graph
    region: Region
    label: Tensor

    def run(self, found: Tensor, broken: Tensor, proved: Tensor, upper: float) -> SmallestCounterexamples:
        """Start from `found` where `broken`, else attack within `upper`; then attack ever smaller balls."""
        best = self._shrunk(found, broken)
        far = self._attack(torch.full_like(proved, upper), self.region.x, ~broken)
        best = _nearer(best, far)
        low = proved.double()
        for _ in range(ROUNDS):
            middle = (low + best.radius) / 2
            tried = best.radius > 0  # NaN: nothing to start from
            nearer = self._attack(middle, best.points, tried)
            low = torch.where(nearer.radius.isnan() & tried, middle, low)
            best = _nearer(best, nearer)
        return best

    def _attack(self, eps: Tensor, start: Tensor, wanted: Tensor) -> SmallestCounterexamples:
        """A descent in balls of these radii, for the samples wanted."""
        points, broken = self.region.x.clone(), torch.zeros_like(wanted)
        left = wanted.nonzero().squeeze(1)
        if len(left):
            here = replace(self.region[left], eps=eps[left].double())
            found, margin = apgd_attack(
                self.graph, here, self.label[left], here.project(start[left]), target=None, steps=ROUND_STEPS
            )
            points[left], broken[left] = found, margin <= 0
        return self._shrunk(points, broken)

    def _shrunk(self, points: Tensor, broken: Tensor) -> SmallestCounterexamples:
        """Halve the segment to the sample again and again, keeping the end that is broken."""
        x = self.region.x
        own = broken & self._falls(x)
        ends = torch.where(over(own, x), x, points)
        broken = broken & self._falls(ends)
        nearest = torch.where(over(broken, x), ends, torch.nan)
        low, high = torch.zeros_like(self.region.radius), torch.ones_like(self.region.radius)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            here = self.region.clip(x + over(middle, x) * (ends - x))
            fell = broken & self._falls(here)
            nearest = torch.where(over(fell, x), here, nearest)
            low, high = torch.where(fell, low, middle), torch.where(fell, middle, high)
        delta = (nearest.double() - x.double()).flatten(1).abs()
        return SmallestCounterexamples(power_norm(delta, self.region.norm), nearest)

    def _falls(self, points: Tensor) -> Tensor:
        """Whether points have another class in float64."""
        return falls(self.double, points.double(), self.label)


def _nearer(first: SmallestCounterexamples, second: SmallestCounterexamples) -> SmallestCounterexamples:
    """The better of two for each sample; NaN is none."""
    take = (second.radius < first.radius) | first.radius.isnan()
    points = torch.where(over(take, first.points), second.points, first.points)
    return SmallestCounterexamples(torch.where(take, second.radius, first.radius), points)
