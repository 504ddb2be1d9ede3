"""The polyhedral envelope: one half-space for each other class, and the distances from the sample to their borders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.bounding.backward import LOWER, Pass
from polycert.bounding.methods import get_method, passes
from polycert.errors import PolycertError
from polycert.forms import Dense, Differences, Form
from polycert.forms.form import rows_dot
from polycert.graph import Graph
from polycert.sets.ball import Region
from polycert.sets.geometry import dual_norm, least_norm
from polycert.sets.interval import Rounding, at_least

FAR = 1e6  # stands for infinity in signed distances, which must be finite; no hinge reaches so far


@dataclass(frozen=True, eq=False)
class Envelope:
    """`margin_i(x') >= slope_i . x' + offset_i` for all x' in the region, one row for each other class (Eq. (4)).

    Attributes:
        slope: U, `[batch, classes - 1, *input_shape]`.
        offset: `[batch, classes - 1]`; in a rigorous run already lowered by `slack`.
        classes: the other class of each row, `[batch, classes - 1]`.
        region: the sets in which it holds.
        slack: the bound of the rounding error that was taken off the offset, `[batch, classes - 1]`, or None.
        rounding: the error model of a rigorous run, or None.
    """

    slope: Tensor
    offset: Tensor
    classes: Tensor
    region: Region
    slack: Tensor | None = None
    rounding: Rounding | None = None

    def margins(self) -> Tensor:
        """Lower bounds of the margins over ball and box together, `[batch, classes - 1]`."""
        return at_least(self.region.concretise(Dense(self.slope), self.rounding, joint=True)[0] + self.offset)

    def values_at_x(self) -> Tensor:
        """The lower bounds `slope . x + offset` at the sample, up to rounding, `[batch, classes - 1]`."""
        return rows_dot(self.slope.flatten(2), self.region.x.flatten(1)) + self.offset

    def distances(self, signed: bool = False) -> Tensor:
        """Distance from the sample to each half-space inside the box (Lemma 1, Algorithm 1), `[batch, classes - 1]`.

        0 where the sample is not in the half-space; infinite where the hyperplane misses the box. Signed distances are
        for training: negative outside of the half-space, and always finite. Differentiable. In a rigorous run rounded
        down.
        """
        weight, down, up, gap = self._problem()
        falls = self.slope.flatten(2) > 0  # going down lowers the bound
        if signed:
            return _signed(weight, down, up, gap, falls, self.region.norm)
        caps = None if down is None or up is None else torch.where(falls, down, up)
        terms = self.slope[0, 0].numel() + 64
        relative = 0.0 if self.rounding is None else Rounding(torch.float64, 8).gamma(terms)
        return least_norm(weight, caps, gap, self.region.norm, relative)

    def distances_from(self, x: Tensor) -> Tensor:
        """Signed distances from other points of the box, `[batch, classes - 1]` (PER+at, Section III-B)."""
        moved = replace(self, region=replace(self.region, x=x), slack=None, rounding=None)
        return moved.distances(signed=True)

    def _problem(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
        """|a|, the caps below and above, and the gap b = U x + p; in float64 for a rigorous run."""
        dtype = self.slope.dtype if self.rounding is None else torch.float64
        region = self.region.to(dtype)
        coef = self.slope.flatten(2).to(dtype)
        gap = at_least(rows_dot(coef, region.x.flatten(1)) + self.offset.to(dtype))
        caps = region.box_caps()
        if caps is None:
            return coef.abs(), None, None, gap
        widen = 1 if self.rounding is None else 1 + 1e-15
        down, up = (cap.flatten(1).unsqueeze(1) * widen for cap in caps)
        return coef.abs(), down, up, gap

    def select(self, samples: Tensor, rows: Tensor) -> Envelope:
        """The envelope of some rows, each as a sample with one row; `samples` and `rows` are parallel indices."""
        return Envelope(
            self.slope[samples, rows].unsqueeze(1),
            self.offset[samples, rows].unsqueeze(1),
            self.classes[samples, rows].unsqueeze(1),
            self.region[samples],
            None if self.slack is None else self.slack[samples, rows].unsqueeze(1),
            self.rounding,
        )


def _signed(weight: Tensor, down: Tensor | None, up: Tensor | None, gap: Tensor, falls: Tensor, norm: float) -> Tensor:
    """`sign(b) ||delta||` to the hyperplane inside the box. Values and gradients are finite for every box."""
    inside = gap > 0
    need = torch.where(inside, gap, -gap)
    lemma = need / dual_norm(weight, norm).clamp(min=1e-6)
    if down is None or up is None:
        return torch.where(inside, lemma, -lemma)
    # Outside of the half-space the bound has to rise, so the caps swap.
    caps = torch.where(falls == inside.unsqueeze(2), down, up)
    joint = least_norm(weight, caps, need, norm)
    unreachable = torch.isinf(joint)
    joint = torch.where(unreachable, torch.zeros_like(joint), joint)
    positive = torch.where(unreachable, torch.full_like(lemma, FAR), joint)
    negative = torch.where(unreachable, lemma, joint)
    return torch.where(inside, positive, -negative)


class Margins(NamedTuple):
    """The margins `z_label - z_i` as rows over the output, and the class i of each row, `[batch, classes - 1]`."""

    form: Form
    classes: Tensor


def margin_rows(graph: Graph, label: Tensor) -> Margins:
    """The margins of all other classes, over the network's output."""
    count = classes_of(graph)
    grid = torch.arange(count - 1, device=label.device).expand(len(label), -1)
    others = grid + (grid >= label[:, None]).long()
    like = torch.empty(0, dtype=graph.dtype, device=graph.device)
    return Margins(Differences(label, others, count, like), others)


def classes_of(graph: Graph) -> int:
    """The number of classes; raises `PolycertError` unless the output is flat, with at least two entries."""
    if len(graph.output_shape) != 1 or graph.output_shape[0] < 2:
        raise PolycertError(
            f"a classifier has one output per class, at least 2, but this network's output has shape "
            f"{graph.output_shape}: use pc.bounds for other outputs"
        )
    return graph.output_shape[0]


def envelopes(
    graph: Graph, region: Region, label: Tensor, method: str, relaxation: str, rounding: Rounding | None
) -> list[Envelope]:
    """The envelopes of a batch, one for each relaxation that the name stands for."""
    return [envelope_of(run, label, method) for run in passes(graph, region, method, relaxation, rounding)]


def envelope_of(run: Pass, label: Tensor, method: str) -> Envelope:
    """The envelope of a batch by one pass of a method."""
    form, classes = margin_rows(run.graph, label)
    bound = get_method(method).final(run, form, LOWER)
    slope = bound.form.dense().coef
    slope = slope.expand(max(len(run.region.x), slope.shape[0]), *slope.shape[1:])
    return Envelope(slope, bound.offset, classes, run.region, bound.slack, run.rounding)


def better(first: Envelope, second: Envelope) -> Envelope:
    """For each row, the envelope with the larger distance up to eps; if both are equal, with the larger margin."""
    if first is second:
        return first
    near, far = first.distances(), second.distances()
    capped = [d.minimum(first.region.eps[:, None].to(d)) for d in (near, far)]
    take = (capped[1] > capped[0]) | ((capped[1] == capped[0]) & (second.margins() > first.margins()))

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(take.reshape(*take.shape, *(1,) * (a.dim() - 2)), b, a)

    slack = None if first.slack is None or second.slack is None else pick(first.slack, second.slack)
    return replace(first, slope=pick(first.slope, second.slope), offset=pick(first.offset, second.offset), slack=slack)
