"""The largest radius that a method can certify, by search over eps (Section IV-E and Algorithm 3 of the paper).

At every eps that is tried, `min(eps, d(eps))` is certified, where d is the distance to the envelope built for eps. The
result is the lower end of the bracket, which one of the evaluations has certified.

A rigorous search guesses by bounds without error terms, as these mislead the guesses, and then proves the lower end of
the bracket. Where the proof comes out so much smaller that the bracket is wider than the tolerance, the search goes on
with proofs alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import NamedTuple

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
CLIFF = 10.0  # how many times steeper the margin must fall to count as a cliff


class Bracket(NamedTuple):
    """The state of the search for each sample, float64: `low` is certified, `high` failed or is the upper end.

    The other fields serve to guess where d(eps) = eps. A point `[batch, 2]` is an eps that was tried and the margin
    found there, or the gap d(eps) - eps; both are NaN where there is no such eps.
    """

    low: Tensor  # [batch]
    high: Tensor  # [batch]
    source: Tensor  # [batch]: the eps whose envelope certified `low`; 0 if there is none
    certified: Tensor  # the point of the margin at the largest certified eps
    failed: Tensor  # the point of the margin at the smallest failed eps
    before: Tensor  # the earlier point of the margin on the side that was tried last
    failed_before: Tensor  # the failed point of the margin before `failed`
    near: Tensor  # the points of the two gaps nearest to 0
    nearer: Tensor
    margin_at_0: Tensor  # [batch]
    streak: Tensor  # [batch]: how often in a row eps was certified, or minus how often it failed
    evaluations: Tensor  # [batch]

    def at(self, index: Tensor) -> Bracket:
        """The state of some samples."""
        return Bracket(*(part[index] for part in self))

    def put(self, index: Tensor, other: Bracket) -> Bracket:
        """The state with that of some samples replaced."""
        return Bracket(*(part.index_put((index,), new) for part, new in zip(self, other, strict=True)))


def _points(eps: Tensor, value: Tensor) -> Tensor:
    """Values at some eps as points `[batch, 2]`."""
    return torch.stack([eps, value], 1)


Proposal = Callable[[Bracket, float], Tensor]


def _middle(bracket: Bracket, tolerance: float) -> Tensor:
    """The middle of the bracket."""
    return (bracket.low + bracket.high) / 2


def _guess(bracket: Bracket, tolerance: float) -> Tensor:
    """The best guess of the crossing d(eps) = eps inside the bracket, moved a little to its failing side.

    A failed eps just above the crossing moves both ends of the bracket: it is the upper end, and d(eps) the lower one.
    The guesses, best first: a secant on the gap d(eps) - eps, a parabola through three margins, a power law through
    two, a line through two failed margins. The middle is taken where none is inside the bracket, and where the same end
    has moved four times in a row. The margin of a deep network may fall off a cliff, whose place only failed margins
    show.
    """
    low, high = bracket.low, bracket.high
    step = torch.minimum(torch.full_like(low, 0.3 * tolerance), 0.1 * (high - low))
    middle = _middle(bracket, tolerance)
    cliff = _cliff(bracket)
    smooth = torch.where(cliff, torch.nan, _power_law(bracket)), torch.where(cliff, torch.nan, _parabola(bracket))
    found = middle
    for guess in (_failed_line(bracket), *smooth, _secant(bracket, tolerance)):
        found = torch.where((guess > low) & (guess < high), guess, found)
    found = torch.where((bracket.streak != 0) & (bracket.streak % 4 == 0), middle, found)
    return torch.maximum(torch.minimum(found, high - step), low + step)


def _secant(bracket: Bracket, tolerance: float) -> Tensor:
    """The zero of the line through the two gaps nearest to 0, moved to where the line is at -0.4 tolerances."""
    (a, gap_a), (b, gap_b) = bracket.near.unbind(1), bracket.nearer.unbind(1)
    slope = (gap_b - gap_a) / (b - a)
    return b - gap_b / slope + 0.4 * tolerance / (-slope).clamp(min=1)


def _parabola(bracket: Bracket) -> Tensor:
    """The zero of the parabola through three margins (Muller's method); NaN where it has none."""
    (a, fa), (b, fb), (c, fc) = (point.unbind(1) for point in (bracket.before, bracket.certified, bracket.failed))
    first, second = (fb - fa) / (b - a), (fc - fb) / (c - b)
    curvature = (second - first) / (c - a)
    slope = second + (c - b) * curvature
    root = (slope * slope - 4 * fc * curvature).sqrt()
    return c - 2 * fc / torch.where(slope > 0, slope + root, slope - root)


def _cliff(bracket: Bracket) -> Tensor:
    """Whether the margin falls `CLIFF` times faster inside the bracket than it does below it."""
    (a, fa), (b, fb) = bracket.certified.unbind(1), bracket.failed.unbind(1)
    return (a > 0) & ((fa - fb) * a > CLIFF * (bracket.margin_at_0 - fa).clamp(min=0) * (b - a))


def _failed_line(bracket: Bracket) -> Tensor:
    """The zero of the line through two failed margins; NaN before there are two."""
    (a, fa), (b, fb) = bracket.failed.unbind(1), bracket.failed_before.unbind(1)
    return a - fa * (b - a) / (fb - fa)


def _power_law(bracket: Bracket) -> Tensor:
    """The zero of a power law through two margins, beyond that of the chord: margins fall ever faster."""
    (a, fa), (b, fb) = bracket.certified.unbind(1), bracket.failed.unbind(1)
    return a + (b - a) * (fa / (fa - fb)) ** 0.7


class Strategy(NamedTuple):
    """A strategy of the search."""

    propose: Proposal  # gives the next eps
    partial: bool  # whether a radius below eps counts
    beyond_eps: bool = False  # whether it uses distances above eps


STRATEGIES: dict[str, Strategy] = {
    "root": Strategy(_guess, partial=True, beyond_eps=True),
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
        upper: the largest radius of interest; tolerance: the width of the final bracket.
        strategy: `root`, a safeguarded secant on d(eps) - eps; `envelope`, the paper's search, which halves the
            bracket and uses partial radii; `bisection`, which only uses whether the whole ball is certified.
    """
    get_method(method), get_relaxations(relaxation, method)
    if strategy not in STRATEGIES:
        raise PolycertError(f"unknown strategy {strategy!r}: choose one of {', '.join(STRATEGIES)}")
    if not (isinstance(upper, Real) and 0 < upper < math.inf) or not 0 < tolerance < upper:
        raise PolycertError(f"need 0 < tolerance < upper, got tolerance {tolerance} and upper {upper}")
    network, inputs = as_inputs(net, x)
    certifier = Certifier(network, method, relaxation, rigorous)
    graph = certifier.graph
    batch = batch_size_for(graph, get_method(method).numbers(graph), memory, threads, batch_size=batch_size)
    region = Ball(norm, upper, low, high, minimum=minimum).at(inputs)
    network.check_inside(region)
    unknown = inputs.new_zeros(len(inputs), dtype=torch.long)
    labels = None if y is None else as_labels(y, unknown, classes_of(certifier.graph))
    found = RadiusSearch(certifier, region, upper, tolerance).run(labels, [strategy], batch, threads, progress)[0]
    return replace(found, box=box_text(low, high), network=network_digest(network))


@dataclass(frozen=True, eq=False)
class RadiusSearch:
    """The search in [0, upper] for the largest certified radii of some samples."""

    certifier: Certifier
    region: Region
    upper: float
    tolerance: float

    def run(
        self, y: Tensor | None, strategies: Sequence[str], batch: int, threads: int, progress: Progress | None = None
    ) -> list[Radii]:
        """The radii that each strategy finds; `y` None takes the model's own predictions."""
        with plain_products(self.certifier.graph.device):
            parts = over_batches(
                lambda here: self._batch(here, None if y is None else y[here], strategies),
                len(self.region.x),
                batch,
                threads,
                progress,
            )
        return [Radii.join(found) for found in zip(*parts, strict=True)]

    def _batch(self, here: slice, y: Tensor | None, strategies: Sequence[str]) -> list[Radii]:
        region, graph = self.region[here], self.certifier.graph
        with torch.no_grad():
            outputs = graph.forward(region.x.to(graph.dtype))
        check_finite(graph, outputs)
        prediction = outputs.argmax(1)
        label = as_labels(y, prediction, classes_of(graph))
        bracket = _first(outputs.double(), label, self.upper)
        # All strategies try the middle first: that evaluation is shared, and counted for each.
        beyond_eps = any(STRATEGIES[name].beyond_eps for name in strategies)
        tried = self._tried(region, label, bracket, _middle, self.guesser, beyond_eps=beyond_eps)
        found = []
        for name in strategies:
            strategy = STRATEGIES[name]
            end = self._closed(region, label, _moved(bracket, tried, strategy.partial), strategy, self.guesser)
            end, proofs = self._proved(region, label, bracket, end, strategy)
            index = torch.arange(here.start, here.start + len(label), device=label.device)
            found.append(
                Radii(
                    index=index,
                    label=label,
                    prediction=prediction,
                    radius=end.low,
                    failed=end.high,
                    evaluations=end.evaluations,
                    proofs=proofs,
                    norm=region.norm,
                    method=self.certifier.method,
                    relaxation=self.certifier.relaxation,
                    rigorous=self.certifier.rigorous,
                    strategy=name,
                    upper=float(self.upper),
                    tolerance=self.tolerance,
                )
            )
        return found

    @cached_property
    def guesser(self) -> Certifier:
        """What evaluates the guesses."""
        return replace(self.certifier, rigorous=False)

    def _proved(
        self, region: Region, label: Tensor, before: Bracket, guessed: Bracket, strategy: Strategy
    ) -> tuple[Bracket, Tensor]:
        """Brackets whose lower end is proved, if the search is rigorous, and how many rigorous bounds that took."""
        none = torch.zeros_like(guessed.evaluations)
        if not self.certifier.rigorous:
            return guessed, none
        # Where the guesses overflow, which float64 may not, the search begins anew.
        overflown = (
            ((guessed.low == 0) & ~torch.isfinite(guessed.failed[:, 1]) & (before.high > 0)).nonzero().squeeze(1)
        )
        start = guessed._replace(low=torch.zeros_like(guessed.low)).put(overflown, before.at(overflown))
        active = (guessed.low > 0).nonzero().squeeze(1)
        eps, high = guessed.source[active], guessed.high[active]

        def proved(verdict: BatchVerdict) -> Tensor:
            return _proved_radius(eps, verdict, strategy.partial)

        def too_short(verdict: BatchVerdict) -> Tensor:
            return high - proved(verdict) > self.tolerance

        start = start._replace(evaluations=none.index_fill(0, active, 1))
        if len(active):
            verdict, _ = self.certifier.decide(replace(region[active], eps=eps), label[active], again=too_short)
            low = start.low.index_put((active,), proved(verdict))
            start = start._replace(low=low, high=torch.maximum(start.high, low))
        end = self._closed(region, label, start, strategy, self.certifier)
        return end._replace(evaluations=guessed.evaluations), end.evaluations

    def _closed(
        self, region: Region, label: Tensor, bracket: Bracket, strategy: Strategy, certifier: Certifier
    ) -> Bracket:
        """The brackets at the end: evaluate until none is wider than the tolerance."""
        while True:
            tried = self._tried(region, label, bracket, strategy.propose, certifier, beyond_eps=strategy.beyond_eps)
            if tried is None:
                return bracket
            bracket = _moved(bracket, tried, strategy.partial)

    def _tried(
        self,
        region: Region,
        label: Tensor,
        bracket: Bracket,
        propose: Proposal,
        certifier: Certifier,
        *,
        beyond_eps: bool,
    ) -> Tried | None:
        """One evaluation of the samples whose bracket is wider than the tolerance; None if there are none."""
        wide = (bracket.high - bracket.low > self.tolerance) & (bracket.evaluations < MAX_EVALUATIONS)
        active = wide.nonzero().squeeze(1)
        if len(active) == 0:
            return None
        here = replace(region[active], eps=propose(bracket.at(active), self.tolerance))
        verdict, _ = certifier.decide(here, label[active], beyond_eps=beyond_eps)
        return Tried(active, here.eps, verdict)


class Tried(NamedTuple):
    """The verdict of some samples, each at its own eps."""

    samples: Tensor
    eps: Tensor
    verdict: BatchVerdict


def _moved(bracket: Bracket, tried: Tried | None, partial: bool) -> Bracket:
    """The brackets after an evaluation of some samples."""
    if tried is None:
        return bracket
    return bracket.put(tried.samples, _narrowed(bracket.at(tried.samples), tried.eps, tried.verdict, partial))


def _first(outputs: Tensor, label: Tensor, upper: float) -> Bracket:
    """The first bracket: [0, upper], or [0, 0] for a misclassified sample, with the margin at eps = 0."""
    score = outputs.gather(1, label[:, None]).squeeze(1)
    margin = score - outputs.scatter(1, label[:, None], -torch.inf).amax(1)
    zero = torch.zeros_like(margin)
    high = torch.where(margin > 0, torch.full_like(zero, upper), zero)
    nowhere = zero.new_full((len(zero), 2), torch.nan)
    count = torch.zeros_like(label)
    return Bracket(zero, high, zero, _points(zero, margin), *(nowhere,) * 5, margin, count, count)


def _proved_radius(eps: Tensor, verdict: BatchVerdict, partial: bool) -> Tensor:
    """The radius that a verdict at `eps` proves; with `partial` also one below eps."""
    return torch.where(verdict.certified, eps, verdict.radius if partial else torch.zeros_like(eps))


def _narrowed(bracket: Bracket, eps: Tensor, verdict: BatchVerdict, partial: bool) -> Bracket:
    """The bracket after a verdict at `eps`: `low` moves up to what was proved, and `high` to an eps that failed."""
    yes = verdict.certified
    proved = _proved_radius(eps, verdict, partial)
    low = torch.maximum(bracket.low, proved)
    high = torch.where(yes, bracket.high, eps)
    gap = torch.where(verdict.distance > 0, verdict.distance - eps, torch.nan)
    # Comparisons with NaN are false: an unknown gap is never nearer than one at hand, a known one nearer than NaN.
    closest, closer = (
        (~(gap.abs() >= point[:, 1].abs()) & torch.isfinite(gap))[:, None] for point in (bracket.nearer, bracket.near)
    )
    here, gap_here, on_yes = _points(eps, verdict.margin), _points(eps, gap), yes[:, None]
    return Bracket(
        low,
        torch.maximum(high, low),
        torch.where(proved > bracket.low, eps, bracket.source),
        certified=torch.where(on_yes, here, bracket.certified),
        failed=torch.where(on_yes, bracket.failed, here),
        before=torch.where(on_yes, bracket.certified, bracket.failed),
        failed_before=torch.where(on_yes, bracket.failed_before, bracket.failed),
        near=torch.where(closest, bracket.nearer, torch.where(closer, gap_here, bracket.near)),
        nearer=torch.where(closest, gap_here, bracket.nearer),
        margin_at_0=bracket.margin_at_0,
        streak=torch.where(yes, bracket.streak.clamp(min=0) + 1, bracket.streak.clamp(max=0) - 1),
        evaluations=bracket.evaluations + 1,
    )
