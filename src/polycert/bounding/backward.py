"""Bounds pulled back to the input (CROWN, Appendix A-B), and the state that all methods share.

Rounding: the claim carried by a backward pass is "rows(x) >= <computed coefficients, node value> + offset - slack".
Each step adds to the slack what its own arithmetic may have got wrong, weighed by the sizes the node's values can have;
the computed coefficients are then taken as exact, so errors never compound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polycert.bounding.chunking import Chunk, chunks, row_width
from polycert.bounding.relaxations import LineOffsets, Relaxation
from polycert.forms import Form, Identity, Selected
from polycert.graph import Graph, Node
from polycert.rules import Linear, Lines
from polycert.sets.ball import Region
from polycert.sets.interval import Interval, Rounding, at_least, at_most

LOWER, UPPER = -1, 1
FEW_ROWS = 1 / 2  # of a layer's rows are open: above this share, all of them at once cost less than the chosen ones
KEPT_CHUNKS = 8


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


@dataclass(eq=False)
class Pass:
    """Bounds of one graph over one region: what has been found so far, and how more is found."""

    graph: Graph
    region: Region
    relaxation: Relaxation
    hidden: Callable[[Pass, int], Interval]
    rounding: Rounding | None = None
    intervals: dict[int, Interval] = field(default_factory=dict)
    _lines: dict[int, Lines] = field(default_factory=dict)
    _bends: dict[int, LineOffsets] = field(default_factory=dict)
    _reaches: dict[int, Interval] = field(default_factory=dict)
    _sizes: dict[int, Tensor] = field(default_factory=dict)

    @property
    def like(self) -> Tensor:
        """Carries type and device."""
        return self.region.x

    def prepare(self, target: int) -> None:
        """Bound every activation's input that `target` depends on, in order."""
        for index in self.graph.layout.activations_before(target):
            self.interval(self.graph.nodes[index].inputs[0])

    def interval(self, index: int) -> Interval:
        """Bounds of a node's value, by the method for hidden layers."""
        if index not in self.intervals:
            self.intervals[index] = self.region.box if index == 0 else self.hidden(self, index).known
        return self.intervals[index]

    def lines(self, index: int) -> Lines:
        """The relaxation of an activation node."""
        if index not in self._lines:
            source = self.interval(self.graph.nodes[index].inputs[0])
            self._lines[index] = self.relaxation(self.graph.activation(index), source, self.rounding)
        return self._lines[index]

    def line_offsets(self, index: int) -> LineOffsets:
        """The offsets of an activation's lines, and the few units that have any."""
        if index not in self._bends:
            self._bends[index] = LineOffsets.of(self.lines(index))
        return self._bends[index]

    def pre_activation(self, index: int) -> Interval:
        """Bounds of a node by intervals, where activations may take any value between their lines.

        Cheap, and with one slope never tighter than the node's own rows pulled back over the same region.
        """
        if index not in self._reaches:
            self._reaches[index] = self.intervals.get(index) or self._find_reach(self.graph.nodes[index], index).known
        return self._reaches[index]

    def _find_reach(self, node: Node, index: int) -> Interval:
        if node.op is None:
            return self.region.box
        if index in self.graph.layout.curved:
            return self.lines(index).reach(self.interval(node.inputs[0]), self.rounding)
        return node.op.interval(*(self.pre_activation(i) for i in node.inputs), rounding=self.rounding)

    def part(self, samples: Tensor) -> Pass:
        """The same pass for some of the samples, with what has been found so far."""
        count = self.region.x.shape[0]
        if samples.shape[0] == count and (count == 1 or bool((samples[1:] > samples[:-1]).all())):
            return self
        return replace(
            self,
            region=self.region[samples],
            intervals={k: Interval(*(end[samples] for end in v)) for k, v in self.intervals.items()},
            _lines={k: lines.part(samples) for k, lines in self._lines.items()},
            _bends={},
            _reaches={},
            _sizes={k: v if len(v) == 1 else v[samples] for k, v in self._sizes.items()},
        )

    def lines_before(self, index: int) -> list[Lines]:
        """The relaxations of all activations that a node depends on."""
        return [self.lines(k) for k in self.graph.layout.activations_before(index)]

    def ready(self, index: int) -> None:
        """Find what a node's rows need, with gradients, before numbers are taken from it or chunks computed again."""
        for k in self.graph.layout.activations_before(index):
            self.line_offsets(k)

    def widened(self, start: int, form: Form, pulled: Pulled) -> Pulled:
        """Rows over node `start` as this kind of pass bounds them; here as they are."""
        return pulled

    def size(self, index: int) -> Tensor:
        """An upper bound of the absolute value of a node (only rounding terms need it)."""
        if index not in self._sizes:
            # Without gradients: a chunk that is computed again finds it here, and would lack what they need.
            with torch.no_grad():
                found = self._find_size(self.graph.nodes[index], index)
                self._sizes[index] = found if self.rounding is None else found + self.rounding.tiny
        return self._sizes[index]

    def _find_size(self, node: Node, index: int) -> Tensor:
        if index in self.intervals or node.op is None:
            return self.interval(index).magnitude
        if index in self.graph.layout.curved:
            return self.graph.activation(index).peak(*self.interval(node.inputs[0]))
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
            error = self.run.rounding.gamma(1) * self.run.size(index) + self.run.rounding.tiny
            self.slack = self.slack + form.abs_dot(error)

    def underflow(self, index: int, terms: int) -> None:
        """Coefficients over node `index` were computed: what underflow took from them, times the node's values."""
        if self.run.rounding is not None:
            lost = self.run.rounding.smallest * (terms + 1)
            self.slack = self.slack + lost * self.run.size(index).flatten(1).sum(1, keepdim=True)

    def linear(self, form: Form, node: Node, op: Linear) -> None:
        """Rows over an affine op: its bias, and the error of pulling through it."""
        bias = op.bias
        if bias is not None:
            self.middle = self.middle + form.dot(bias)
        if self.run.rounding is not None:
            self.slack = self.slack + _linear_slack(self.run, node, op, form)

    def activation(self, form: Form, index: int, side: int) -> Form:
        """Rows over an activation: the lines' offsets, most of which are 0 where most units are straight.

        Gives the rows times the lines' slopes.
        """
        lines = self.run.lines(index)
        rows, (values, sizes) = self.run.line_offsets(index).met_by(form)
        if lines.shared and rows is form:
            scaled, middle, spread = form.relaxed(lines.lower_slope, values, sizes)
        else:
            scaled, (middle, spread) = _scaled(form, lines, side), rows.dots(values, sizes)
        self.middle, self.spread = self.middle + middle, self.spread + spread
        if self.run.rounding is not None:
            self.slack = self.slack + form.abs_dot(_activation_error(self.run, index, lines, form))
        return scaled


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

    curved = run.graph.layout.curved
    for index in run.graph.ancestors(start):
        if index not in waiting:
            continue
        here, node = waiting.pop(index), run.graph.nodes[index]
        if node.op is None or (index in curved and not through):
            forms[index] = here
        elif index in curved:
            scaled = sums.activation(here, index, side)
            if keep:
                passed[index] = here
            sums.underflow(node.inputs[0], 1)
            send(node.inputs[0], scaled)
        else:
            op = cast(Linear, node.op)
            sums.linear(here, node, op)
            for source, pulled in zip(node.inputs, op.pull(here), strict=True):
                sums.underflow(source, op.backward_terms)
                send(source, pulled)
    return Pulled(forms, sums.middle, sums.spread, sums.slack, passed)


