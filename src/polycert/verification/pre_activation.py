"""Rigorous pre-activation bounds: first by the cheap methods, then tightened on the reduced problem.

`relax` bounds the inputs of activations and the rows of the specification: an exact search starts from these. `refine`
tightens the bounds of unstable units by optimised slopes on the reduced problem itself, and drops units that become
stable.

Each unit of a later layer is a row over the units before it. Both its bounds are raised by beta-CROWN like any other
bound, with slopes of their own, and evaluated in float64 with all rounding covered. The layers are refined in order, so
that later ones gain from earlier ones.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.bounding.backward import LOWER
from polycert.bounding.methods import error_model, get_method, passes
from polycert.forms import Form
from polycert.graph import Graph
from polycert.runtime.execution import plain_products
from polycert.sets.ball import Region
from polycert.sets.interval import Interval, at_least, round_down, round_up
from polycert.verification.beta_crown import DualObjective, Nodes, ascend, multipliers, proved_bound
from polycert.verification.budget import Budget, in_time
from polycert.verification.reduced_problem import AffineMaps, Reduced

Intervals = dict[int, Interval]  # pre-activation bounds, by the node that they bound
STEPS = 10  # of the ascent
ROWS = 512  # bounds that are raised together


class RowBounds(NamedTuple):
    """Lower bounds of rows `[batch, rows]`, and pre-activation bounds of every activation."""

    rows: Tensor
    intervals: Intervals


def relax(
    graph: Graph,
    region: Region,
    form: Form,
    method: str,
    relaxation: str,
    deadline: float = math.inf,
    given: Intervals | None = None,
) -> RowBounds:
    """Return what one bound method finds with all rounding covered.

    Args:
        graph: the network.
        region: the sets, in the graph's type.
        form: rows over the output.
        method, relaxation: how they are bounded.
        deadline: a moment of `time.monotonic()`.
        given: pre-activation bounds over the same sets, in any type.

    Raises:
        OutOfTime: if the bounds of a layer would begin after the deadline.
    """
    rounding = error_model(graph)
    with torch.no_grad(), plain_products(graph.device):
        (run,) = passes(graph, region, method, relaxation, rounding)
        run.pre_activation = in_time(run.pre_activation, deadline)
        run.given = {k: _in_type(bounds, graph.dtype) for k, bounds in (given or {}).items()}
        bound = get_method(method).final(run, form, LOWER)
        low = at_least(region.concretise(bound.form, rounding, joint=True)[0] + bound.offset)
        found = {graph.nodes[k].inputs[0]: run.interval(graph.nodes[k].inputs[0]) for k in graph.activations}
    return RowBounds(low, found)


def _in_type(bounds: Interval, dtype: torch.dtype) -> Interval:
    """Return bounds in a type, rounded outward."""
    return Interval(round_down(bounds.lower, dtype), round_up(bounds.upper, dtype))


def refine(problem: Reduced, budget: Budget) -> Reduced:
    """Return the same problem with tighter bounds of its units, and without the units that become stable."""
    for number in range(1, len(problem.layers)):
        layer = problem.layers[number]
        lower, upper = _bounds(problem, layer, budget)
        problem = _with_bounds(problem, layer, lower, upper)
    stable = (problem.lower >= 0) | (problem.upper <= 0)
    return _without(problem, stable) if bool(stable.any()) else problem


def _bounds(problem: Reduced, layer: slice, budget: Budget) -> tuple[Tensor, Tensor]:
    """Return new lower and upper bounds of one layer's units, `[units]` each."""
    before = layer.start
    own = AffineMaps(*(part[layer] for part in problem.units))
    rows = AffineMaps(*(torch.cat([part, sign * part]) for part, sign in zip(own, (-1, -1, -1, 1), strict=True)))
    earlier = AffineMaps(*(part[:before] for part in problem.units))
    part = replace(
        problem,
        units=earlier._replace(through=earlier.through[:, :before]),
        rows=rows._replace(through=rows.through[:, :before]),
        lower=problem.lower[:before],
        upper=problem.upper[:before],
        layers=tuple(one for one in problem.layers if one.stop <= before),
        members=torch.eye(len(rows.offset), dtype=torch.bool),
    )
    fast = part.to(torch.float32)
    bounds = [_proved(part, fast, nodes) for nodes in _split(Nodes.roots(fast))]
    budget.evaluations += (STEPS + 1) * len(rows.offset)
    low, high = torch.cat(bounds).chunk(2)
    return low, -high


def _split(nodes: Nodes) -> list[Nodes]:
    """Return nodes in parts of at most `ROWS`."""
    return [nodes[begin : begin + ROWS] for begin in range(0, len(nodes), ROWS)]


def _proved(part: Reduced, fast: Reduced, nodes: Nodes) -> Tensor:
    """Return proved bounds of nodes, `[nodes]`, with multipliers that were raised in the faster type."""
    found = ascend(fast, nodes, steps=STEPS).nodes
    weight = found.weight.double()
    at = multipliers(part, found.split, found.alpha.double(), found.beta.double(), DualObjective.of(part, weight))
    return proved_bound(part, found.split, at.nu, weight)


def _with_bounds(problem: Reduced, layer: slice, lower: Tensor, upper: Tensor) -> Reduced:
    """Return the problem with the better of old and new bounds of one layer; NaN never counts as better."""
    low, high = problem.lower.clone(), problem.upper.clone()
    low[layer], high[layer] = torch.fmax(low[layer], lower), torch.fmin(high[layer], upper)
    return replace(problem, lower=low, upper=high)


def _without(problem: Reduced, stable: Tensor) -> Reduced:
    """Return the problem without its stable units: those that are on are composed into the others."""
    on = stable & (problem.lower >= 0)
    units, rows = problem.units, problem.rows
    for layer in problem.layers:  # in order: a unit is composed when all units before it are
        here = torch.zeros_like(on)
        here[layer] = on[layer]
        if bool(here.any()):
            inner = AffineMaps(*(part[here] for part in units))
            slack = replace(problem, units=units).slack[0][here]  # holds the errors of the units composed so far
            units, rows = (_composed(maps, inner, here, slack) for maps in (units, rows))
    left = ~stable
    kept = [int(left[layer].sum()) for layer in problem.layers]
    ends = list(accumulate((count for count in kept if count), initial=0))
    return replace(
        problem,
        origin=problem.origin.without(stable, on),
        units=AffineMaps(*(part[left] for part in units._replace(through=units.through[:, left]))),
        rows=rows._replace(through=rows.through[:, left]),
        lower=problem.lower[left],
        upper=problem.upper[left],
        layers=tuple(slice(a, b) for a, b in pairwise(ends)),
    )


def _composed(maps: AffineMaps, inner: AffineMaps, here: Tensor, slack: Tensor) -> AffineMaps:
    """Return maps in which the values of some units are replaced by the units' own equations: they are on, so h = z."""
    weight = maps.through[:, here]
    through = maps.through.clone()
    through[:, here] = 0
    return AffineMaps(
        maps.direct + weight @ inner.direct,
        through + weight @ inner.through,
        maps.offset + weight @ inner.offset,
        maps.error + 2 * weight.abs() @ slack,
    )
