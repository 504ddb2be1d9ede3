"""`certify` and `envelope`, and the verdict of a batch.

A batch is decided in the network's own type, and once more in float64 where rounding may prevent a certificate or
shorten a radius.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polycert.bounding.backward import Pass
from polycert.bounding.chunking import batch_size_for
from polycert.bounding.methods import error_model, get_method, get_relaxations, live_graph, passes, provable
from polycert.certification.envelope import Envelope, better, classes_of, envelope_of
from polycert.graph import Graph, Network
from polycert.graph.fingerprint import network_digest
from polycert.graph.inputs import as_inputs, as_labels, check_finite
from polycert.records.certificates import Certificates
from polycert.records.provenance import box_text
from polycert.runtime.execution import Progress, over_batches, plain_products
from polycert.sets.ball import Array, Ball, Region
from polycert.sets.interval import Interval, Rounding

# A sample is decided again in float64 if its margins would be positive with this many times their slack added.
# Rounding lowers a margin by its slack, and by wider pre-activation bounds: at most 4.4 times the slack on 500 images
# of one released network. A smaller factor would cost certificates, never soundness.
SECOND_LOOK = 5
# The same for a radius below eps that could be longer by more than this share.
RADIUS_GAIN = 1e-2
DISTANCE_NUMBERS = 2**18  # coefficients whose distances are computed at a time, so that they stay in the cache


class BatchVerdict(NamedTuple):
    """What one envelope proves of a batch; all fields are `[batch]`."""

    radius: Tensor  # float64
    certified: Tensor
    margin: Tensor  # float64
    nearest: Tensor
    distance: Tensor  # float64, to the envelope; infinite where it was not computed
    inconclusive: Tensor  # whether only rounding or overflow may have prevented the certificate
    shortened: Tensor  # whether rounding may have prevented the certificate, or a noticeably larger radius


def verdict_of(env: Envelope, *, beyond_eps: bool = False) -> BatchVerdict:
    """The verdict of a batch: margins over the ball, then distances of the rows whose margin is not positive.

    `beyond_eps` also computes the distance, above eps, of samples whose margins are all positive.
    """
    margins = env.margins()
    unproved = ~(margins > 0)
    eps = env.region.eps
    distance = _put_distances(torch.full_like(margins, torch.inf, dtype=torch.float64), env, unproved)
    if beyond_eps:
        distance = _put_nearest(distance, env, margins, ~unproved.any(1, keepdim=True))
    nearest_distance, by_distance = distance.min(1)
    certified = nearest_distance > eps
    margin, by_margin = margins.min(1)
    row = torch.where(certified, by_margin, by_distance)
    close = margins if env.slack is None else margins + SECOND_LOOK * env.slack
    inconclusive = ~certified & ((close > 0) | ~torch.isfinite(margins)).all(1)
    shortened = inconclusive | (~certified & _may_grow(env, by_distance))
    nearest = env.classes.gather(1, row[:, None]).squeeze(1)
    radius = torch.minimum(nearest_distance, eps)
    return BatchVerdict(radius, certified, margin.double(), nearest, nearest_distance, inconclusive, shortened)


def _may_grow(env: Envelope, nearest: Tensor) -> Tensor:
    """Whether the distances may be positive, and that of the nearest row noticeably larger, without rounding.

    Returns `[batch]`. A distance grows about as the value of its row at the sample does.
    """
    if env.slack is None:
        return torch.zeros_like(nearest, dtype=torch.bool)
    at_x = env.values_at_x()
    most = at_x + SECOND_LOOK * env.slack
    before, after = (values.gather(1, nearest[:, None]).squeeze(1) for values in (at_x, most))
    return (most > 0).all(1) & ~(after <= (1 + RADIUS_GAIN) * before)


def _put_distances(distance: Tensor, env: Envelope, wanted: Tensor) -> Tensor:
    """`distance` `[batch, classes - 1]` with the distances of the wanted rows put in, computed a few at a time."""
    samples, rows = wanted.nonzero(as_tuple=True)
    if samples.numel() == 0:
        return distance
    few = max(1, DISTANCE_NUMBERS // math.prod(env.slope.shape[2:]))
    for some, of in zip(samples.split(few), rows.split(few), strict=True):
        found = env.select(some, of).distances().squeeze(1).double()
        distance = distance.index_put((some, of), found.nan_to_num(nan=0.0, posinf=torch.inf))
    return distance


def _put_nearest(distance: Tensor, env: Envelope, margins: Tensor, proved: Tensor) -> Tensor:
    """`distance` with those rows of the proved samples put in that can be the nearest.

    The least value of a form over a ball is convex in the radius. Beyond eps it is above the line through its values at
    0 and eps, so that line's zero is a lower bound of the distance.
    """
    at_x = env.values_at_x()
    fall = at_x - margins
    least = torch.where(fall > 0, env.region.eps[:, None] * at_x / fall, torch.inf)
    first = torch.zeros_like(least, dtype=torch.bool).scatter(1, least.argmin(1, keepdim=True), True) & proved
    distance = _put_distances(distance, env, first)
    return _put_distances(distance, env, proved & ~first & (least < distance.amin(1, keepdim=True)))


def inconclusive(verdict: BatchVerdict) -> Tensor:
    """The samples for which float64 may find a certificate, `[batch]`."""
    return verdict.inconclusive


def shortened(verdict: BatchVerdict) -> Tensor:
    """The samples for which float64 may find a certificate or a larger radius, `[batch]`."""
    return verdict.shortened


@dataclass(frozen=True, eq=False)
class Certifier:
    """Decides batches in the network's own type, and some of their samples again in float64."""

    net: Network
    method: str
    relaxation: str
    rigorous: bool

    @cached_property
    def graph(self) -> Graph:
        """The network's graph in its own type."""
        return self.net.bind()

    @cached_property
    def double(self) -> Graph:
        """The network's graph in float64."""
        return self.net.bind(torch.float64)

    def rounding(self, graph: Graph) -> Rounding | None:
        """The error model of a rigorous run, or None."""
        return error_model(graph) if self.rigorous else None

    def passes(self, graph: Graph, region: Region) -> list[Pass]:
        """New passes over a region in the graph's type, one for each relaxation that the name stands for."""
        return passes(graph, region, self.method, self.relaxation, self.rounding(graph))

    def envelope(self, runs: Sequence[Pass], label: Tensor) -> Envelope:
        """The envelope by the relaxation's passes; for `best`, row by row the better one."""
        return reduce(better, [envelope_of(run, label, self.method) for run in runs])

    @cached_property
    def _first_graph(self) -> Graph:
        """The graph that decides first: in the network's own type, unless that allows no proof."""
        return provable(self.net, self.graph) if self.rigorous else self.graph

    def decide(
        self,
        region: Region,
        label: Tensor,
        *,
        beyond_eps: bool = False,
        again: Callable[[BatchVerdict], Tensor] = inconclusive,
    ) -> tuple[BatchVerdict, Tensor]:
        """Return the verdict of each sample, and whether it was decided in float64.

        For proofs the caller enters `plain_products`, once for all of its threads.

        Args:
            region: the sets.
            label: `[batch]`.
            beyond_eps: as in `verdict_of`.
            again: which samples a rigorous run decides again in float64, given the first verdict.
        """
        with torch.no_grad() if get_method(self.method).uses_gradients else torch.inference_mode():
            verdict, in_double = self._decided(region, label, again, beyond_eps=beyond_eps)
        # Tensors of inference mode can neither be changed nor be used with gradients: return ordinary ones.
        return BatchVerdict(*(part.clone() for part in verdict)), in_double.clone()

    def _decided(
        self, region: Region, label: Tensor, again: Callable[[BatchVerdict], Tensor], *, beyond_eps: bool
    ) -> tuple[BatchVerdict, Tensor]:
        first = self._first_graph
        runs = self.passes(first, region.to(first.dtype))
        verdict = verdict_of(self.envelope(runs, label), beyond_eps=beyond_eps)
        in_double = torch.full_like(verdict.certified, first.dtype == torch.float64)
        if not self.rigorous or first.dtype == torch.float64:
            return verdict, in_double
        # The claim is about the given inputs: where this type does not hold them exactly, only float64 counts.
        rounded = (region.x.to(first.dtype).double() != region.x.double()).flatten(1).any(1)
        some = (again(verdict) | rounded).nonzero().squeeze(1)
        if len(some) == 0:
            return verdict, in_double
        finer = self.passes(self.double, region[some].to(torch.float64))
        if not bool(rounded.any()):  # the set in the shorter type holds the one in float64, and so do its bounds
            for run, before in zip(finer, runs, strict=True):
                run.given = {k: _in_double(v.of(some)) for k, v in before.intervals.items()}
        second = verdict_of(self.envelope(finer, label[some]), beyond_eps=beyond_eps)
        merged = (a.index_put((some,), b) for a, b in zip(verdict, second, strict=True))
        return BatchVerdict(*merged), in_double.index_fill(0, some, True)


