"""Slopes that are searched: the range of those that are of use, the gradient, and steps that stay inside."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from polycert.bounding.alpha_crown import _TrialPass
from polycert.bounding.backward import LOWER, UPPER
from polycert.bounding.methods import passes
from polycert.bounding.relaxations import RELAXATIONS
from polycert.bounding.slope_search import FreeLine, FreeLines, useful_slopes
from polycert.forms import Dense
from polycert.rules import Activation
from polycert.rules.activation import Pieces
from polycert.rules.bump import Gelu
from polycert.rules.convex import Exp, Softplus
from polycert.rules.piecewise_linear import LeakyRelu, PiecewiseLinear, Relu
from polycert.rules.s_shaped import Tanh
from polycert.sets.interval import Interval
from tests.helpers.cases import NAMED, ball, ready

F64 = torch.float64


class Clip(PiecewiseLinear):
    """`min(max(z, -1/4), 1/4)`: two kinks, of which both lines may touch one or the other."""

    @property
    def pieces(self) -> Pieces:
        return Pieces(-0.25, (0.0, 1.0, 0.0), (-0.25, 0.25))


FUNCTIONS: dict[str, Activation] = {
    "relu": Relu(()),
    "leaky": LeakyRelu((), leak=0.1),
    "concave": LeakyRelu((), leak=1.7),
    "abs": LeakyRelu((), leak=-1.0),
    "clip": Clip(()),
    "tanh": Tanh(()),
    "sigmoid": Tanh((), shift=0.5, outer=0.5, inner=0.5),
    "gelu": Gelu(()),
    "exp": Exp(()),
    "softplus": Softplus(()),
}


def intervals(count: int = 200) -> Interval:
    """Narrow and wide intervals, left, right and across 0, `[1, count]`."""
    generator = torch.Generator().manual_seed(5)
    centre = torch.randn(1, count, generator=generator, dtype=F64)
    width = 10 ** (torch.rand(1, count, generator=generator, dtype=F64) * 2 - 1.5)
    return Interval(centre - width, centre + width)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_other_line_is_better_anywhere(name: str) -> None:
    """A line whose slope is out of the range is nowhere nearer than the one at the end of the range."""
    op, given = FUNCTIONS[name], intervals()
    ranges = useful_slopes(op, given, RELAXATIONS["adaptive"](op, given, None))
    at = given.lower + torch.linspace(0, 1, 41, dtype=F64)[:, None] * (given.upper - given.lower)
    # Secants of smooth functions are taken at a few points, so that their ranges are a little too narrow.
    gap = op.offset_range(op.chord(*given), *given)
    room = (0.0 if op.pieces else 0.1) * (gap.upper - gap.lower) + 1e-9 * (1 + op.peak(*given))
    outside = 0
    for slope in torch.linspace(-3, 3, 121, dtype=F64):
        for (low, high), sign in zip(ranges, (1, -1), strict=True):
            other = slope.expand_as(low)
            nearest = torch.minimum(torch.maximum(other, low), high)
            theirs, ours = (line(op, s, given, sign) + s * at for s in (other, nearest))
            assert bool((sign * (ours - theirs) >= -room).all())
            outside += int((nearest != other).sum())
    assert outside > 1000


def line(op: Activation, slope: Tensor, given: Interval, sign: int) -> Tensor:
    """The offset of the lower (`sign` 1) or the upper line."""
    found = op.offset_range(slope, *given)
    return found.lower if sign > 0 else found.upper


def test_the_range_of_a_piecewise_linear_function_is_that_of_its_pieces() -> None:
    given = Interval(torch.tensor([[-2.0, -1.0, 1.0]]), torch.tensor([[1.0, -0.5, 3.0]]))
    for leak in (0.0, 0.2, -1.0):
        op = LeakyRelu((), leak=leak)
        lines = RELAXATIONS["adaptive"](op, given, None)
        lower, upper = useful_slopes(op, given, lines)
        assert lower.lower.tolist() == [[pytest.approx(slope) for slope in (leak, leak, 1.0)]]
        assert lower.upper.tolist() == [[pytest.approx(slope) for slope in (1.0, leak, 1.0)]]
        for end in upper:
            assert torch.equal(end, lines.upper_slope)


class Question(NamedTuple):
    """Rows over a graph's output, one for each sample, and a trial of them."""

    trial: _TrialPass
    form: Dense

    @property
    def lines(self) -> list[FreeLine]:
        """The lower and the upper lines of all activations."""
        return [line for free in self.trial.free.values() for line in (free.lower, free.upper)]


