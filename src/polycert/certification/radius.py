"""The largest radius that a method can certify, by search over eps (Section IV-E and Algorithm 3 of the paper).

At every tried eps, `min(eps, d(eps))` is certified, where d is the distance to the envelope built for eps. Only what
was certified counts: the result is always the lower end of the bracket, itself the outcome of some evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polycert.bounding.chunking import batch_size_for
from polycert.bounding.methods import get_method, get_relaxations
from polycert.certification.certify import BatchVerdict, Certifier
from polycert.certification.envelope import classes_of
from polycert.errors import PolycertError
from polycert.graph import Network
from polycert.graph.fingerprint import network_digest
from polycert.graph.inputs import as_inputs, as_labels, check_finite
from polycert.records.certificates import Radii
from polycert.records.provenance import box_text
from polycert.runtime.execution import Progress, over_batches, plain_products
from polycert.sets.ball import Array, Ball, Minimum, Region

MAX_EVALUATIONS = 100
CLIFF = 10.0  # times as steep as before


class TriedEps(NamedTuple):
    """An eps that was tried and a value found there, `[batch]` each; NaN where there is none."""

    eps: Tensor
    value: Tensor

    def at(self, index: Tensor) -> TriedEps:
        """Of some samples."""
        return TriedEps(self.eps[index], self.value[index])

    def put(self, index: Tensor, other: TriedEps) -> TriedEps:
        """With some samples replaced."""
        return TriedEps(self.eps.index_put((index,), other.eps), self.value.index_put((index,), other.value))


class Bracket(NamedTuple):
    """The state of the search, all `[batch]`, float64: `low` is certified, `high` failed (or is the upper end).

    Points of the margin (the largest certified eps tried, the smallest failed one, the one before on the side that was
    tried last, and the failed one before) and the two of the gap d(eps) - eps nearest to 0 serve to guess the crossing.
    `run` counts how often the same side came up.
    """

    low: Tensor
    high: Tensor
    certified: TriedEps
    failed: TriedEps
    before: TriedEps
    failed_before: TriedEps
    near: TriedEps
    nearer: TriedEps
    start: Tensor  # the margin at eps = 0
    run: Tensor
    tries: Tensor

    def at(self, index: Tensor) -> Bracket:
        """The state of some samples."""
        parts: list[Any] = [f.at(index) if isinstance(f, TriedEps) else f[index] for f in self]
        return Bracket(*parts)

    def put(self, index: Tensor, other: Bracket) -> Bracket:
        """The state with some samples replaced."""
        pairs: list[tuple[Any, Any]] = list(zip(self, other, strict=True))
        parts: list[Any] = [
            mine.put(index, new) if isinstance(mine, TriedEps) else mine.index_put((index,), new) for mine, new in pairs
        ]
        return Bracket(*parts)


def _pick(condition: Tensor, yes: TriedEps, no: TriedEps) -> TriedEps:
    return TriedEps(torch.where(condition, yes.eps, no.eps), torch.where(condition, yes.value, no.value))


Proposal = Callable[[Bracket, float], Tensor]


def _middle(bracket: Bracket, tolerance: float) -> Tensor:
    """Halve the bracket."""
    return (bracket.low + bracket.high) / 2


def _guess(bracket: Bracket, tolerance: float) -> Tensor:
    """The best available guess of the crossing that lies inside the bracket, a hair on its failing side.

    A failed eps just above the crossing closes the bracket from both ends at once: it is the upper end, and its
    distance d(eps) the lower. Guesses, best first: a secant on the gap, a parabola through three margins, a power law
    between two; halving where none fits or one side has come up too often. Of deep networks the margin falls off a
    cliff, and only the failed side tells where.
    """
    low, high = bracket.low, bracket.high
    step = torch.minimum(torch.full_like(low, 0.3 * tolerance), 0.1 * (high - low))
    middle = _middle(bracket, tolerance)
    cliff = _cliff(bracket)
    smooth = torch.where(cliff, torch.nan, _power_law(bracket)), torch.where(cliff, torch.nan, _parabola(bracket))
    found = middle
    for guess in (_foot(bracket), *smooth, _secant(bracket, tolerance)):
        found = torch.where((guess > low) & (guess < high), guess, found)
    found = torch.where((bracket.run != 0) & (bracket.run % 4 == 0), middle, found)
    return torch.maximum(torch.minimum(found, high - step), low + step)


def _secant(bracket: Bracket, tolerance: float) -> Tensor:
    """Zero of the line through the two gaps nearest to 0, and 0.4 tolerances of gap beyond it."""
    (a, gap_a), (b, gap_b) = bracket.near, bracket.nearer
    slope = (gap_b - gap_a) / (b - a)
    return b - gap_b / slope + 0.4 * tolerance / (-slope).clamp(min=1)


def _parabola(bracket: Bracket) -> Tensor:
    """Zero of the parabola through three margins (Muller's step); NaN where it has none."""
    (a, fa), (b, fb), (c, fc) = bracket.before, bracket.certified, bracket.failed
    first, second = (fb - fa) / (b - a), (fc - fb) / (c - b)
    bend = (second - first) / (c - a)
    slope = second + (c - b) * bend
    root = (slope * slope - 4 * fc * bend).sqrt()
    return c - 2 * fc / torch.where(slope > 0, slope + root, slope - root)


def _cliff(bracket: Bracket) -> Tensor:
    """Whether the margin falls that much faster ahead than it has fallen so far."""
    (a, fa), (b, fb) = bracket.certified, bracket.failed
    return (a > 0) & ((fa - fb) * a > CLIFF * (bracket.start - fa).clamp(min=0) * (b - a))


def _foot(bracket: Bracket) -> Tensor:
    """Zero of the line through two failed margins; NaN before there are two."""
    (a, fa), (b, fb) = bracket.failed, bracket.failed_before
    return a - fa * (b - a) / (fb - fa)


def _power_law(bracket: Bracket) -> Tensor:
    """Margins fall slowly at first, then fast: a chord's crossing, moved outward."""
    (a, fa), (b, fb) = bracket.certified, bracket.failed
    return a + (b - a) * (fa / (fa - fb)) ** 0.7


class Strategy(NamedTuple):
    """How the next eps is chosen, whether partial radii count, and whether distances beyond the ball are of use."""

    propose: Proposal
    partial: bool
    beyond: bool = False


STRATEGIES: dict[str, Strategy] = {
    "root": Strategy(_guess, partial=True, beyond=True),
    "envelope": Strategy(_middle, partial=True),
    "bisection": Strategy(_middle, partial=False),
}


def largest_radius(
    net: Network | nn.Module,
    x: Array,
    y: Array | None,
    *,
    norm: float = math.inf,
    upper: float = 1.0,
    low: float | Array | None = None,
    high: float | Array | None = None,
    tolerance: float = 1e-4,
    method: str = "crown",
    relaxation: str = "parallel",
    strategy: str = "root",
    minimum: Minimum = "open",
    rigorous: bool = True,
    batch_size: int | None = None,
    memory: int | None = None,
    threads: int = 1,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Radii:
    """Search [0, upper] for the largest eps whose whole ball is certified.

    Args:
        net, x, y, method, relaxation, rigorous, batch_size, memory, threads, seed, progress: as in `certify`.
        norm, low, high, minimum: the set, as in `Ball`.
        upper: the largest radius of interest; tolerance: width of the final bracket.
        strategy: `root`, a safeguarded secant on d(eps) - eps; `envelope`, the paper's search, which halves the
            bracket and uses partial radii; `bisection`, which uses only yes and no.
    """
    get_method(method), get_relaxations(relaxation, method)
    if strategy not in STRATEGIES:
        raise PolycertError(f"unknown strategy {strategy!r}: choose one of {', '.join(STRATEGIES)}")
    if not (isinstance(upper, Real) and 0 < upper < math.inf) or not 0 < tolerance < upper:
        raise PolycertError(f"need 0 < tolerance < upper, got tolerance {tolerance} and upper {upper}")
    network, inputs = as_inputs(net, x)
    judge = Certifier(network, method, relaxation, rigorous)
    numbers = get_method(method).numbers(judge.graph)
    batch = batch_size_for(judge.graph, numbers, memory, threads, batch_size=batch_size)
    region = Ball(norm, upper, low, high, minimum=minimum).at(inputs)
    network.check_inside(region)
    unknown = inputs.new_zeros(len(inputs), dtype=torch.long)
    labels = None if y is None else as_labels(y, unknown, classes_of(judge.graph))
    found = RadiusSearch(judge, region, upper, tolerance).run(labels, [strategy], batch, threads, progress)[0]
    return replace(found, box=box_text(low, high), network=network_digest(network))


@dataclass(frozen=True, eq=False)
class RadiusSearch:
    """Samples, and the interval [0, upper] in which their largest certified radii are sought."""

    judge: Certifier
    region: Region
    upper: float
    tolerance: float

    def run(
        self, y: Tensor | None, strategies: Sequence[str], batch: int, threads: int, progress: Progress | None = None
    ) -> list[Radii]:
        """What each strategy finds, and at what cost."""
        with plain_products(self.judge.graph.device):
            parts = over_batches(
                lambda here: self._batch(here, None if y is None else y[here], strategies),
                len(self.region.x),
                batch,
                threads,
                progress,
            )
        return [Radii.join(found) for found in zip(*parts, strict=True)]

    def _batch(self, here: slice, y: Tensor | None, strategies: Sequence[str]) -> list[Radii]:
        region, graph = self.region[here], self.judge.graph
        with torch.no_grad():
            outputs = graph.forward(region.x.to(graph.dtype))
        check_finite(graph, outputs)
        prediction = outputs.argmax(1)
        label = as_labels(y, prediction, classes_of(graph))
        bracket = _first(outputs.double(), label, self.upper)
        # All strategies halve first: that evaluation is shared, and counted for each.
        beyond = any(STRATEGIES[name].beyond for name in strategies)
        tried = self._tried(region, label, bracket, _middle, beyond=beyond)
        found = []
        for name in strategies:
            strategy = STRATEGIES[name]
            end = self._closed(region, label, _moved(bracket, tried, strategy.partial), strategy)
            index = torch.arange(here.start, here.start + len(label), device=label.device)
            found.append(
                Radii(
                    index=index,
                    label=label,
                    prediction=prediction,
                    radius=end.low,
                    failed=end.high,
                    evaluations=end.tries,
                    norm=region.norm,
                    method=self.judge.method,
                    relaxation=self.judge.relaxation,
                    rigorous=self.judge.rigorous,
                    strategy=name,
                    upper=float(self.upper),
                    tolerance=self.tolerance,
                )
            )
        return found

    def _closed(self, region: Region, label: Tensor, bracket: Bracket, strategy: Strategy) -> Bracket:
        """Evaluate until every bracket is as narrow as the tolerance."""
        while True:
            tried = self._tried(region, label, bracket, strategy.propose, beyond=strategy.beyond)
            if tried is None:
                return bracket
            bracket = _moved(bracket, tried, strategy.partial)

    def _tried(
        self, region: Region, label: Tensor, bracket: Bracket, propose: Proposal, *, beyond: bool
    ) -> Tried | None:
        """One evaluation of every sample whose bracket is too wide; None if there is none."""
        wide = (bracket.high - bracket.low > self.tolerance) & (bracket.tries < MAX_EVALUATIONS)
        active = wide.nonzero().squeeze(1)
        if len(active) == 0:
            return None
        here = replace(region[active], eps=propose(bracket.at(active), self.tolerance))
        verdict, _ = self.judge.decide(here, label[active], beyond=beyond)
        return Tried(active, here.eps, verdict)


class Tried(NamedTuple):
    """The verdict on some samples, each at its own eps."""

    samples: Tensor
    eps: Tensor
    verdict: BatchVerdict


def _moved(bracket: Bracket, tried: Tried | None, partial: bool) -> Bracket:
    if tried is None:
        return bracket
    return bracket.put(tried.samples, _narrowed(bracket.at(tried.samples), tried.eps, tried.verdict, partial))


def _first(outputs: Tensor, label: Tensor, upper: float) -> Bracket:
    """Nothing is certified yet; a misclassified sample is done. The margin at eps = 0 costs no bounds."""
    own = outputs.gather(1, label[:, None]).squeeze(1)
    margin = own - outputs.scatter(1, label[:, None], -torch.inf).amax(1)
    zero = torch.zeros_like(margin)
    high = torch.where(margin > 0, torch.full_like(zero, upper), zero)
    nowhere = TriedEps(torch.full_like(zero, torch.nan), torch.full_like(zero, torch.nan))
    count = torch.zeros_like(label)
    points = TriedEps(zero, margin), nowhere, nowhere, nowhere, nowhere, nowhere
    return Bracket(zero, high, *points, margin, count, count)


def _narrowed(bracket: Bracket, eps: Tensor, verdict: BatchVerdict, partial: bool) -> Bracket:
    """Move the certified end, and the failed one where the ball is not proved."""
    yes = verdict.certified
    proved = torch.where(yes, eps, verdict.radius if partial else torch.zeros_like(eps))
    low = torch.maximum(bracket.low, proved)
    high = torch.where(yes, bracket.high, eps)
    here = TriedEps(eps, verdict.margin)
    gap = TriedEps(eps, torch.where(verdict.distance > 0, verdict.distance - eps, torch.nan))
    # NaN compares false: an unknown gap is never nearer, and anything known is nearer than unknown.
    closest = ~(gap.value.abs() >= bracket.nearer.value.abs()) & torch.isfinite(gap.value)
    closer = ~(gap.value.abs() >= bracket.near.value.abs()) & torch.isfinite(gap.value)
    return Bracket(
        low,
        torch.maximum(high, low),
        certified=_pick(yes, here, bracket.certified),
        failed=_pick(yes, bracket.failed, here),
        before=_pick(yes, bracket.certified, bracket.failed),
        failed_before=_pick(yes, bracket.failed_before, bracket.failed),
        near=_pick(closest, bracket.nearer, _pick(closer, gap, bracket.near)),
        nearer=_pick(closest, gap, bracket.nearer),
        start=bracket.start,
        run=torch.where(yes, bracket.run.clamp(min=0) + 1, bracket.run.clamp(max=0) - 1),
        tries=bracket.tries + 1,
    )