def _in_double(given: Interval) -> Interval:
    return Interval(given.lower.double(), given.upper.double())


def certify(
    net: Network | nn.Module,
    x: Array,
    y: Array | None,
    ball: Ball,
    *,
    method: str = "crown",
    relaxation: str = "parallel",
    rigorous: bool = True,
    batch_size: int | None = None,
    memory: int | None = None,
    threads: int = 1,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Certificates:
    """Prove, for each sample, how far it may move inside ball and box without losing its label (PEC).

    Args:
        net: from `capture` or `load`, or a module.
        x: inputs `[n, *input_shape]`; y: labels `[n]`, or None for the model's own predictions.
        ball: the set around each sample.
        method: `ibp`, `forward`, `crown`, `crown-ibp`, `alpha-crown`.
        relaxation: `parallel` (the paper's), `adaptive` (CROWN's), or `best`: the better of both for each sample and
            class.
        rigorous: cover every rounding error, so that a certificate is a proof about the real-valued network with
            the stored weights. False is faster, and no proof.
        batch_size: samples per batch; memory: bytes for the batches of all threads, if no batch size is given.
        threads: batches that are computed at once; torch's own threads should then be one.
        seed: has no effect; every long call takes it, and nothing here is random.
        progress: called with (samples done, samples in all).

    Examples:
        >>> net = torch.nn.Linear(2, 2)
        >>> certs = certify(net, torch.rand(3, 2), None, Ball(eps=0.01))
        >>> len(certs)
        3
    """
    get_method(method), get_relaxations(relaxation, method)
    network, inputs = as_inputs(net, x)
    region = ball.at(inputs)
    network.check_inside(region)
    certifier = Certifier(network, method, relaxation, rigorous)
    graph = certifier.graph
    classes = classes_of(graph)
    batch = batch_size_for(graph, get_method(method).numbers(graph), memory, threads, batch_size=batch_size)
    with torch.no_grad():
        outputs = torch.cat([graph.forward(part.to(graph.dtype)) for part in inputs.split(batch)])
    check_finite(graph, outputs)
    prediction = outputs.argmax(1)
    label = as_labels(y, prediction, classes)
    with plain_products(graph.device):
        parts = over_batches(
            lambda part: _certify_part(certifier, region[part], label[part], prediction[part], part.start),
            len(inputs),
            batch,
            threads,
            progress,
        )
    found = Certificates.join(parts)
    return replace(found, box=box_text(ball.low, ball.high), network=network_digest(network))


def _certify_part(certifier: Certifier, region: Region, label: Tensor, prediction: Tensor, begin: int) -> Certificates:
    clock = time.perf_counter()
    verdict, in_double = certifier.decide(region, label, again=shortened)
    # A misclassified sample has radius 0. Where the real-valued network is certified, only the forward pass is wrong.
    wrong = (prediction != label) & ~verdict.certified
    radius = torch.where(wrong, torch.zeros_like(verdict.radius), verdict.radius)
    seconds = (time.perf_counter() - clock) / len(label)
    own_type = str(certifier.graph.dtype).removeprefix("torch.")
    return Certificates(
        index=torch.arange(begin, begin + len(label), device=label.device),
        label=label,
        prediction=prediction,
        margin=verdict.margin,
        certified=verdict.certified,
        radius=radius,
        nearest=verdict.nearest,
        eps=region.eps,
        seconds=torch.full_like(radius, seconds),
        dtype=tuple("float64" if flag else own_type for flag in in_double.tolist()),
        norm=region.norm,
        method=certifier.method,
        relaxation=certifier.relaxation,
        rigorous=certifier.rigorous,
    )


def envelope(
    net: Network | nn.Module,
    x: Array,
    y: Array | None,
    ball: Ball,
    *,
    method: str = "crown",
    relaxation: str = "parallel",
    rigorous: bool = False,
) -> Envelope:
    """The polyhedral envelope of each sample: `.slope` (U), `.offset`, `.distances(signed=False)`.

    Differentiable in the network's parameters. Arguments as in `certify`; the whole batch at once.
    """
    network, inputs = as_inputs(net, x)
    graph = live_graph(network, inputs, rigorous)
    with torch.no_grad():
        prediction = graph.forward(inputs.to(graph.dtype)).argmax(1)
    label = as_labels(y, prediction, classes_of(graph))
    region = ball.at(inputs.to(graph.dtype))
    if rigorous:
        network.check_inside(region)
    with plain_products(graph.device) if rigorous else nullcontext():
        certifier = Certifier(network, method, relaxation, rigorous)
        return certifier.envelope(certifier.passes(graph, region), label)
