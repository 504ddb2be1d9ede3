"""The reduced problem of one set: the network with its stable units composed away, shared by all nodes of a search.

Over the set around one input most units of a trained network are stable: they stay on one linear piece. Composing
them leaves

    z = direct x + through h + offset,     h = max(z, 0),     rows = direct' x + through' h + offset'

where z are the unstable units alone, in order, so that `through` is strictly lower triangular by layers. Every
piecewise linear activation fits: a unit is `slope z` plus `change max(z - at, 0)` for each bend in its interval.

The maps are computed in float64 by the same backward pass as all bounds. Each row comes with what rounding may have got
wrong in it (`error`), so that statements about these maps become statements about the network.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polycert.bounding.backward import LOWER, Pass, Pulled, pull
from polycert.bounding.methods import error_model
from polycert.errors import PolycertError
from polycert.forms import Dense
from polycert.graph import Graph
from polycert.rules import Activation, Lines
from polycert.sets.ball import Region
from polycert.sets.interval import Interval, Rounding, outward
from polycert.verification.specification import Specification

LOCAL = 0.2  # sparse products take less time if less than this share of a layer's coefficients is not 0


@dataclass(frozen=True, eq=False)
class Coefficients:
    """A matrix `[units, inputs]`, in which the rows of the first layers are sparse and the others are dense."""

    local: Tensor | None  # [first units, inputs], sparse by rows
    transposed: Tensor | None  # [inputs, first units], sparse by rows
    rest: Tensor  # [other units, inputs]

    @staticmethod
    def of(matrix: Tensor, layers: Sequence[slice]) -> Coefficients:
        """Return a matrix whose rows are sparse up to the first layer that sees much of the input."""
        end = 0
        for layer in layers:
            if matrix[layer].count_nonzero() > LOCAL * matrix[layer].numel():
                break
            end = layer.stop
        if end == 0 or not torch.backends.mkl.is_available():
            return Coefficients(None, None, matrix)
        first = matrix[:end]
        return Coefficients(_by_rows(first), _by_rows(first.T.contiguous()), matrix[end:])

    def back(self, weights: Tensor) -> Tensor:
        """Return weights `[n, units]` times the matrix: `[n, inputs]`."""
        if self.transposed is None:
            return weights @ self.rest
        end = self.transposed.shape[1]
        found: Tensor = weights[:, end:] @ self.rest
        return found.add_((self.transposed @ weights[:, :end].T.contiguous()).T)

    def at(self, x: Tensor) -> Tensor:
        """Return the matrix times inputs `[n, inputs]`: `[n, units]`."""
        late = x @ self.rest.T
        return late if self.local is None else torch.cat([(self.local @ x.T.contiguous()).T, late], 1)


def _by_rows(matrix: Tensor) -> Tensor:
    """Return a matrix in compressed sparse rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its interface may change
        return matrix.to_sparse_csr()


class AffineMaps(NamedTuple):
    """Affine functions `direct x + through h + offset` of the input and of the units, each wrong by at most `error`."""

    direct: Tensor  # [rows, inputs]
    through: Tensor  # [rows, units]
    offset: Tensor  # [rows]
    error: Tensor  # [rows]

    def __call__(self, x: Tensor, h: Tensor) -> Tensor:
        """Return the values `[n, rows]` at inputs `[n, inputs]` and unit values `[n, units]`."""
        return x @ self.direct.T + h @ self.through.T + self.offset

    def to(self, dtype: torch.dtype) -> AffineMaps:
        """Return the maps in another type."""
        return AffineMaps(*(part.to(dtype) for part in self))


@dataclass(frozen=True, eq=False)
class ReductionSource:
    """What a reduced problem was made from: exact arithmetic goes back to the network itself."""

    graph: Graph
    spec: Specification
    sides: dict[int, Tensor]  # [bends, size] by activation: whether a stable unit is beyond the bend
    units: Tensor  # [units, 3]: the activation, bend and place of each unstable unit

    def held(self, on: Tensor) -> dict[int, Tensor]:
        """Return the sides of all units if the unstable ones are held on or off, by the mask `on` `[units]`."""
        sides = {index: side.clone() for index, side in self.sides.items()}
        for (index, bend, place), beyond in zip(self.units.tolist(), on.tolist(), strict=True):
            sides[index][bend, place] = beyond
        return sides

    def without(self, stable: Tensor, on: Tensor) -> ReductionSource:
        """Return the source of a problem in which more units are stable, by masks `[units]`."""
        sides = replace(self, units=self.units[stable]).held(on[stable])
        return replace(self, sides=sides, units=self.units[~stable])