def _scaled(form: Form, lines: Lines, side: int) -> Form:
    if lines.shared:
        return form.scale(lines.lower_slope)
    if side == LOWER:
        return form.split_scale(lines.lower_slope, lines.upper_slope)
    return form.split_scale(lines.upper_slope, lines.lower_slope)


def _activation_error(run: Pass, index: int, lines: Lines, form: Form) -> Tensor:
    """Per |coefficient|: one product for the slope, a sum for the offsets."""
    assert run.rounding is not None
    slope = torch.maximum(lines.lower_slope.abs(), lines.upper_slope.abs())
    offset = torch.maximum(lines.lower_offset.abs(), lines.upper_offset.abs())
    error = run.rounding.gamma(1) * slope * run.size(run.graph.nodes[index].inputs[0])
    if lines.error is not None:
        error = error + lines.error
    return error + 2 * run.rounding.gamma(form.length) * offset + run.rounding.tiny


def _linear_slack(run: Pass, node: Node, op: Linear, form: Form) -> Tensor | float:
    """The sums of the pull itself, and the sum with the bias.

    Per |coefficient| there is more than underflow can take from the terms: a large one would bring it back.
    """
    assert run.rounding is not None
    error = op.pull_error(form, [run.size(i) for i in node.inputs], run.rounding)
    if op.bias_magnitude is not None:
        bias = run.rounding.gamma(form.length) * op.bias_magnitude
        error = bias if error is None else error + bias
    return 0.0 if error is None else form.abs_dot(error + run.rounding.tiny)


def backward(run: Pass, start: int, form: Form, side: int) -> Bound:
    """CROWN's bound of rows over a node as a function of the input (Appendix A-B)."""
    return bound_of(run, pull(run, start, form, side), side)


def bound_of(run: Pass, pulled: Pulled, side: int) -> Bound:
    """One side of the rows as a function of the input."""
    at_input = pulled.forms[0]
    slack = _input_slack(run, at_input, pulled.slack)
    return Bound(at_input, _offset(run, pulled, slack, side), slack)


def _offset(run: Pass, pulled: Pulled, slack: Tensor | None, side: int) -> Tensor:
    """The constant part of one side, `[batch, rows]`."""
    width = pulled.spread if slack is None else pulled.spread + slack
    offset = pulled.middle - width if side == LOWER else pulled.middle + width
    if not isinstance(offset, Tensor):  # neither bias nor activation on the way
        offset = pulled.forms[0].dot(torch.zeros_like(run.region.x))
    return offset.expand(run.region.x.shape[0], -1) if offset.shape[0] == 1 else offset


