"""Bounds pulled back to the input (CROWN, Appendix A-B), and the state that all methods share.

Rounding: the claim carried by a backward pass is "rows(x) >= <computed coefficients, node value> + offset - slack".
Each step adds to the slack what its own arithmetic may have got wrong, weighed by the sizes the node's values can have;
the computed coefficients are then taken as exact, so errors never compound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.forms import Form, Identity, Rows
from polycert.graph import Graph, Node
from polycert.relaxations import Relaxation
from polycert.rounding import Rounding
from polycert.rules import Activation, Interval, Linear, Lines
from polycert.sets import Region

LOWER, UPPER = -1, 1
# Above this share of units that are not straight, single columns cost more than the whole product.
FEW_UNITS = 1 / 8


class Bound(NamedTuple):
    """One side of linear bounds: `form(x) + offset`, `slack` being the part of the offset that covers rounding."""

    form: Form
    offset: Tensor  # [batch, rows], already moved outward by the slack
    slack: Tensor | None  # [batch, rows]


class Pulled(NamedTuple):
    """Rows pulled back to nodes at which the pass stopped: `sum_k forms[k](value_k) + middle -+ spread -+ slack`."""

    forms: dict[int, Form]
    middle: Tensor | float
    spread: Tensor | float
    slack: Tensor | float
    passed: dict[int, Form]  # the rows over each activation on the way, if they were to be kept


class Shortcut(NamedTuple):
    """A node's own entries as functions of the input, one slope per unit: `at_input(x) + middle`, give or take offsets.

    The linear part of a network with one slope per unit composes, so later rows jump from the node to the input by one
    product; only the offsets of activations in between, `inner`, need the rows' coefficients there.
    """

    at_input: Form
    middle: Tensor  # [batch, entries]
    inner: dict[int, Form]
    slack: Tensor | None  # [batch, entries]: rounding error of the entries themselves
    reach: Tensor | None  # [batch, entries]: size of all that an entry adds up


@dataclass(eq=False)
class Pass:
    """Bounds of one graph over one region: what has been found so far, and how more is found."""

    graph: Graph
    region: Region
    relaxation: Relaxation
    hidden: Callable[[Pass, int], Interval]
    rounding: Rounding | None = None
    intervals: dict[int, Interval] = field(default_factory=dict)
    shortcuts: dict[int, Shortcut] = field(default_factory=dict)
    _lines: dict[int, Lines] = field(default_factory=dict)
    _sizes: dict[int, Tensor] = field(default_factory=dict)

    @property
    def like(self) -> Tensor:
        """Carries type and device."""
        return self.region.x

    def prepare(self, target: int) -> None:
        """Bound every activation's input that `target` depends on, in order."""
        needed = set(self.graph.ancestors(target))
        for index in self.graph.activations:
            if index in needed:
                self.interval(self.graph.nodes[index].inputs[0])

    def interval(self, index: int) -> Interval:
        """Bounds of a node's value, by the method for hidden layers."""
        if index not in self.intervals:
            self.intervals[index] = self.region.box if index == 0 else self.hidden(self, index)
        return self.intervals[index]

    def lines(self, index: int) -> Lines:
        """The relaxation of an activation node."""
        if index not in self._lines:
            node = self.graph.nodes[index]
            assert isinstance(node.op, Activation)
            self._lines[index] = self.relaxation(node.op, self.interval(node.inputs[0]), self.rounding)
        return self._lines[index]

    def size(self, index: int) -> Tensor:
        """An upper bound of the absolute value of a node (only rounding terms need it)."""
        if index not in self._sizes:
            self._sizes[index] = self._find_size(self.graph.nodes[index], index).detach()
        return self._sizes[index]

    def _find_size(self, node: Node, index: int) -> Tensor:
        if index in self.intervals or node.op is None:
            return self.interval(index).magnitude
        if isinstance(node.op, Activation):
            return node.op.peak(*self.interval(node.inputs[0]))
        return node.op.magnitude(*(self.size(i) for i in node.inputs))


