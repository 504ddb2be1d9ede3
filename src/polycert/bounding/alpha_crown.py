"""alpha-CROWN: the slopes of the lines around activations are optimised for each row of each sample.

Pre-activation bounds are those of `crown` and stay fixed. Any slope is sound, as its offset is the least or greatest
value of `f(z) - slope z`. A few steps of Adam raise the bound of each row over the region. After each step the slopes
go back to the nearest ones that are of use. The best slopes found are taken, so the result is never looser than the
relaxation from which it starts, up to rounding. Units that are linear on their interval keep their slope.

For ReLU, the best slopes of all give the bound of the linear program over the triangles around the units.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polycert.bounding.backward import LOWER, Bound, Pass, backward, pull
from polycert.bounding.slope_search import FreeLines
from polycert.forms import Dense, Form
from polycert.rules import Lines
from polycert.sets.interval import Interval, at_least

# Chosen on networks of the zoo for which no figures are reported: 99.8 % of what 300 steps gain. The rate is a share of
# the useful slopes' range.
STEPS = 30
RATE = 0.2
DECAY = 0.93  # of the rate, per step


def final_by_alpha(run: Pass, form: Form, side: int) -> Bound:
    """CROWN's bound of rows over the output, each with the best slopes found for it."""
    run.prepare(run.graph.output)
    if not run.graph.layout.activations_before(run.graph.output):
        return backward(run, run.graph.output, form, side)
    coef = form.dense().coef
    batch, rows = len(run.region.x), coef.shape[1]
    sample = torch.arange(batch, device=coef.device).repeat_interleave(rows)
    single = Dense(coef.expand(batch, *coef.shape[1:]).flatten(0, 1).unsqueeze(1))
    repeated = _SlopedPass(run.graph, run.region[sample], run.relaxation, run.pre_activation, run.rounding)
    repeated.intervals = {k: v.of(sample) for k, v in run.intervals.items()}
    with torch.no_grad():
        slopes = _best_slopes(run, sample, Dense(single.coef.detach()), side)
    repeated.use_slopes(slopes)
    found = backward(repeated, run.graph.output, single, side)
    at_input = found.form.dense().coef
    slack = None if found.slack is None else found.slack.reshape(batch, rows)
    best = Bound(Dense(at_input.reshape(batch, rows, *at_input.shape[2:])), found.offset.reshape(batch, rows), slack)
    return _better(run, best, backward(run, run.graph.output, form, side), side) if run.graph.layout.extrema else best


def _better(run: Pass, first: Bound, second: Bound, side: int) -> Bound:
    """Row by row the better bound over the region: planes around maxima may be nearer than slopes of their ReLUs."""
    place = 0 if side == LOWER else 1
    ends = [
        run.region.concretise(bound.form, run.rounding, joint=True)[place] + bound.offset for bound in (first, second)
    ]
    take = at_least(-side * ends[1]) > at_least(-side * ends[0])
    coefs = [bound.form.dense().coef for bound in (first, second)]
    form = Dense(torch.where(take.reshape(*take.shape, *(1,) * (coefs[0].dim() - 2)), coefs[1], coefs[0]))
    slack = None
    if first.slack is not None and second.slack is not None:
        slack = torch.where(take, second.slack, first.slack)
    return Bound(form, torch.where(take, second.offset, first.offset), slack)


def _best_slopes(run: Pass, sample: Tensor, form: Dense, side: int) -> dict[int, tuple[Tensor, Tensor]]:
    """The best slopes found for each row, by Adam from the relaxation's own; `sample` are the samples of the rows.

    They are those of the lower and the upper lines of each activation, `[rows, *shape]` each.
    """
    trial = _TrialPass(run.graph, run.region[sample], run.relaxation, run.pre_activation)
    for k in run.graph.layout.activations_before(run.graph.output):
        given = run.interval(run.graph.nodes[k].inputs[0])
        lines = Lines(*(part.detach() for part in run.lines(k)[:4]))
        trial.free[k] = FreeLines(run.graph.activation(k), Interval(*(end.detach() for end in given)), lines, sample)
    steps = STEPS if any(line.moves for free in trial.free.values() for line in (free.lower, free.upper)) else 0
    highest, rate = torch.full_like(trial.region.radius, -torch.inf), RATE
    for step in range(1, steps + 1):
        value, worst = trial.value(form, side)
        better = -side * value > highest
        highest = torch.where(better, -side * value, highest)
        for free in trial.free.values():
            free.lower.keep(better)
            free.upper.keep(better)
        if step < steps:
            trial.visit(worst)
            for free in trial.free.values():
                free.climb(side, rate, step)
        rate *= DECAY
    return {k: free.best_slopes() for k, free in trial.free.items()}


@dataclass(eq=False)
class _SlopedPass(Pass):
    """A pass with given slopes. A maximum is a sum with a ReLU whose slopes are given, with no planes around it."""

    def planes(self, index: int) -> None:
        """None: see above."""
        return


@dataclass(eq=False)
class _TrialPass(_SlopedPass):
    """A pass without rounding terms and with one row for each sample, whose slopes move."""

    free: dict[int, FreeLines] = field(default_factory=dict)

    def relaxed(self, form: Form, index: int, side: int) -> tuple[Form, Tensor, Tensor | float]:
        """The rows through the lines that they use, and the products with the offsets; there is no spread."""
        return *self.free[index].relaxed(form, side), 0.0

    def value(self, form: Dense, side: int) -> tuple[Tensor, Tensor]:
        """The bound of each sample's only row over the region, `[samples]`, and the point that attains it."""
        pulled = pull(self, self.graph.output, form, side)
        with torch.enable_grad():
            coef = pulled.forms[0].dense().coef.detach().requires_grad_()
            ends = self.region.concretise(Dense(coef), joint=True)[0 if side == LOWER else 1]
            (worst,) = torch.autograd.grad(ends.sum(), coef)
        return (ends.detach() + pulled.middle).squeeze(1), worst.squeeze(1)

    def visit(self, point: Tensor) -> None:
        """Show all activations what they are given at a point `[samples, *shape]` if the rows' lines replace them."""
        values = {0: point}
        for index in reversed(self.graph.ancestors(self.graph.output)):
            node = self.graph.nodes[index]
            if node.op is not None:
                op = self.free.get(index, node.op)
                values[index] = op.forward(*(values[i] for i in node.inputs))
