"""Bounds pulled back to the input (CROWN, Appendix A-B), and the state that all methods share.

Rounding: a backward pass carries the claim `rows(x) >= <computed coefficients, node value> + offset - slack`. Each step
adds a bound of its own rounding error to the slack, in which the largest absolute values of the node enter. The
computed coefficients then count as exact numbers, so errors add up and do not compound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polycert.bounding.chunking import Chunk, chunks, row_width
from polycert.bounding.relaxations import LineOffsets, Relaxation, lines_of
from polycert.forms import Form, Identity, Selected
from polycert.graph import Graph, Node
from polycert.rules import Linear, Lines
from polycert.rules.maximum import Planes
from polycert.sets.ball import Region
from polycert.sets.interval import Interval, Rounding, at_least, at_most

LOWER, UPPER = -1, 1
SELECTED_SHARE = 1 / 2  # of a layer's units: if more are unstable, the rows of all units cost less
MANY_COEFFICIENTS = 2**17  # of rows with two slopes: if there are fewer, a third pull costs more than it may save
STORED_CHUNKS = 8  # whose intermediate values are stored for the gradient; those of later chunks are computed again


class Bound(NamedTuple):
    """A lower or an upper linear bound of rows: `form(x) + offset`."""

    form: Form
    offset: Tensor  # [batch, rows], with the slack taken off (or added, for an upper bound)
    slack: Tensor | None  # [batch, rows], the bound of the rounding error; None if the pass is not rigorous


class Pulled(NamedTuple):
    """Rows pulled back to the nodes where the pass stopped: `sum_k forms[k](value_k) + middle -+ spread -+ slack`."""

    forms: dict[int, Form]
    middle: Tensor | float
    spread: Tensor | float
    slack: Tensor | float
    passed: dict[int, Form]  # the rows over each activation on the way, with `keep`


@dataclass(eq=False)
class Pass:
    """The bounds of one graph over one region: those computed so far, and how to compute others."""

    graph: Graph
    region: Region
    relaxation: Relaxation
    pre_activation: Callable[[Pass, int], Interval]  # bounds of a node, by the method for pre-activation bounds
    rounding: Rounding | None = None
    intervals: dict[int, Interval] = field(default_factory=dict)
    given: Mapping[int, Interval] = field(default_factory=dict)  # bounds over this region or a larger one, found before
    _lines: dict[int, Lines] = field(default_factory=dict)
    _line_offsets: dict[int, LineOffsets] = field(default_factory=dict)
    _planes: dict[int, Planes | None] = field(default_factory=dict)
    _relaxed_intervals: dict[int, Interval] = field(default_factory=dict)
    _sizes: dict[int, Tensor] = field(default_factory=dict)

    @property
    def like(self) -> Tensor:
        """A tensor with the type and the device of the pass."""
        return self.region.x

    def prepare(self, target: int) -> None:
        """Compute the pre-activation bounds that node `target` depends on, in order."""
        for index in self.graph.layout.activations_before(target):
            self.interval(self.graph.nodes[index].inputs[0])

    def interval(self, index: int) -> Interval:
        """Bounds of a node's value, by the method for pre-activation bounds."""
        if index not in self.intervals:
            found = self.region.box if index == 0 else self.pre_activation(self, index).known
            self.intervals[index] = self._met(index, found)
        return self.intervals[index]

    def _met(self, index: int, found: Interval) -> Interval:
        """The bounds of a node intersected with those that were given."""
        return found.meet(self.given[index]) if index in self.given else found

    def lines(self, index: int) -> Lines:
        """The relaxation of an activation node."""
        if index not in self._lines:
            source = self.interval(self.graph.nodes[index].inputs[0])
            self._lines[index] = self.relaxation(self.graph.activation(index), source, self.rounding)
        return self._lines[index]

    def use_slopes(self, slopes: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        """Use lines with these slopes, `[batch, *shape]` of the lower and of the upper one, for some activations."""
        for index, (low, high) in slopes.items():
            source = self.interval(self.graph.nodes[index].inputs[0])
            self._lines[index] = lines_of(self.graph.activation(index), low, high, source, self.rounding)

    def line_offsets(self, index: int) -> LineOffsets:
        """The offsets of an activation's lines, computed once."""
        if index not in self._line_offsets:
            self._line_offsets[index] = LineOffsets.of(self.lines(index))
        return self._line_offsets[index]

    def planes(self, index: int) -> Planes | None:
        """The planes that enclose a maximum or minimum, or None where the lines of its rise share a slope.

        Then one pull gives both sides, for which the sum has the same coefficients.
        """
        if index not in self._planes:
            self._planes[index] = self._find_planes(index)
        return self._planes[index]

    def _find_planes(self, index: int) -> Planes | None:
        one, rise, other = self.graph.nodes[index].inputs
        lines = self.lines(rise)
        if lines.shared:
            return None
        op = self.graph.extremum(index)
        return op.planes(self.relaxed_interval(one), self.relaxed_interval(other), lines, self.rounding)

    def relaxed_interval(self, index: int) -> Interval:
        """Bounds of a node by interval arithmetic in which an activation takes any value between its lines.

        Cheap. With one slope and without maxima it is never tighter than the backward bounds of the node over the same
        region. Otherwise it may be. With two slopes the activation's own range counts as well.
        """
        if index not in self._relaxed_intervals:
            found = self.intervals.get(index) or self._find_relaxed_interval(self.graph.nodes[index], index).known
            self._relaxed_intervals[index] = self._met(index, found)
        return self._relaxed_intervals[index]

    def _find_relaxed_interval(self, node: Node, index: int) -> Interval:
        if node.op is None:
            return self.region.box
        if index not in self.graph.layout.curved:
            return node.op.interval(*(self.relaxed_interval(i) for i in node.inputs), rounding=self.rounding)
        source, lines = self.interval(node.inputs[0]), self.lines(index)
        between = lines.reach(source, self.rounding)
        return between if lines.shared else between.meet(node.op.interval(source, rounding=self.rounding))

    def part(self, samples: Tensor) -> Pass:
        """The same pass for some of the samples, with the bounds computed so far."""
        count = self.region.x.shape[0]
        if samples.shape[0] == count and (count == 1 or bool((samples[1:] > samples[:-1]).all())):
            return self
        return replace(
            self,
            region=self.region[samples],
            intervals={k: v.of(samples) for k, v in self.intervals.items()},
            given={k: v.of(samples) for k, v in self.given.items()},
            _lines={k: lines.part(samples) for k, lines in self._lines.items()},
            _line_offsets={},
            _planes={k: None if pair is None else pair.part(samples) for k, pair in self._planes.items()},
            _relaxed_intervals={},
            _sizes={k: v if len(v) == 1 else v[samples] for k, v in self._sizes.items()},
        )

    def lines_before(self, index: int) -> list[Lines]:
        """The lines of all activations that a node depends on."""
        return [self.lines(k) for k in self.graph.layout.activations_before(index)]

    def prepare_lines(self, index: int) -> None:
        """Compute what rows over a node need, with gradients, before chunks of them are computed, perhaps twice."""
        for k in self.graph.layout.activations_before(index):
            self.line_offsets(k)
        for k in self.graph.layout.extrema_before(index):
            self.planes(k)

    def relaxed(self, form: Form, index: int, side: int) -> tuple[Form, Tensor, Tensor | float]:
        """The rows over an activation times its lines' slopes, and their products with the offsets: middle, spread."""
        lines = self.lines(index)
        rows, (values, sizes) = self.line_offsets(index).beside(form)
        if lines.shared and rows is form:
            return form.relaxed(lines.lower_slope, values, sizes)
        return _scaled(form, lines, side), *rows.dots(values, sizes)

    def adjusted(self, start: int, form: Form, pulled: Pulled) -> Pulled:
        """The pulled rows over node `start` with the spread that the method gives them; CROWN's is their own."""
        return pulled

    def size(self, index: int) -> Tensor:
        """An upper bound of the absolute value of a node, for the rounding terms."""
        if index not in self._sizes:
            # Without gradients: a chunk that is computed again would find the size here and miss its graph.
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
    """The constants that a pull adds up on its way: `middle -+ spread -+ slack`, each `[batch, rows]`."""

    run: Pass
    middle: Tensor | float = 0.0
    spread: Tensor | float = 0.0
    slack: Tensor | float = 0.0

    def add_merge(self, form: Form, index: int) -> None:
        """Add the rounding of a sum of two forms over node `index`, one error per coefficient of the sum."""
        if self.run.rounding is not None:
            error = self.run.rounding.gamma(1) * self.run.size(index) + self.run.rounding.tiny
            self.slack = self.slack + form.abs_dot(error)

    def add_underflow(self, index: int, terms: int) -> None:
        """Add what underflow may have taken from coefficients over node `index`, each a sum of `terms` products."""
        if self.run.rounding is not None:
            lost = self.run.rounding.smallest * (terms + 1)
            self.slack = self.slack + lost * self.run.size(index).flatten(1).sum(1, keepdim=True)

    def add_linear(self, form: Form, node: Node, op: Linear) -> None:
        """Add the bias of an affine op under these rows, and the rounding error of pulling through it."""
        bias = op.bias
        if bias is not None:
            self.middle = self.middle + form.dot(bias)
        if self.run.rounding is not None:
            self.slack = self.slack + _linear_slack(self.run, node, op, form)

    def add_activation(self, form: Form, index: int, side: int) -> Form:
        """Add the offsets of an activation's lines under these rows; returns the rows times the lines' slopes."""
        scaled, middle, spread = self.run.relaxed(form, index, side)
        self.middle, self.spread = self.middle + middle, self.spread + spread
        if self.run.rounding is not None:
            self.slack = self.slack + form.abs_dot(_activation_error(self.run, index, form))
        return scaled

    def add_extremum(self, form: Form, index: int, planes: Planes, side: int) -> list[Form]:
        """Add the offsets of the planes under these rows; returns the rows over both nodes of a maximum or minimum."""
        lower, upper, _ = planes
        middle, spread = form.dots((upper.offset + lower.offset) / 2, (upper.offset - lower.offset) / 2)
        self.middle, self.spread = self.middle + middle, self.spread + spread
        if self.run.rounding is not None:
            self.slack = self.slack + form.abs_dot(_plane_error(self.run, self.run.graph.nodes[index], planes, form))
        positive, negative = (lower, upper) if side == LOWER else (upper, lower)
        return [form.split_scale(*factors) for factors in zip(positive[:2], negative[:2], strict=True)]


def pull(
    run: Pass, start: int, form: Form, side: int, *, stop: Container[int] = frozenset(), keep: bool = False
) -> Pulled:
    """Pull rows over node `start` back to the input, or to the nearest of the nodes in `stop`.

    `side` is the wanted bound, `LOWER` or `UPPER`, which matters where the lines of an activation have two slopes. With
    one slope both bounds have the same coefficients, and `middle -+ spread` gives both. `keep` stores the rows over
    each activation on the way in `passed`.
    """
    waiting: dict[int, Form] = {start: form}
    forms: dict[int, Form] = {}
    passed: dict[int, Form] = {}
    sums = Sums(run)

    def send(source: int, pulled: Form) -> None:
        if source in waiting:
            pulled = waiting[source].plus(pulled)
            sums.add_merge(pulled, source)
        waiting[source] = pulled

    curved, extrema = run.graph.layout.curved, run.graph.layout.extrema
    for index in run.graph.ancestors(start):
        if index not in waiting:
            continue
        here, node = waiting.pop(index), run.graph.nodes[index]
        if node.op is None or index in stop:
            forms[index] = here
        elif index in curved:
            scaled = sums.add_activation(here, index, side)
            if keep:
                passed[index] = here
            sums.add_underflow(node.inputs[0], 1)
            send(node.inputs[0], scaled)
        elif index in extrema and (planes := run.planes(index)) is not None:
            for source, pulled in zip(node.inputs[::2], sums.add_extremum(here, index, planes, side), strict=True):
                sums.add_underflow(source, 1)
                send(source, pulled)
        else:
            op = cast(Linear, node.op)
            sums.add_linear(here, node, op)
            for source, through in zip(node.inputs, op.pull(here), strict=True):
                if through is not None:
                    sums.add_underflow(source, op.backward_terms)
                    send(source, through)
    return Pulled(forms, sums.middle, sums.spread, sums.slack, passed)


def _scaled(form: Form, lines: Lines, side: int) -> Form:
    """The rows times the slopes of the lines that bound them on this side."""
    if lines.shared:
        return form.scale(lines.lower_slope)
    if side == LOWER:
        return form.split_scale(lines.lower_slope, lines.upper_slope)
    return form.split_scale(lines.upper_slope, lines.lower_slope)


def _activation_error(run: Pass, index: int, form: Form) -> Tensor:
    """The rounding error per |coefficient|: of a product with the slope, a sum with the offsets, and the lines."""
    assert run.rounding is not None
    lines = run.lines(index)
    slope = torch.maximum(lines.lower_slope.abs(), lines.upper_slope.abs())
    offset = torch.maximum(lines.lower_offset.abs(), lines.upper_offset.abs())
    error = run.rounding.gamma(1) * slope * run.size(run.graph.nodes[index].inputs[0])
    if lines.error is not None:
        error = error + lines.error
    return error + 2 * run.rounding.gamma(form.length) * offset + run.rounding.tiny


def _plane_error(run: Pass, node: Node, planes: Planes, form: Form) -> Tensor:
    """The rounding error per |coefficient|: of a product with `1 - slope`, a sum with the offsets, and the planes."""
    assert run.rounding is not None
    assert planes.error is not None
    one, other, offset = (torch.maximum(a.abs(), b.abs()) for a, b in zip(planes.lower, planes.upper, strict=True))
    error = run.rounding.gamma(2) * (one * run.size(node.inputs[0]) + other * run.size(node.inputs[2]))
    return error + planes.error + 2 * run.rounding.gamma(form.length) * offset + run.rounding.tiny


def _linear_slack(run: Pass, node: Node, op: Linear, form: Form) -> Tensor | float:
    """The rounding error of the pull's own sums and of the sum with the bias, `[batch, rows]`.

    `tiny` stands inside the product with |coefficient|: a term that underflows to 0 may have a large coefficient.
    """
    assert run.rounding is not None
    error = op.pull_error(form, [run.size(i) for i in node.inputs], run.rounding)
    if op.bias_magnitude is not None:
        bias = run.rounding.gamma(form.length) * op.bias_magnitude
        error = bias if error is None else error + bias
    return 0.0 if error is None else form.abs_dot(error + run.rounding.tiny)


def backward(run: Pass, start: int, form: Form, side: int) -> Bound:
    """CROWN's bound of rows over node `start` as a function of the input (Appendix A-B)."""
    return bound_of(run, pull(run, start, form, side), side)


def bound_of(run: Pass, pulled: Pulled, side: int) -> Bound:
    """The lower or the upper bound of rows that were pulled to the input."""
    at_input = pulled.forms[0]
    slack = _input_slack(run, at_input, pulled.slack)
    return Bound(at_input, _offset(run, pulled, slack, side), slack)


def _offset(run: Pass, pulled: Pulled, slack: Tensor | None, side: int) -> Tensor:
    """The offset of the lower or the upper bound, `[batch, rows]`."""
    width = pulled.spread if slack is None else pulled.spread + slack
    offset = pulled.middle - width if side == LOWER else pulled.middle + width
    if not isinstance(offset, Tensor):  # neither bias nor activation on the way
        offset = pulled.forms[0].dot(torch.zeros_like(run.region.x))
    return offset.expand(run.region.x.shape[0], -1) if offset.shape[0] == 1 else offset


def _input_slack(run: Pass, form: Form, slack: Tensor | float) -> Tensor | None:
    """The whole slack, `[batch, rows]`: it also covers sums over the input's coordinates, in margins and distances."""
    if run.rounding is None:
        return None
    error = run.rounding.gamma(form.length) * run.region.magnitude + run.rounding.tiny
    total = form.abs_dot(error) * 2 + slack
    return total * 1.01 + run.rounding.tiny


def pre_activation_by_backward(run: Pass, index: int) -> Interval:
    """Bounds of a node by CROWN: rows of its unstable entries are pulled to the input, a chunk at a time.

    The other entries keep their bounds by `relaxed_interval`, as tighter ones would change nothing.
    """
    node = run.graph.nodes[index]
    if not run.graph.depends_on_activation[index]:  # all samples share the rows
        low, high = _both_sides(run, index, Identity(node.shape, run.like))
        return Interval(low.reshape(-1, *node.shape), high.reshape(-1, *node.shape))
    run.prepare_lines(index)
    shared = all(lines.shared for lines in run.lines_before(index))
    counts = not shared or bool(run.graph.layout.extrema)  # the cheap bounds may then be tighter than backward ones
    with nullcontext() if counts else torch.no_grad():
        cheap = run.relaxed_interval(index)
    unstable = _unstable(run, index, cheap)
    if not shared and _one_side_may_do(run, index, unstable):
        return _one_side_at_a_time(run, index, cheap)
    found = _replaced(cheap, *_pulled_rows(run, index, unstable, _both_sides))
    return found.meet(cheap) if counts else found


def _one_side_may_do(run: Pass, index: int, unstable: Tensor) -> bool:
    """Whether entries may become stable by one bound, and whether the rows are so many that this saves time."""
    pieces = any(reader.pieces is not None for reader in run.graph.readers(index))
    return pieces and int(unstable.sum()) * row_width(run.graph, index) > MANY_COEFFICIENTS


def _one_side_at_a_time(run: Pass, index: int, cheap: Interval) -> Interval:
    """Bounds of a node where lines have two slopes, so that each side needs a pull of its own.

    The side nearer to 0 goes first. An entry that it proves to be stable needs no other. Both sides are intersected
    with the cheap bounds, which may be tighter.
    """
    found = cheap
    positive = (cheap.lower + cheap.upper >= 0).flatten(1)
    for side, first in ((LOWER, positive), (UPPER, torch.ones_like(positive)), (LOWER, ~positive)):
        wanted = _unstable(run, index, found) & first
        sample, unit, end = _pulled_rows(run, index, wanted, _lower_side if side == LOWER else _upper_side)[:3]
        low, high = (old.flatten(1)[sample, unit] for old in found)
        found = _replaced(found, sample, unit, *((end, high) if side == LOWER else (low, end))).meet(found)
    return found


def _replaced(given: Interval, sample: Tensor, unit: Tensor, low: Tensor, high: Tensor) -> Interval:
    """Bounds `[batch, *shape]` with those of some entries replaced."""
    if sample.numel() == 0:
        return given
    lower, upper = (old.flatten(1).index_put((sample, unit), new) for old, new in zip(given, (low, high), strict=True))
    return Interval(lower.reshape(given.lower.shape), upper.reshape(given.upper.shape))


def _unstable(run: Pass, index: int, given: Interval) -> Tensor:
    """The entries of a node that are unstable on their intervals, `[batch, entries]`.

    An entry is stable if all activations that read it are linear on its interval: tighter bounds would not matter.
    """
    unstable = torch.zeros_like(given.lower, dtype=torch.bool)
    for stable in [reader.stable(given) for reader in run.graph.readers(index)] or [None]:
        unstable |= torch.ones_like(unstable) if stable is None else ~stable
    return unstable.flatten(1)


RowBounds = Callable[[Pass, int, Form], tuple[Tensor, ...]]


def _pulled_rows(run: Pass, index: int, wanted: Tensor, bounds: RowBounds) -> list[Tensor]:
    """The sample, the entry and the bounds of each wanted entry of a node, `[rows]` each."""
    found = []
    for k, chunk in enumerate(chunks(wanted, row_width(run.graph, index))):
        part = run.part(chunk.sample)
        if torch.is_grad_enabled() and k >= STORED_CHUNKS:
            part.prepare_lines(index)
            found.append(checkpoint(_chunk_bounds, part, index, chunk, bounds, use_reentrant=False))
        else:
            found.append(_chunk_bounds(part, index, chunk, bounds))
    if not found:
        nothing = torch.zeros(0, dtype=torch.long, device=wanted.device)
        return [nothing, nothing, run.like.new_zeros(0), run.like.new_zeros(0)]
    return list(found[0]) if len(found) == 1 else [torch.cat(parts) for parts in zip(*found, strict=True)]


def _chunk_bounds(run: Pass, index: int, chunk: Chunk, bounds: RowBounds) -> tuple[Tensor, ...]:
    """The sample, the entry and the bounds of each wanted row of a chunk; `run` is the pass of its samples."""
    shape = run.graph.nodes[index].shape
    # `Identity` shares the windows of all points of an image, `Selected` looks each up.
    whole = len(shape) == 3 and chunk.unit.shape[1] > SELECTED_SHARE * math.prod(shape)
    form = Identity(shape, run.like) if whole else Selected(shape, run.like, chunk.unit)
    ends = bounds(run, index, form)
    if chunk.wanted is None:  # a single sample
        unit = chunk.unit.squeeze(0)
        return (
            chunk.sample.expand_as(unit),
            unit,
            *((end.squeeze(0)[unit] if whole else end.squeeze(0)) for end in ends),
        )
    sample, place = chunk.wanted.nonzero(as_tuple=True)
    unit = chunk.unit[sample, place]
    row = unit if whole else place
    return chunk.sample[sample], unit, *(end[sample, row] for end in ends)


def _lower_side(run: Pass, index: int, form: Form) -> tuple[Tensor]:
    """The lower bounds of rows over a node over the region, `[batch, rows]`."""
    bound = backward(run, index, form, LOWER)
    return (at_least(run.region.concretise(bound.form, run.rounding)[0] + bound.offset),)


def _upper_side(run: Pass, index: int, form: Form) -> tuple[Tensor]:
    """The upper bounds of rows over a node over the region, `[batch, rows]`."""
    bound = backward(run, index, form, UPPER)
    return (at_most(run.region.concretise(bound.form, run.rounding)[1] + bound.offset),)


def _both_sides(run: Pass, index: int, form: Form) -> tuple[Tensor, Tensor]:
    """The lower and the upper bounds of rows over a node over the region, `[batch, rows]` each."""
    return concretise_bounds(run, *_both_bounds(run, index, form))


def _both_bounds(run: Pass, index: int, form: Form) -> tuple[Bound, Bound]:
    """Both linear bounds of rows over a node: by one pull with one slope, else by one for each side."""
    pulled = run.adjusted(index, form, pull(run, index, form, LOWER))
    below = bound_of(run, pulled, LOWER)
    if all(lines.shared for lines in run.lines_before(index)):
        return below, below._replace(offset=_offset(run, pulled, below.slack, UPPER))
    return below, backward(run, index, form, UPPER)


def concretise_bounds(run: Pass, below: Bound, above: Bound, *, joint: bool = False) -> tuple[Tensor, Tensor]:
    """The least value of the lower and the greatest of the upper bounds over the region, `[batch, rows]` each."""
    low, high = run.region.concretise(below.form, run.rounding, joint=joint)
    if above.form is not below.form:
        _, high = run.region.concretise(above.form, run.rounding, joint=joint)
    return at_least(low + below.offset), at_most(high + above.offset)


def final_by_backward(run: Pass, form: Form, side: int) -> Bound:
    """CROWN's bound of rows over the output."""
    run.prepare(run.graph.output)
    return backward(run, run.graph.output, form, side)


def both_by_backward(run: Pass, form: Form) -> tuple[Bound, Bound]:
    """CROWN's lower and upper bounds of rows over the output, by one pull with one slope."""
    run.prepare(run.graph.output)
    return _both_bounds(run, run.graph.output, form)