@dataclass(eq=False)
class Sums:
    """What a pull adds up on its way: `middle -+ spread -+ slack`, all `[batch, rows]`."""

    run: Pass
    middle: Tensor | float = 0.0
    spread: Tensor | float = 0.0
    slack: Tensor | float = 0.0

    def merged(self, form: Form, index: int) -> None:
        """Two forms were added: one rounding per coefficient of their sum, which may cancel in the next one."""
        if self.run.rounding is not None:
            self.slack = self.slack + form.abs_dot(self.run.rounding.gamma(1) * self.run.size(index))

    def underflow(self, index: int, terms: int) -> None:
        """Coefficients over node `index` were computed: what underflow took from them, times the node's values."""
        if self.run.rounding is not None:
            lost = self.run.rounding.smallest * (terms + 1)
            self.slack = self.slack + lost * self.run.size(index).flatten(1).sum(1, keepdim=True)

    def linear(self, form: Form, node: Node, op: Linear) -> None:
        """Rows over an affine op: its bias, and the error of pulling through it."""
        if op.bias is not None:
            self.middle = self.middle + form.dot(op.bias)
        if self.run.rounding is not None:
            self.slack = self.slack + _linear_slack(self.run, node, op, form)

    def activation(self, form: Form, node: Node, lines: Lines) -> None:
        """Rows over an activation: the lines' offsets."""
        self.middle = self.middle + form.dot((lines.upper_offset + lines.lower_offset) / 2)
        half = half_gap(lines)
        if self.run.rounding is None:
            self.spread = self.spread + form.abs_dot(half)
            return
        spread, slack = form.abs_dots(half, _activation_error(self.run, node, lines, form))
        self.spread, self.slack = self.spread + spread, self.slack + slack

    def jump(self, form: Form, rows: Rows, short: Shortcut) -> None:
        """Rows over a node with a shortcut: everything between it and the input at once."""
        self.middle = self.middle + form.dot(short.middle.unflatten(1, form.shape))
        for index, inner in short.inner.items():
            self.spread = self.spread + _spread_at(rows, inner, half_gap(self.run.lines(index)).flatten(1))
        if self.run.rounding is not None and short.slack is not None and short.reach is not None:
            longest = max(form.length, *(math.prod(inner.shape) for inner in short.inner.values()))
            error = short.slack + 2 * self.run.rounding.gamma(longest) * short.reach
            self.slack = self.slack + form.abs_dot(error.unflatten(1, form.shape))
            self.underflow(0, form.length)


def half_gap(lines: Lines) -> Tensor:
    """Half the distance between two lines at 0; exactly 0 where a piecewise linear unit is straight."""
    return (lines.upper_offset - lines.lower_offset) / 2


def _spread_at(rows: Rows, inner: Form, half: Tensor) -> Tensor:
    """`|rows . inner| . half`: by the few columns where `half` is not 0, or by all."""
    count = int((half.detach() > 0).sum(1).max())
    if count == 0:
        return half.new_zeros(len(half), rows.coef.shape[1])
    few = count <= FEW_UNITS * half.shape[1]
    index = half.detach().topk(count, dim=1).indices if few else None
    columns = None if index is None else inner.columns(index)
    if index is None or columns is None:
        return inner.combine(rows).abs_dot(half.unflatten(1, inner.shape))
    return (half.gather(1, index).unsqueeze(1) @ rows.times(columns).abs()).squeeze(1)


def pull(run: Pass, start: int, form: Form, side: int, *, through: bool = True, keep: bool = False) -> Pulled:
    """Pull rows over node `start` back to the input, or (`through=False`) to the nearest activations.

    `side` says which bound is wanted where the two lines of an activation differ. With one slope both sides have the
    same coefficients, and `middle -+ spread` serves both. `keep`: remember the rows over each activation on the way.
    """
    waiting: dict[int, Form] = {start: form}
    forms: dict[int, Form] = {}
    passed: dict[int, Form] = {}
    sums = Sums(run)

    def send(source: int, pulled: Form) -> None:
        if source in waiting:
            pulled = waiting[source].plus(pulled)
            sums.merged(pulled, source)
        waiting[source] = pulled

    for index in run.graph.ancestors(start):
        if index not in waiting:
            continue
        here, node = waiting.pop(index), run.graph.nodes[index]
        short, rows = run.shortcuts.get(index), here.rows()
        if node.op is None or (isinstance(node.op, Activation) and not through):
            forms[index] = here
        elif through and short is not None and rows is not None and not waiting:
            # Nothing else is on its way to the same activations: rows that meet there must be added before their
            # absolute values are taken.
            sums.jump(here, rows, short)
            send(0, short.at_input.combine(rows))
        elif isinstance(node.op, Activation):
            lines = run.lines(index)
            sums.activation(here, node, lines)
            if keep:
                passed[index] = here
            sums.underflow(node.inputs[0], 1)
            send(node.inputs[0], _scaled(here, lines, side))
        else:
            assert isinstance(node.op, Linear)
            sums.linear(here, node, node.op)
            for source, pulled in zip(node.inputs, node.op.pull(here), strict=True):
                sums.underflow(source, node.op.backward_terms)
                send(source, pulled)
    return Pulled(forms, sums.middle, sums.spread, sums.slack, passed)


