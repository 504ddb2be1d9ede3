"""Bound methods: how linear bounds of any rows of a network's output are found, and by what intermediate bounds.

A method is a pair: where the bounds of the hidden layers come from, and how the final rows are pulled to the input.

| name        | hidden layers                    | final rows |
|-------------|----------------------------------|------------|
| `ibp`       | intervals, layer by layer        | intervals, the last affine layers fused |
| `forward`   | linear forms pushed forward      | the same (Appendix A-C, "IBP-inspired") |
| `crown`     | pulled back to the input, each   | pulled back (Appendix A-B) |
| `crown-ibp` | intervals, layer by layer        | pulled back |

Rounding: the claim carried by a backward pass is "rows(x) >= <computed coefficients, node value> + offset - slack". Each step
adds to the slack what its own arithmetic may have got wrong, weighed by the sizes the node's values can have; the
computed coefficients are then taken as exact, so errors never compound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.errors import PolycertError
from polycert.forms import Dense, Form, Identity
from polycert.graph import Graph, Node
from polycert.relaxations import RELAXATIONS, Relaxation
from polycert.rounding import Rounding
from polycert.rules import Activation, Interval, Linear, Lines
from polycert.sets import Region

LOWER, UPPER = -1, 1


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


@dataclass(eq=False)
class Pass:
    """Bounds of one graph over one region: what has been found so far, and how more is found."""

    graph: Graph
    region: Region
    relaxations: tuple[Relaxation, ...]
    hidden: Callable[[Pass, int], Interval]
    rounding: Rounding | None = None
    intervals: dict[int, Interval] = field(default_factory=dict)
    _lines: dict[tuple[int, int], Lines] = field(default_factory=dict)
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

    def lines(self, index: int, which: int = 0) -> Lines:
        """The relaxation of an activation node."""
        key = (index, which)
        if key not in self._lines:
            node = self.graph.nodes[index]
            assert isinstance(node.op, Activation)
            self._lines[key] = self.relaxations[which](node.op, self.interval(node.inputs[0]), self.rounding)
        return self._lines[key]

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


def pull(run: Pass, start: int, form: Form, side: int, which: int = 0, *, through: bool = True) -> Pulled:
    """Pull rows over node `start` back to the input, or (`through=False`) to the nearest activations.

    `side` says which bound is wanted where the two lines of an activation differ. With one slope both sides have the
    same coefficients, and `middle -+ spread` serves both.
    """
    waiting: dict[int, Form] = {start: form}
    merged: set[int] = set()
    forms: dict[int, Form] = {}
    middle: Tensor | float = 0.0
    spread: Tensor | float = 0.0
    slack: Tensor | float = 0.0
    for index in run.graph.ancestors(start):
        if index not in waiting:
            continue
        here, node = waiting.pop(index), run.graph.nodes[index]
        if run.rounding is not None and index in merged:
            slack = slack + here.abs_dot(run.rounding.gamma(1) * run.size(index))
        if node.op is None or (isinstance(node.op, Activation) and not through):
            forms[index] = here
            continue
        if isinstance(node.op, Activation):
            lines = run.lines(index, which)
            below, above = lines.lower_offset, lines.upper_offset
            half, centre = (above - below) / 2, (above + below) / 2
            middle = middle + here.dot(centre)
            if run.rounding is None:
                spread = spread + here.abs_dot(half)
            else:
                widths = here.abs_dots(half, _activation_error(run, node, lines, here))
                spread, slack = spread + widths[0], slack + widths[1]
            nexts = [_scaled(here, lines, side)]
        else:
            assert isinstance(node.op, Linear)
            if node.op.bias is not None:
                middle = middle + here.dot(node.op.bias)
            if run.rounding is not None:
                slack = slack + _linear_slack(run, node, node.op, here)
            nexts = node.op.pull(here)
        for source, pulled in zip(node.inputs, nexts, strict=True):
            if source in waiting:
                merged.add(source)
                pulled = waiting[source].plus(pulled)
            waiting[source] = pulled
    return Pulled(forms, middle, spread, slack)


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
    return error + 2 * run.rounding.gamma(form.length) * offset + run.rounding.tiny


def _linear_slack(run: Pass, node: Node, op: Linear, form: Form) -> Tensor | float:
    """The sums of the pull itself, and the sum with the bias."""
    assert run.rounding is not None
    error = op.pull_error(form, [run.size(i) for i in node.inputs], run.rounding)
    if op.bias_magnitude is not None:
        bias = run.rounding.gamma(form.length) * op.bias_magnitude
        error = bias if error is None else error + bias
    return 0.0 if error is None else form.abs_dot(error)


def backward(run: Pass, start: int, form: Form, side: int, which: int = 0) -> tuple[Bound, Tensor, Tensor]:
    """CROWN's bound of rows over a node as a function of the input (Appendix A-B).

    Returns the bound of one side, and the numbers `lower, upper` of the rows over the region, of which only the
    asked side is valid unless the relaxation has one slope.
    """
    pulled = pull(run, start, form, side, which)
    at_input = pulled.forms[0]
    slack = _input_slack(run, at_input, pulled.slack)
    low, high = run.region.extremes(at_input, run.rounding)
    width = pulled.spread if slack is None else pulled.spread + slack
    offset = pulled.middle + side * width
    rows = low.new_zeros(low.shape)
    bound = Bound(at_input, rows + offset, slack)
    return bound, low + (pulled.middle - width), high + (pulled.middle + width)


def _input_slack(run: Pass, form: Form, slack: Tensor | float) -> Tensor | None:
    """The sum over the coordinates of the input, for numbers and for distances alike."""
    if run.rounding is None:
        return None
    total = form.abs_dot(run.rounding.gamma(form.length) * run.region.magnitude) * 2 + slack
    return total * 1.01 + run.rounding.tiny


def hidden_by_backward(run: Pass, index: int) -> Interval:
    """Pull the node's own entries to the input: once for both sides with one slope, else once for each."""
    node = run.graph.nodes[index]
    found: list[Interval] = []
    for which in range(len(run.relaxations)):
        form = Identity(node.shape, run.like)
        _, low, high = backward(run, index, form, LOWER, which)
        if not _one_slope(run, index, which):
            high = backward(run, index, form, UPPER, which)[2]
        found.append(Interval(low.reshape(-1, *node.shape), high.reshape(-1, *node.shape)))
    return _intersection(found)


