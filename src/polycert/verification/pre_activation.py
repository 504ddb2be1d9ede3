"""Rigorous bounds of hidden units and of rows, by the cheap methods: what an exact search starts from."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.bounding.backward import LOWER, Pass
from polycert.bounding.methods import error_model, get_method, passes
from polycert.forms import Form
from polycert.graph import Graph
from polycert.runtime.execution import plain_products
from polycert.sets.ball import Region
from polycert.sets.interval import Interval, at_least

Intervals = dict[int, Interval]
PreActivation = Callable[[Pass, int], Interval]


class OutOfTime(Exception):
    """The deadline passed while bounds were computed."""


def in_time(bounds: PreActivation, deadline: float) -> PreActivation:
    """Pre-activation bounds that end with `OutOfTime` after a moment of `time.monotonic()`."""

    def bounded(run: Pass, index: int) -> Interval:
        if time.monotonic() > deadline:
            raise OutOfTime
        return bounds(run, index)

    return bounds if math.isinf(deadline) else bounded


class RowBounds(NamedTuple):
    """Lower bounds of rows `[batch, rows]`, and bounds of every activation's input."""

    rows: Tensor
    intervals: Intervals


def relax(
    graph: Graph, region: Region, form: Form, method: str, relaxation: str, deadline: float = math.inf
) -> RowBounds:
    """One bound method with all rounding covered; `region` is in the graph's type.

    Raises:
        OutOfTime: once a layer begins after the deadline.
    """
    rounding = error_model(graph)
    with torch.no_grad(), plain_products(graph.device):
        (run,) = passes(graph, region, method, relaxation, rounding)
        run.pre_activation = in_time(run.pre_activation, deadline)
        bound = get_method(method).final(run, form, LOWER)
        low = at_least(region.concretise(bound.form, rounding, joint=True)[0] + bound.offset)
        found = {graph.nodes[k].inputs[0]: run.interval(graph.nodes[k].inputs[0]) for k in graph.activations}
    return RowBounds(low, found)


def tighter(first: Intervals, second: Intervals) -> Intervals:
    """The intersection of bounds."""
    return {k: _meet(first[k], second[k]) for k in first}


def _meet(first: Interval, second: Interval) -> Interval:
    return Interval(torch.maximum(first.lower, second.lower), torch.minimum(first.upper, second.upper))
