"""alpha-CROWN: the slopes of the lines around activations are optimised for each row of each sample.

Pre-activation bounds are those of `crown` and stay fixed. Any slope is sound, as its offset is the least or greatest
value of `f(z) - slope z`. A few steps of Adam raise the bound of each row over the region. The best slopes found are
used, so the result is never looser than the relaxation from which it starts, up to rounding. Units that are linear on
their interval keep their slope.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.bounding.backward import LOWER, Bound, Pass, backward
from polycert.bounding.relaxations import LineOffsets, lines_of
from polycert.forms import Dense, Form
from polycert.rules import Activation, Lines
from polycert.rules.maximum import Planes
from polycert.sets.interval import Interval

STEPS = 20
RATE = 0.1
DECAY = 0.95  # of the rate, per step


class AlphaSlopes(NamedTuple):
    """The slopes of the lower and the upper line of one activation, `[samples, *shape]` each."""

    lower: Tensor
    upper: Tensor


@dataclass(eq=False)
class AlphaPass(Pass):
    """A pass whose lines have the given slopes."""

    slopes: dict[int, AlphaSlopes] = field(default_factory=dict)
    first_planes: Mapping[int, Planes] = field(default_factory=dict)

    def lines(self, index: int) -> Lines:
        """The lines with these slopes and the offsets that make them sound."""
        node = self.graph.nodes[index]
        assert isinstance(node.op, Activation)
        return lines_of(node.op, *self.slopes[index], self.interval(node.inputs[0]), self.rounding)

    def planes(self, index: int) -> Planes | None:
        """The planes of the relaxation from which the slopes start, with the lower lines of the rise as they are."""
        if index not in self.first_planes:
            return None
        node = self.graph.nodes[index]
        return self.graph.extremum(index).renewed(self.first_planes[index], self.lines(node.inputs[1]))

    def line_offsets(self, index: int) -> LineOffsets:
        """The offsets of the lines, computed anew each time as the slopes change."""
        return LineOffsets.of(self.lines(index))


def final_by_alpha(run: Pass, form: Form, side: int) -> Bound:
    """CROWN's bound of rows over the output, each with the best slopes found for it."""
    run.prepare(run.graph.output)
    if not run.graph.activations:
        return backward(run, run.graph.output, form, side)
    coef = form.dense().coef
    batch, rows = len(run.region.x), coef.shape[1]
    sample = torch.arange(batch, device=coef.device).repeat_interleave(rows)
    single = Dense(coef.expand(batch, *coef.shape[1:]).flatten(0, 1).unsqueeze(1))
    repeated = _one_row_per_sample(run, sample)
    with torch.no_grad():
        repeated.slopes = _optimise(repeated, single, side)
    found = backward(repeated, run.graph.output, single, side)
    at_input = found.form.dense().coef
    slack = None if found.slack is None else found.slack.reshape(batch, rows)
    return Bound(Dense(at_input.reshape(batch, rows, *at_input.shape[2:])), found.offset.reshape(batch, rows), slack)


def _one_row_per_sample(run: Pass, sample: Tensor) -> AlphaPass:
    """The pass with each sample repeated once per row (`sample` are the indices), and the relaxation's own slopes."""
    intervals = {k: v.of(sample) for k, v in run.intervals.items()}
    slopes = {}
    for index in run.graph.activations:
        lines = run.lines(index)
        slopes[index] = AlphaSlopes(lines.lower_slope.detach()[sample], lines.upper_slope.detach()[sample])
    region = run.region[sample]
    return AlphaPass(
        run.graph,
        region,
        run.relaxation,
        run.pre_activation,
        run.rounding,
        intervals,
        slopes=slopes,
        first_planes={k: pair.part(sample) for k in run.graph.layout.extrema if (pair := run.planes(k)) is not None},
    )


def _optimise(run: AlphaPass, form: Dense, side: int) -> dict[int, AlphaSlopes]:
    """The best slopes found for each sample, by Adam on `slope + range * alpha` with alpha starting at 0."""
    fixed = {k: Interval(v.lower.detach(), v.upper.detach()) for k, v in run.intervals.items()}
    trial = AlphaPass(
        run.graph, run.region, run.relaxation, run.pre_activation, None, fixed, first_planes=run.first_planes
    )
    ranges = {k: _slope_ranges(run, k) for k in run.slopes}
    if not any(bool((part > 0).any()) for pair in ranges.values() for part in pair):
        return run.slopes
    alphas = {k: [torch.zeros_like(part).requires_grad_() for part in pair] for k, pair in run.slopes.items()}
    optimiser = torch.optim.Adam([alpha for pair in alphas.values() for alpha in pair], lr=RATE)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, DECAY)
    best, highest = run.slopes, torch.full_like(run.region.radius, -torch.inf)
    for _ in range(STEPS):
        optimiser.zero_grad()
        with torch.enable_grad():
            for k, pair in run.slopes.items():
                moved = (slope + far * alpha for slope, far, alpha in zip(pair, ranges[k], alphas[k], strict=True))
                trial.slopes[k] = AlphaSlopes(*moved)
            value = -side * _value(trial, form, side)
            (-value).sum().backward(inputs=optimiser.param_groups[0]["params"])
        better = value > highest
        highest = torch.where(better, value.detach(), highest)
        best = {k: _better_slopes(better, trial.slopes[k], pair) for k, pair in best.items()}
        optimiser.step()
        schedule.step()
    return best


def _value(run: AlphaPass, form: Dense, side: int) -> Tensor:
    """The bound of each sample's only row over the region, `[samples]`."""
    bound = backward(run, run.graph.output, form, side)
    ends = run.region.concretise(bound.form, joint=True)
    return (ends[0 if side == LOWER else 1] + bound.offset).squeeze(1)


def _better_slopes(better: Tensor, new: AlphaSlopes, old: AlphaSlopes) -> AlphaSlopes:
    """The new slopes for the samples that are marked, else the old ones."""
    pick = better.reshape(-1, *(1,) * (new.lower.dim() - 1))
    return AlphaSlopes(*(torch.where(pick, a.detach(), b) for a, b in zip(new, old, strict=True)))


def _slope_ranges(run: AlphaPass, index: int) -> AlphaSlopes:
    """How far each slope may usefully move: 0 for stable units, and for a line that is optimal already."""
    node = run.graph.nodes[index]
    assert isinstance(node.op, Activation)
    given, lines = run.interval(node.inputs[0]), run.lines(index)
    pieces = node.op.pieces
    if pieces is None:
        chord = node.op.chord(*given)
        low, high = node.op.adaptive(*given)
        both = 2 * ((low - chord).abs() + (high - chord).abs())
        return AlphaSlopes(both, both)
    unstable = (lines.upper_offset > lines.lower_offset).to(given.lower)
    changes = [change for _, change in pieces.bends]
    far = unstable * sum(abs(change) for change in changes)
    fixed = torch.zeros_like(far)
    # The best upper line of a convex function is its chord, and so is the best lower line of a concave one.
    return AlphaSlopes(far if max(changes) > 0 else fixed, far if min(changes) < 0 else fixed)