def _one_slope(run: Pass, index: int, which: int) -> bool:
    needed = set(run.graph.ancestors(index))
    return all(run.lines(k, which).shared for k in run.graph.activations if k in needed)


def _intersection(found: list[Interval]) -> Interval:
    lower, upper = found[0]
    for other in found[1:]:
        lower, upper = torch.maximum(lower, other.lower), torch.minimum(upper, other.upper)
    return Interval(lower, upper)


def hidden_by_interval(run: Pass, index: int) -> Interval:
    """Interval arithmetic, layer by layer; what is affine in the input is bounded over the region at once."""
    if not run.graph.depends_on_activation[index]:
        return hidden_by_backward(run, index)
    node = run.graph.nodes[index]
    assert node.op is not None
    return node.op.interval(*(run.interval(i) for i in node.inputs), rounding=run.rounding)


def final_by_backward(run: Pass, form: Form, side: int) -> list[Bound]:
    """One bound a relaxation."""
    run.prepare(run.graph.output)
    return [backward(run, run.graph.output, form, side, which)[0] for which in range(len(run.relaxations))]


def final_by_interval(run: Pass, form: Form, side: int) -> list[Bound]:
    """Fuse the last affine layers with the rows, then take intervals: a bound whose slope is zero."""
    if not run.graph.depends_on_activation[run.graph.output]:
        return final_by_backward(run, form, side)
    pulled = pull(run, run.graph.output, form, side, through=False)
    total = pulled.middle + side * pulled.spread
    slack = pulled.slack
    for index, part in pulled.forms.items():
        given = run.interval(index)
        centre, half = (given.lower + given.upper) / 2, (given.upper - given.lower) / 2
        total = total + part.dot(centre) + side * part.abs_dot(half)
        if run.rounding is not None:
            slack = slack + part.abs_dot(3 * run.rounding.gamma(part.length) * given.magnitude)
    rows = part.dot(centre) * 0
    zero = Dense(run.like.new_zeros(1, rows.shape[1], *run.graph.input_shape))
    if run.rounding is None:
        return [Bound(zero, rows + total, None)]
    width = rows.detach() + slack * 1.01 + run.rounding.tiny
    return [Bound(zero, rows + total + side * width, width)]