def _input_slack(run: Pass, form: Form, slack: Tensor | float) -> Tensor | None:
    """The sum over the coordinates of the input, for numbers and for distances alike."""
    if run.rounding is None:
        return None
    error = run.rounding.gamma(form.length) * run.region.magnitude + run.rounding.tiny
    total = form.abs_dot(error) * 2 + slack
    return total * 1.01 + run.rounding.tiny


def pre_activation_by_backward(run: Pass, index: int) -> Interval:
    """Pull a node's own entries to the input, those whose bounds make a difference, a few at a time."""
    node = run.graph.nodes[index]
    if not run.graph.depends_on_activation[index]:  # rows that all samples share
        low, high = _both_sides(run, index, Identity(node.shape, run.like))
        return Interval(low.reshape(-1, *node.shape), high.reshape(-1, *node.shape))
    run.ready(index)
    known, still_open = _cheap_bounds(run, index)
    found = []
    for k, chunk in enumerate(chunks(still_open, row_width(run.graph, index))):
        part = run.part(chunk.sample)
        # Beyond the first ones, what a chunk's gradient needs is computed once more rather than kept.
        if torch.is_grad_enabled() and k >= KEPT_CHUNKS:
            part.ready(index)
            found.append(checkpoint(_both_sides_of, part, index, chunk, use_reentrant=False))
        else:
            found.append(_both_sides_of(part, index, chunk))
    if not found:
        return known
    sample, unit, low, high = found[0] if len(found) == 1 else map(torch.cat, zip(*found, strict=True))
    lower, upper = (old.flatten(1).index_put((sample, unit), new) for old, new in zip(known, (low, high), strict=True))
    return Interval(lower.reshape(known.lower.shape), upper.reshape(known.upper.shape))


def _cheap_bounds(run: Pass, index: int) -> tuple[Interval, Tensor]:
    """Bounds by intervals, and which entries they leave open, `[batch, entries]`.

    An entry is settled if all activations that read it are straight on its interval: no tighter one would matter.
    """
    with torch.no_grad():
        known = run.pre_activation(index)
        settled = [reader.stable(known) for reader in run.graph.readers(index)]
        still_open = torch.zeros_like(known.lower, dtype=torch.bool)
        for mask in settled or [None]:
            still_open |= torch.ones_like(still_open) if mask is None else ~mask
    return known, still_open.flatten(1)


def _both_sides_of(run: Pass, index: int, chunk: Chunk) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Samples, entries and bounds of the open rows of a chunk; `run` is the pass of its samples."""
    shape = run.graph.nodes[index].shape
    # Windows at all points of a grid need not be looked up one by one.
    whole = len(shape) == 3 and chunk.unit.shape[1] > FEW_ROWS * math.prod(shape)
    form = Identity(shape, run.like) if whole else Selected(shape, run.like, chunk.unit)
    low, high = _both_sides(run, index, form)
    if chunk.wanted is None:  # a single sample
        unit = chunk.unit.squeeze(0)
        low, high = (side.squeeze(0)[unit] if whole else side.squeeze(0) for side in (low, high))
        return chunk.sample.expand_as(unit), unit, low, high
    row, slot = chunk.wanted.nonzero(as_tuple=True)
    unit = chunk.unit[row, slot]
    column = unit if whole else slot
    return chunk.sample[row], unit, low[row, column], high[row, column]


def _both_sides(run: Pass, index: int, form: Form) -> tuple[Tensor, Tensor]:
    """Both bounds of rows over a node: in one pass with one slope, else in one for each side."""
    return concretise_bounds(run, *_both_bounds(run, index, form))


def _both_bounds(run: Pass, index: int, form: Form) -> tuple[Bound, Bound]:
    """The bounds themselves; with one slope they have one form."""
    pulled = run.widened(index, form, pull(run, index, form, LOWER))
    below = bound_of(run, pulled, LOWER)
    if all(lines.shared for lines in run.lines_before(index)):
        return below, below._replace(offset=_offset(run, pulled, below.slack, UPPER))
    return below, backward(run, index, form, UPPER)


def concretise_bounds(run: Pass, below: Bound, above: Bound, *, joint: bool = False) -> tuple[Tensor, Tensor]:
    """Numbers from both bounds: how low and how high they are over the region, `[batch, rows]` each."""
    low, high = run.region.concretise(below.form, run.rounding, joint=joint)
    if above.form is not below.form:
        _, high = run.region.concretise(above.form, run.rounding, joint=joint)
    return at_least(low + below.offset), at_most(high + above.offset)


def final_by_backward(run: Pass, form: Form, side: int) -> Bound:
    """Pull the rows over the output to the input."""
    run.prepare(run.graph.output)
    return backward(run, run.graph.output, form, side)


def both_by_backward(run: Pass, form: Form) -> tuple[Bound, Bound]:
    """Both bounds of the rows over the output, in one pass with one slope."""
    run.prepare(run.graph.output)
    return _both_bounds(run, run.graph.output, form)
