"""Counterexamples of small norm: attacks on ever smaller balls, and bisection on the segment to the sample."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.attacks.pgd import apgd_attack, margin_of, over
from polycert.graph import Graph
from polycert.sets.ball import Region
from polycert.sets.geometry import power_norm

HALVINGS = 12  # of the segment from a counterexample to the sample
ROUNDS, ROUND_STEPS = 3, 20  # how many attacks on smaller balls, and the steps of each


class SmallestCounterexamples(NamedTuple):
    """The nearest counterexample of each sample: its norm `[n]` (float64) and the point; NaN where none was found.

    The network is evaluated in float64. A tie by the rounding of float32 would contradict proofs about the real-valued
    network.
    """

    radius: Tensor
    points: Tensor


def falls(graph: Graph, points: Tensor, label: Tensor) -> Tensor:
    """Whether the points are counterexamples: they have another class, or tie, `[n]`."""
    with torch.no_grad():
        return margin_of(graph.forward(points), label) <= 0


class MinimalNorm(NamedTuple):
    """Finds counterexamples of small norm for one batch; `double` is the graph in float64."""

    graph: Graph
    double: Graph
    region: Region
    label: Tensor

    def run(self, found: Tensor, success: Tensor, proved: Tensor, upper: float) -> SmallestCounterexamples:
        """The smallest counterexamples, from `found` where `success`, else from an attack within `upper`.

        Each round attacks the ball halfway between the largest radius without a counterexample, at first `proved`, and
        the smallest one with a counterexample.
        """
        best = self._moved_to_sample(found, success)
        best = _nearer(best, self._attack(torch.full_like(proved, upper), self.region.x, ~success))
        low = proved.double()
        for _ in range(ROUNDS):
            middle = (low + best.radius) / 2
            tried = best.radius > 0  # false for NaN: there is no counterexample to start from
            nearer = self._attack(middle, best.points, tried)
            low = torch.where(nearer.radius.isnan() & tried, middle, low)
            best = _nearer(best, nearer)
        return best

    def _attack(self, eps: Tensor, start: Tensor, wanted: Tensor) -> SmallestCounterexamples:
        """Attack the wanted samples in balls of these radii."""
        points, success = self.region.x.clone(), torch.zeros_like(wanted)
        index = wanted.nonzero().squeeze(1)
        if len(index):
            region = replace(self.region[index], eps=eps[index].double())
            points[index], margin = apgd_attack(
                self.graph, region, self.label[index], region.project(start[index]), target=None, steps=ROUND_STEPS
            )
            success[index] = margin <= 0
        return self._moved_to_sample(points, success)

    def _moved_to_sample(self, points: Tensor, success: Tensor) -> SmallestCounterexamples:
        """Bisect the segment from each counterexample to its sample, keeping the end that is one."""
        x = self.region.x
        ends = torch.where(over(success & self._falls(x), x), x, points)
        success = success & self._falls(ends)
        nearest = torch.where(over(success, x), ends, torch.nan)
        low, high = torch.zeros_like(self.region.radius), torch.ones_like(self.region.radius)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            tried = self.region.clip(x + over(middle, x) * (ends - x))
            fell = success & self._falls(tried)
            nearest = torch.where(over(fell, x), tried, nearest)
            low, high = torch.where(fell, low, middle), torch.where(fell, middle, high)
        delta = (nearest.double() - x.double()).flatten(1).abs()
        return SmallestCounterexamples(power_norm(delta, self.region.norm), nearest)

    def _falls(self, points: Tensor) -> Tensor:
        """Whether the points are counterexamples in float64, `[batch]`."""
        return falls(self.double, points.double(), self.label)


def _nearer(first: SmallestCounterexamples, second: SmallestCounterexamples) -> SmallestCounterexamples:
    """The nearer of two counterexamples for each sample; NaN means that there is none."""
    take = (second.radius < first.radius) | first.radius.isnan()
    points = torch.where(over(take, first.points), second.points, first.points)
    return SmallestCounterexamples(torch.where(take, second.radius, first.radius), points)