class Pushed(NamedTuple):
    """A node as a function of the input: `sum_m columns[m] x_m + middle -+ spread` (Appendix A-C)."""

    columns: Tensor  # [batch or 1, inputs, *shape]
    middle: Tensor  # [batch or 1, *shape]
    spread: Tensor  # [batch or 1, *shape]


@dataclass(eq=False)
class ForwardPass(Pass):
    """Keeps the forward forms of the nodes as well."""

    pushed: dict[int, Pushed] = field(default_factory=dict)

    def push(self, index: int) -> Pushed:
        """The node's linear bounds in the input."""
        if index not in self.pushed:
            self.pushed[index] = self._find_push(index)
        return self.pushed[index]

    def _find_push(self, index: int) -> Pushed:
        node = self.graph.nodes[index]
        if node.op is None:
            size = self.like[0].numel()
            eye = torch.eye(size, dtype=self.like.dtype, device=self.like.device)
            zero = self.like.new_zeros(1, *node.shape)
            return Pushed(eye.reshape(1, size, *node.shape), zero, zero)
        parts = [self.push(i) for i in node.inputs]
        if isinstance(node.op, Activation):
            return self._push_activation(index, parts[0])
        assert isinstance(node.op, Linear)
        return self._push_linear(node.op, parts)

    def _push_linear(self, op: Linear, parts: list[Pushed]) -> Pushed:
        batch = max(part.columns.shape[0] for part in parts)
        flat = [part.columns.expand(batch, *part.columns.shape[1:]).flatten(0, 1) for part in parts]
        columns = op.push(*flat).unflatten(0, (batch, -1))
        middle = op.push(*(part.middle for part in parts))
        spread = op.widen(*(part.spread for part in parts))
        if self.rounding is not None:
            sizes = op.widen(*(self.reach(part) for part in parts))
            bias = 0.0 if op.bias_magnitude is None else op.bias_magnitude
            spread = spread + 2 * self.rounding.gamma(op.forward_terms) * (sizes + bias)
        return Pushed(columns, middle if op.bias is None else middle + op.bias, spread)

    def _push_activation(self, index: int, part: Pushed) -> Pushed:
        lines = self.lines(index)
        if not lines.shared:
            raise PolycertError("method 'forward' needs one slope: use relaxation 'parallel'")
        slope, below, above = lines.lower_slope, lines.lower_offset, lines.upper_offset
        middle = slope * part.middle + (above + below) / 2
        spread = slope.abs() * part.spread + (above - below) / 2
        if self.rounding is not None:
            size = slope.abs() * self.reach(part) + torch.maximum(below.abs(), above.abs())
            spread = spread + 4 * self.rounding.gamma(1) * size
        return Pushed(slope.unsqueeze(1) * part.columns, middle, spread)

    def reach(self, part: Pushed) -> Tensor:
        """Size of all that a forward form adds up."""
        at = self.region.magnitude.flatten(1)
        columns = part.columns.abs().flatten(2)
        moved = at @ columns[0] if columns.shape[0] == 1 else (at.unsqueeze(1) @ columns).squeeze(1)
        return moved.reshape(-1, *part.middle.shape[1:]) + part.middle.abs() + part.spread