def _scaled(form: Form, lines: Lines, side: int) -> Form:
    if lines.shared:
        return form.scale(lines.lower_slope)
    if side == LOWER:
        return form.split_scale(lines.lower_slope, lines.upper_slope)
    return form.split_scale(lines.upper_slope, lines.lower_slope)


def _activation_error(run: Pass, node: Node, lines: Lines, form: Form) -> Tensor:
    """Per |coefficient|: one product for the slope, a sum for the offsets."""
    assert run.rounding is not None
    slope = torch.maximum(lines.lower_slope.abs(), lines.upper_slope.abs())
    offset = torch.maximum(lines.lower_offset.abs(), lines.upper_offset.abs())
    error = run.rounding.gamma(1) * slope * run.size(node.inputs[0])
    if lines.error is not None:
        error = error + lines.error
    return error + 2 * run.rounding.gamma(form.length) * offset + run.rounding.tiny


def _linear_slack(run: Pass, node: Node, op: Linear, form: Form) -> Tensor | float:
    """The sums of the pull itself, and the sum with the bias."""
    assert run.rounding is not None
    error = op.pull_error(form, [run.size(i) for i in node.inputs], run.rounding)
    if op.bias_magnitude is not None:
        bias = run.rounding.gamma(form.length) * op.bias_magnitude
        error = bias if error is None else error + bias
    return 0.0 if error is None else form.abs_dot(error)


def backward(run: Pass, start: int, form: Form, side: int) -> Bound:
    """CROWN's bound of rows over a node as a function of the input (Appendix A-B)."""
    return _bound(run, pull(run, start, form, side), side)


def _bound(run: Pass, pulled: Pulled, side: int) -> Bound:
    """One side of the rows as a function of the input."""
    at_input = pulled.forms[0]
    slack = input_slack(run, at_input, pulled.slack)
    return Bound(at_input, _offset(run, pulled, slack, side), slack)


def _offset(run: Pass, pulled: Pulled, slack: Tensor | None, side: int) -> Tensor:
    """The constant part of one side, `[batch, rows]`."""
    width = pulled.spread if slack is None else pulled.spread + slack
    offset = pulled.middle + side * width
    if not isinstance(offset, Tensor):  # neither bias nor activation on the way
        offset = pulled.forms[0].dot(torch.zeros_like(run.region.x))
    return offset.expand(len(run.region.x), -1)


def input_slack(run: Pass, form: Form, slack: Tensor | float) -> Tensor | None:
    """The sum over the coordinates of the input, for numbers and for distances alike."""
    if run.rounding is None:
        return None
    total = form.abs_dot(run.rounding.gamma(form.length) * run.region.magnitude) * 2 + slack
    return total * 1.01 + run.rounding.tiny


def hidden_by_backward(run: Pass, index: int) -> Interval:
    """Pull the node's own entries to the input: once for both sides with one slope, else once for each."""
    node = run.graph.nodes[index]
    form, one_slope = Identity(node.shape, run.like), _one_slope(run, index)
    pulled = pull(run, index, form, LOWER, keep=one_slope)
    below = _bound(run, pulled, LOWER)
    low, high = run.region.extremes(below.form, run.rounding)
    low, high = low + below.offset, high + _offset(run, pulled, below.slack, UPPER)
    if one_slope:
        _keep_shortcut(run, index, pulled, below)
    else:
        above = backward(run, index, form, UPPER)
        high = run.region.extremes(above.form, run.rounding)[1] + above.offset
    return Interval(low.reshape(-1, *node.shape), high.reshape(-1, *node.shape))


def _keep_shortcut(run: Pass, index: int, pulled: Pulled, bound: Bound) -> None:
    """Keep a node's form for later rows, where it has windows and spares them at least one activation."""
    if not (pulled.passed and bound.form.windowed):
        return
    middle = bound.offset.detach().new_zeros(bound.offset.shape) + pulled.middle
    reach = None
    if run.rounding is not None:
        reach = bound.form.abs_dot(run.region.magnitude) + middle.abs() + pulled.spread
    run.shortcuts[index] = Shortcut(bound.form, middle, pulled.passed, bound.slack, reach)


def _one_slope(run: Pass, index: int) -> bool:
    needed = set(run.graph.ancestors(index))
    return all(run.lines(k).shared for k in run.graph.activations if k in needed)


def final_by_backward(run: Pass, form: Form, side: int) -> Bound:
    """Pull the rows over the output to the input."""
    run.prepare(run.graph.output)
    return backward(run, run.graph.output, form, side)
