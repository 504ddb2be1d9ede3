"""Optimised slopes (alpha-CROWN): every row of every sample gets lines of its own, improved by gradient steps.

Hidden layers are bounded as in `crown` and stay fixed. The slopes of the lines around each activation are then free:
any slope is sound, because its offset is the extreme of `f(z) - slope z`. A few steps of Adam raise each row's bound
over the region; the best slopes met are kept, so the result is never looser than the relaxation it starts from (up to
rounding). Units that are straight on their interval keep their own slope.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.bounding.backward import LOWER, Bound, Pass, backward
from polycert.bounding.relaxations import LineOffsets, lines_of
from polycert.forms import Dense, Form
from polycert.rules import Activation, Lines
from polycert.sets.interval import Interval

STEPS = 20
RATE = 0.1
FADE = 0.95


class AlphaSlopes(NamedTuple):
    """Of the lower and the upper line of one activation, `[samples, *shape]`."""

    lower: Tensor
    upper: Tensor


@dataclass(eq=False)
class AlphaPass(Pass):
    """A pass whose lines have given slopes."""

    slopes: dict[int, AlphaSlopes] = field(default_factory=dict)

    def lines(self, index: int) -> Lines:
        """Offsets that make the slopes sound."""
        node = self.graph.nodes[index]
        assert isinstance(node.op, Activation)
        return lines_of(node.op, *self.slopes[index], self.interval(node.inputs[0]), self.rounding)

    def line_offsets(self, index: int) -> LineOffsets:
        """Looked up anew, as slopes change."""
        return LineOffsets.of(self.lines(index))


def final_by_alpha(run: Pass, form: Form, side: int) -> Bound:
    """Pull the rows over the output to the input, each with the best slopes found for it."""
    run.prepare(run.graph.output)
    if not run.graph.activations:
        return backward(run, run.graph.output, form, side)
    coef = form.dense().coef
    batch, rows = len(run.region.x), coef.shape[1]
    sample = torch.arange(batch, device=coef.device).repeat_interleave(rows)
    single = Dense(coef.expand(batch, *coef.shape[1:]).flatten(0, 1).unsqueeze(1))
    spread = _one_row_a_sample(run, sample)
    with torch.no_grad():
        spread.slopes = _optimise(spread, single, side)
    found = backward(spread, run.graph.output, single, side)
    at_input = found.form.dense().coef
    slack = None if found.slack is None else found.slack.reshape(batch, rows)
    return Bound(Dense(at_input.reshape(batch, rows, *at_input.shape[2:])), found.offset.reshape(batch, rows), slack)


def _one_row_a_sample(run: Pass, sample: Tensor) -> AlphaPass:
    """The same pass with every sample as often as it has rows, at the relaxation's own slopes."""
    intervals = {k: Interval(v.lower[sample], v.upper[sample]) for k, v in run.intervals.items()}
    slopes = {}
    for index in run.graph.activations:
        lines = run.lines(index)
        slopes[index] = AlphaSlopes(lines.lower_slope.detach()[sample], lines.upper_slope.detach()[sample])
    return AlphaPass(run.graph, run.region[sample], run.relaxation, run.hidden, run.rounding, intervals, slopes=slopes)


def _optimise(run: AlphaPass, form: Dense, side: int) -> dict[int, AlphaSlopes]:
    """The best slopes met on the way, for each sample."""
    fixed = {k: Interval(v.lower.detach(), v.upper.detach()) for k, v in run.intervals.items()}
    trial = AlphaPass(run.graph, run.region, run.relaxation, run.hidden, None, fixed)
    reach = {k: _reach(run, k) for k in run.slopes}
    if not any(bool((part > 0).any()) for pair in reach.values() for part in pair):
        return run.slopes
    ways = {k: [torch.zeros_like(part).requires_grad_() for part in pair] for k, pair in run.slopes.items()}
    mover = torch.optim.Adam([way for pair in ways.values() for way in pair], lr=RATE)
    fading = torch.optim.lr_scheduler.ExponentialLR(mover, FADE)
    best, highest = run.slopes, torch.full_like(run.region.radius, -torch.inf)
    for _ in range(STEPS):
        mover.zero_grad()
        with torch.enable_grad():
            trial.slopes = {k: _moved(pair, reach[k], ways[k]) for k, pair in run.slopes.items()}
            value = -side * _value(trial, form, side)
            (-value).sum().backward(inputs=mover.param_groups[0]["params"])
        better = value > highest
        highest = torch.where(better, value.detach(), highest)
        best = {k: _choose(better, trial.slopes[k], pair) for k, pair in best.items()}
        mover.step()
        fading.step()
    return best


def _moved(slopes: AlphaSlopes, reach: AlphaSlopes, ways: list[Tensor]) -> AlphaSlopes:
    return AlphaSlopes(*(slope + far * way for slope, far, way in zip(slopes, reach, ways, strict=True)))


def _value(run: AlphaPass, form: Dense, side: int) -> Tensor:
    """The bound of each sample's only row over the region, `[samples]`."""
    bound = backward(run, run.graph.output, form, side)
    ends = run.region.concretise(bound.form, joint=True)
    return (ends[0 if side == LOWER else 1] + bound.offset).squeeze(1)


def _choose(better: Tensor, new: AlphaSlopes, old: AlphaSlopes) -> AlphaSlopes:
    pick = better.reshape(-1, *(1,) * (new.lower.dim() - 1))
    return AlphaSlopes(*(torch.where(pick, a.detach(), b) for a, b in zip(new, old, strict=True)))


def _reach(run: AlphaPass, index: int) -> AlphaSlopes:
    """How far each slope may usefully move: 0 for units that are straight, and for a line that is best as it is."""
    node = run.graph.nodes[index]
    assert isinstance(node.op, Activation)
    given, lines = run.interval(node.inputs[0]), run.lines(index)
    pieces = node.op.pieces
    if pieces is None:
        chord = node.op.chord(*given)
        low, high = node.op.adaptive(*given)
        both = 2 * ((low - chord).abs() + (high - chord).abs())
        return AlphaSlopes(both, both)
    bent = (lines.upper_offset > lines.lower_offset).to(given.lower)
    changes = [change for _, change in pieces.bends]
    far = bent * sum(abs(change) for change in changes)
    still = torch.zeros_like(far)
    # A convex function has one best line above it, a concave one below.
    return AlphaSlopes(far if max(changes) > 0 else still, far if min(changes) < 0 else still)
