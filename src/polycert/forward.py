"""Linear forms pushed forward layer by layer: the paper's IBP-inspired bounds (Appendix A-C)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.backward import Bound, Pass, input_slack, pull
from polycert.errors import PolycertError
from polycert.forms import Dense, Form
from polycert.rules import Activation, Interval, Linear


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
            sizes = op.widen(*(self.sizes(part) for part in parts))
            bias = 0.0 if op.bias_magnitude is None else op.bias_magnitude
            spread = spread + 2 * self.rounding.gamma(op.forward_terms) * (sizes + bias)
            spread = spread + self._underflow(op.forward_terms, spread)
        return Pushed(columns, middle if op.bias is None else middle + op.bias, spread)

    def _push_activation(self, index: int, part: Pushed) -> Pushed:
        lines = self.lines(index)
        if not lines.shared:
            raise PolycertError("method 'forward' needs one slope: use relaxation 'parallel'")
        slope, below, above = lines.lower_slope, lines.lower_offset, lines.upper_offset
        middle = slope * part.middle + (above + below) / 2
        spread = slope.abs() * part.spread + (above - below) / 2
        if self.rounding is not None:
            size = slope.abs() * self.sizes(part) + torch.maximum(below.abs(), above.abs())
            spread = spread + 4 * self.rounding.gamma(1) * size
            spread = spread if lines.error is None else spread + lines.error
            spread = spread + self._underflow(1, spread)
        return Pushed(slope.unsqueeze(1) * part.columns, middle, spread)

    def _underflow(self, terms: int, like: Tensor) -> Tensor:
        """What underflow may have taken from a node's columns, times the input's values."""
        assert self.rounding is not None
        total = self.region.magnitude.flatten(1).sum(1) + 1
        return self.rounding.smallest * (terms + 1) * total.reshape(-1, *(1,) * (like.dim() - 1))

    def sizes(self, part: Pushed) -> Tensor:
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
        width = width + 2 * run.rounding.gamma(form.length) * forward.sizes(part).flatten(1)
    return Interval((low + middle - width).reshape(-1, *node.shape), (high + middle + width).reshape(-1, *node.shape))


def final_by_forward(run: Pass, form: Form, side: int) -> Bound:
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
            slack = slack + rows.abs_dot(3 * run.rounding.gamma(rows.dense().length) * forward.sizes(part))
            lost = run.rounding.smallest * (rows.dense().length + 1)
            slack = slack + lost * run.region.magnitude.flatten(1).sum(1, keepdim=True)
    assert isinstance(slope, Tensor)
    at_input = Dense(slope.unflatten(2, run.graph.input_shape))
    total = input_slack(run, at_input, slack)
    width = spread if total is None else spread + total
    offset = at_input.dot(run.region.x) * 0 + middle + side * width
    return Bound(at_input, offset, total)