def _forward_pass(run: Pass) -> ForwardPass:
    if not isinstance(run, ForwardPass):
        raise TypeError("the forward method needs a ForwardPass")
    return run


def hidden_by_forward(run: Pass, index: int) -> Interval:
    """Numbers from a node's forward form."""
    forward = _forward_pass(run)
    node, part = run.graph.nodes[index], forward.push(index)
    form = Dense(part.columns.flatten(2).transpose(1, 2).unflatten(2, run.graph.input_shape))
    low, high = run.region.extremes(form, run.rounding)
    middle, width = part.middle.flatten(1), part.spread.flatten(1)
    if run.rounding is not None:
        width = width + 2 * run.rounding.gamma(form.length) * forward.reach(part).flatten(1)
    return Interval((low + middle - width).reshape(-1, *node.shape), (high + middle + width).reshape(-1, *node.shape))


def final_by_forward(run: Pass, form: Form, side: int) -> list[Bound]:
    """Fuse the last affine layers with the rows, then combine the forward forms they end at."""
    forward = _forward_pass(run)
    run.prepare(run.graph.output)
    pulled = pull(run, run.graph.output, form, side, through=False)
    middle, spread, slack = pulled.middle, pulled.spread, pulled.slack
    slope: Tensor | float = 0.0
    for index, rows in pulled.forms.items():
        part = forward.push(index)
        coef = rows.dense().coefficients()
        slope = slope + coef @ part.columns.flatten(2).transpose(1, 2)
        middle = middle + rows.dot(part.middle)
        spread = spread + rows.abs_dot(part.spread)
        if run.rounding is not None:
            slack = slack + rows.abs_dot(3 * run.rounding.gamma(rows.dense().length) * forward.reach(part))
    assert isinstance(slope, Tensor)
    at_input = Dense(slope.unflatten(2, run.graph.input_shape))
    total = _input_slack(run, at_input, slack)
    width = spread if total is None else spread + total
    offset = at_input.dot(run.region.x) * 0 + middle + side * width
    return [Bound(at_input, offset, total)]


class Method(NamedTuple):
    """Where hidden bounds come from, and how the final rows are bounded."""

    hidden: Callable[[Pass, int], Interval]
    final: Callable[[Pass, Form, int], list[Bound]]
    run: type[Pass] = Pass
    sloped: bool = True


METHODS: dict[str, Method] = {
    "ibp": Method(hidden_by_interval, final_by_interval, sloped=False),
    "forward": Method(hidden_by_forward, final_by_forward, run=ForwardPass),
    "crown": Method(hidden_by_backward, final_by_backward),
    "crown-ibp": Method(hidden_by_interval, final_by_backward),
}


def get_method(name: str) -> Method:
    """A method by name, or a clear error."""
    if name not in METHODS:
        raise PolycertError(f"unknown method {name!r}: choose one of {', '.join(METHODS)}")
    return METHODS[name]


def get_relaxations(name: str, method: str) -> tuple[Relaxation, ...]:
    """The relaxations that a name stands for; `best` is all of them."""
    if name != "best" and name not in RELAXATIONS:
        raise PolycertError(f"unknown relaxation {name!r}: choose one of {', '.join(RELAXATIONS)}, best")
    if method == "forward" and name != "parallel":
        raise PolycertError("method 'forward' needs one slope for both lines: use relaxation 'parallel'")
    return tuple(RELAXATIONS.values()) if name == "best" else (RELAXATIONS[name],)


def start(
    graph: Graph, region: Region, method: str, relaxation: str, rounding: Rounding | None = None
) -> Pass:
    """A fresh pass of a method over a region."""
    chosen = get_method(method)
    return chosen.run(graph, region, get_relaxations(relaxation, method), chosen.hidden, rounding)