def question(name: str, relaxation: str) -> Question:
    """The sum of the outputs of a case's network; of `clip` that of `relu` with the other activation."""
    _, net, x, _ = ready(NAMED["relu" if name == "clip" else name])
    graph = net.bind()
    if name == "clip":
        nodes = [replace(node, op=Clip(node.shape)) if isinstance(node.op, Relu) else node for node in graph.nodes]
        graph = replace(graph, nodes=tuple(nodes))
    run = passes(graph, ball(math.inf, eps=0.3).at(x), "alpha-crown", relaxation)[0]
    run.prepare(graph.output)
    trial = _TrialPass(graph, run.region, run.relaxation, run.pre_activation)
    for k in graph.layout.activations_before(graph.output):
        given = run.interval(graph.nodes[k].inputs[0])
        trial.free[k] = FreeLines(graph.activation(k), given, run.lines(k), torch.arange(len(x)))
    return Question(trial, Dense(torch.ones(len(x), 1, *graph.output_shape, dtype=F64)))


NETWORKS = ("relu", "leaky-1.7", "clip", "tanh", "gelu", "block-identity", "conv-stack")


@pytest.mark.parametrize("side", [LOWER, UPPER], ids=["lower", "upper"])
@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_the_gradient_is_that_of_finite_differences(name: str, side: int) -> None:
    """At random slopes inside their ranges, so that no line touches its function at two points."""
    trial, form = asked = question(name, "adaptive")
    generator = torch.Generator().manual_seed(1)
    for line in asked.lines:
        share = torch.rand(line.slope.shape, generator=generator, dtype=F64) * 0.8 + 0.1
        line.slope = line.span.lower + share * line.range
    trial.visit(trial.value(form, side)[1])
    gradients = [part for free in trial.free.values() for part in free.gradients(side)]
    compared = 0
    for line, gradient in zip(asked.lines, gradients, strict=True):
        for unit in range(min(line.slope.shape[1], 12) if line.moves else 0):
            kept, step = line.slope, 1e-6 * line.range[:, unit]
            ends = []
            for sign in (-1, 1):
                line.slope = kept.clone()
                line.slope[:, unit] += sign * step
                ends.append(-side * trial.value(form, side)[0])
            line.slope = kept
            torch.testing.assert_close(ends[1] - ends[0], 2 * step * gradient[:, unit], rtol=1e-3, atol=2e-11)
            compared += int((gradient[:, unit].abs() * line.range[:, unit] > 1e-3).sum())
    assert compared > 0


@pytest.mark.parametrize("relaxation", ["parallel", "adaptive"])
@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_slopes_stay_inside_their_ranges(name: str, relaxation: str) -> None:
    """Also with a rate that is far too large. Lines that do not move keep the slope of the relaxation."""
    trial, form = asked = question(name, relaxation)
    starts = [line.slope for line in asked.lines]
    for step in range(1, 6):
        trial.visit(trial.value(form, LOWER)[1])
        for free in trial.free.values():
            free.climb(LOWER, 1.5, step)
    moved = 0
    for line, start in zip(asked.lines, starts, strict=True):
        assert bool(((line.slope >= line.span.lower) & (line.slope <= line.span.upper)).all())
        assert torch.equal(line.slope[line.range == 0], start[line.range == 0])
        moved += int((line.slope != start).sum())
    assert moved > 0