@dataclass(frozen=True, eq=False)
class Reduced:
    """A specification over one region, as a function of the input and of the unstable units."""

    origin: ReductionSource
    region: Region  # of one sample
    units: AffineMaps  # the units' values z
    rows: AffineMaps  # the rows of the specification
    lower: Tensor  # [units], < 0: lower pre-activation bounds
    upper: Tensor  # [units], > 0: upper pre-activation bounds
    layers: tuple[slice, ...]  # the units of each layer, which depend on those of earlier layers only
    members: Tensor  # [clauses, rows]: the rows that belong to each clause

    @property
    def count(self) -> int:
        """Return how many unstable units there are."""
        return len(self.lower)

    @cached_property
    def chord(self) -> Tensor:
        """Return the slope of the upper line of each unit's triangle relaxation, `[units]`."""
        return self.upper / (self.upper - self.lower)

    @cached_property
    def direct(self) -> Coefficients:
        """Return `units.direct` in a form for many products; proofs take the matrix itself, as rounding differs."""
        return Coefficients.of(self.units.direct, self.layers)

    @cached_property
    def rounding(self) -> Rounding:
        """Return the error terms for one evaluation of a bound in float64."""
        return Rounding(torch.float64, 64)

    @cached_property
    def slack(self) -> tuple[Tensor, Tensor]:
        """Return what rounding may take from a bound, for a multiplier of size 1 of each unit and of each row.

        Shapes are `[units]` and `[rows]`.
        """
        gamma = self.rounding.gamma(self.units.direct.shape[1] + 2 * self.count + len(self.rows.offset))
        size, high = self.region.magnitude.flatten(), self.upper.clamp(min=0)

        def total(maps: AffineMaps) -> Tensor:
            terms = maps.direct.abs() @ size + maps.through.abs() @ high + maps.offset.abs()
            return maps.error + 4 * gamma * terms

        ends = torch.maximum(self.upper, -self.lower)
        units = total(self.units) + 4 * gamma * ends
        return 1.01 * units + self.rounding.tiny, 1.01 * total(self.rows) + self.rounding.tiny

    @cached_property
    def underflow(self) -> Tensor:
        """Return what a bound may lose by underflow, whatever its multipliers are.

        Each coefficient adds up a product for every unit and row.
        """
        size = self.region.magnitude.sum() + torch.maximum(self.upper, -self.lower).sum()
        return self.rounding.smallest * (self.count + len(self.rows.offset)) * size + self.rounding.tiny

    def to(self, dtype: torch.dtype) -> Reduced:
        """Return the problem in another type, in which bounds prove nothing and only guide the search."""
        return replace(
            self,
            region=self.region.to(dtype),
            units=self.units.to(dtype),
            rows=self.rows.to(dtype),
            lower=self.lower.to(dtype),
            upper=self.upper.to(dtype),
        )

    def values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values of the units z `[n, units]` and of the rows `[n, rows]` at inputs `[n, inputs]`."""
        z = self.direct.at(x) + self.units.offset
        for layer in self.layers[1:]:
            h = z[:, : layer.start].relu()
            z[:, layer] += h @ self.units.through[layer, : layer.start].T
        return z, self.rows(x, z.relu())


def reduce(graph: Graph, region: Region, intervals: Mapping[int, Interval], spec: Specification) -> Reduced:
    """Return the reduced problem, in which all stable units are composed away.

    Args:
        graph: the network in float64; it must be piecewise linear.
        region: the set around one sample, in float64.
        intervals: rigorous pre-activation bounds over the region, `[1, *shape]`.
        spec: the specification.
    """
    composer = Composer(graph, region, intervals)
    for index in graph.activations:
        composer.add_layer(index)
    return composer.finish(spec)


class UnstableUnits(NamedTuple):
    """The unstable units of one activation: one for each bend that lies inside its interval."""

    bend: Tensor  # [units]: the number of the bend
    place: Tensor  # [units]: the flat position in the activation
    change: Tensor  # [units]: the change of the slope at the bend


class Composer:
    """Builds the maps of a reduced problem layer by layer."""

    def __init__(self, graph: Graph, region: Region, intervals: Mapping[int, Interval]) -> None:
        self.graph, self.region = graph, region
        double = {k: Interval(v.lower.double(), v.upper.double()) for k, v in intervals.items()}
        self.run = Pass(graph, region, _stable_pieces, _unbounded, error_model(graph), double)
        self.units: dict[int, UnstableUnits] = {}
        self.sides: dict[int, Tensor] = {}
        self.parts: list[AffineMaps] = []
        self.bounds: list[Interval] = []

    def add_layer(self, index: int) -> None:
        """Add the unstable units of one activation node."""
        node = self.graph.nodes[index]
        source = node.inputs[0]
        lower, upper = (end.flatten() for end in self.run.interval(source))
        assert isinstance(node.op, Activation)
        pieces = node.op.pieces
        assert pieces is not None
        self.sides[index] = torch.stack([lower >= at for at, _ in pieces.bends])
        bends, places, changes, shifts = [], [], [], []
        for number, (at, change) in enumerate(pieces.bends):
            place = ((lower < at) & (upper > at)).nonzero().squeeze(1)
            bends.append(torch.full_like(place, number))
            places.append(place)
            changes.append(torch.full_like(lower[place], change))
            shifts.append(torch.full_like(lower[place], -at))
        bend, place, shift = torch.cat(bends), torch.cat(places), torch.cat(shifts)
        if len(place) == 0:
            return
        select = torch.zeros(len(place), lower.numel(), dtype=torch.float64).scatter_(1, place[:, None], 1.0)
        self.parts.append(self.maps(source, select.reshape(-1, *self.graph.nodes[source].shape), shift))
        low, high = lower[place] + shift, upper[place] + shift
        wide = outward(low, high)
        self.bounds.append(Interval(*(torch.where(shift == 0, a, b) for a, b in zip((low, high), wide, strict=True))))
        self.units[index] = UnstableUnits(bend, place, torch.cat(changes))

    def maps(self, index: int, rows: Tensor, constants: Tensor) -> AffineMaps:
        """Return rows `[rows, *shape]` over a node, plus constants, as functions of the input and the units so far."""
        pulled = pull(self.run, index, Dense(rows.unsqueeze(0)), LOWER, keep=True)
        direct = pulled.forms[0].dense().coef.flatten(2)[0]
        through = [self._columns(pulled, k, unit, len(rows)) for k, unit in self.units.items()]
        middle, slack = (constants.new_zeros(1, len(rows)) + part for part in (pulled.middle, pulled.slack))
        empty = constants.new_zeros(len(rows), 0)
        return AffineMaps(direct, torch.cat([empty, *through], 1), middle[0] + constants, slack[0] * 1.01)

    @staticmethod
    def _columns(pulled: Pulled, index: int, unit: UnstableUnits, count: int) -> Tensor:
        """Return the rows' coefficients of one activation's unstable units, `[rows, units]`."""
        if index not in pulled.passed:  # the rows do not depend on this activation
            return torch.zeros(count, len(unit.place), dtype=torch.float64)
        return pulled.passed[index].dense().coef.flatten(2)[0][:, unit.place] * unit.change

    def finish(self, spec: Specification) -> Reduced:
        """Return the reduced problem of all layers and the rows of the specification."""
        rows = self.maps(self.graph.output, spec.rows, spec.constants)
        ends = list(accumulate((len(part.offset) for part in self.parts), initial=0))
        none = AffineMaps(rows.direct[:0], rows.through[:0], rows.offset[:0], rows.error[:0])
        wide = [p._replace(through=F.pad(p.through, (0, ends[-1] - p.through.shape[1]))) for p in self.parts]
        units = AffineMaps(*(torch.cat(columns) for columns in zip(none, *wide, strict=True)))
        lower, upper = (torch.cat([rows.offset[:0], *(b[side] for b in self.bounds)]) for side in (0, 1))
        layers = tuple(slice(begin, end) for begin, end in pairwise(ends))
        places = [torch.stack([torch.full_like(u.place, k), u.bend, u.place], 1) for k, u in self.units.items()]
        origin = ReductionSource(
            self.graph, spec, self.sides, torch.cat([torch.zeros(0, 3, dtype=torch.long), *places])
        )
        return Reduced(origin, self.region, units, rows, lower, upper, layers, spec.members)


def piecewise_linear(graph: Graph) -> bool:
    """Whether every activation is piecewise linear, so that the network can be reduced."""
    ops = [graph.nodes[k].op for k in graph.activations]
    return all(isinstance(op, Activation) and op.pieces is not None for op in ops)


def unstable_units(graph: Graph, intervals: Mapping[int, Interval]) -> int:
    """Return how many unstable units the reduced problem of a piecewise linear graph has, for one sample."""
    count = 0
    for index in graph.activations:
        node = graph.nodes[index]
        assert isinstance(node.op, Activation)
        assert node.op.pieces is not None
        lower, upper = intervals[node.inputs[0]]
        count += sum(int(((lower < at) & (upper > at)).sum()) for at, _ in node.op.pieces.bends)
    return count


def _stable_pieces(activation: Activation, given: Interval, rounding: Rounding | None) -> Lines:
    """Return the lines of an activation without its unstable bends, which the units stand for."""
    pieces = activation.pieces
    assert pieces is not None
    assert rounding is not None
    slope = torch.full_like(given.lower, pieces.slope)
    offset = torch.full_like(given.lower, pieces.value)
    for at, change in pieces.bends:
        passed = given.lower >= at
        slope = torch.where(passed, slope + change, slope)
        offset = torch.where(passed, offset - change * at, offset)
    steepness = abs(pieces.slope) + sum(abs(change) for _, change in pieces.bends)
    constant = abs(pieces.value) + sum(abs(change * at) for at, change in pieces.bends)
    error = rounding.library(given.magnitude * steepness + constant)
    return Lines(slope, offset, slope, offset, error)


def _unbounded(run: Pass, index: int) -> Interval:
    """Refuse a node without bounds: a reduction computes none itself."""
    raise PolycertError(f"node {index} has no bounds: give intervals of all inputs of activations")
