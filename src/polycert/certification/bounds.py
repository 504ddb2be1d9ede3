"""`bounds`: bounds of a network's outputs, or of linear functions of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polycert.bounding.backward import Pass, concretise_bounds
from polycert.bounding.chunking import CHUNK, row_width
from polycert.bounding.methods import error_model, get_method, live_graph, passes
from polycert.errors import PolycertError
from polycert.forms import Dense, Form, Identity, Selected
from polycert.graph import Graph, Network
from polycert.graph.fingerprint import network_digest
from polycert.graph.inputs import as_inputs
from polycert.records.certificates import Bounds
from polycert.records.provenance import box_text
from polycert.runtime.execution import plain_products
from polycert.sets.ball import Array, Ball
from polycert.sets.interval import holds

MOST_COEFFICIENTS = 2**27  # of the rows of `bounds`: if there are more, a part of the rows is bounded at a time


def bounds(
    net: Network | nn.Module,
    x: Array,
    ball: Ball,
    *,
    spec: Array | None = None,
    method: str = "crown",
    relaxation: str = "parallel",
    rigorous: bool = False,
) -> Bounds:
    """Bounds of the network's outputs over each sample's set, or of linear functions of them.

    Args:
        spec: the coefficients of the functions, `[rows, outputs]` or `[n, rows, outputs]`; None for the outputs.

    The other arguments are those of `certify`. Differentiable in the network's parameters.
    """
    network, inputs = as_inputs(net, x)
    if network.softmax:
        raise PolycertError("the network ends in a softmax, which was dropped: bound a model that returns logits")
    graph = live_graph(network, inputs, rigorous)
    if rigorous and spec is not None and not holds(graph.dtype, torch.as_tensor(spec)):
        graph = network.bind(torch.float64)
    region = ball.at(inputs.to(graph.dtype))
    if rigorous:
        network.check_inside(region)
    rounding = error_model(graph) if rigorous else None
    asked = SpecRows.of(graph, spec)
    with plain_products(graph.device) if rigorous else nullcontext():
        runs = passes(graph, region, method, relaxation, rounding)
        found = [_bounds_of(run, asked, method) for run in runs]
    lower, upper = found[0]
    for low, high in found[1:]:
        lower, upper = torch.maximum(lower, low), torch.minimum(upper, high)
    return Bounds(
        lower.reshape(-1, *asked.shape),
        upper.reshape(-1, *asked.shape),
        eps=region.eps,
        norm=region.norm,
        box=box_text(ball.low, ball.high),
        method=method,
        relaxation=relaxation,
        rigorous=rigorous,
        network=network_digest(network) if rigorous else None,
    )


def _bounds_of(run: Pass, asked: SpecRows, method: str) -> tuple[Tensor, Tensor]:
    """Return lower and upper bounds of rows over the output, `[batch, rows]` each, a part of the rows at a time."""
    rows = math.prod(asked.shape)
    width = len(run.region.x) * max(math.prod(run.graph.output_shape), row_width(run.graph, run.graph.output))
    most = rows if rows * width <= MOST_COEFFICIENTS else max(1, CHUNK // width)
    if most >= rows:
        forms = [asked.form]
    else:
        forms = [asked.some(begin, min(begin + most, rows), len(run.region.x)) for begin in range(0, rows, most)]
    ends = [concretise_bounds(run, *get_method(method).sides(run, form), joint=True) for form in forms]
    lower, upper = (torch.cat(side, 1) for side in zip(*ends, strict=True))
    return lower, upper


class SpecRows(NamedTuple):
    """Linear functions of the output: all of them as one form, and the shape of their values."""

    form: Form
    shape: tuple[int, ...]
    some: Callable[[int, int, int], Form]  # the rows from one to another, for so many samples

    @staticmethod
    def of(graph: Graph, spec: Array | None) -> SpecRows:
        """Build the rows from coefficients `[rows, outputs]` or `[n, rows, outputs]`; None asks for the outputs."""
        like = torch.empty(0, dtype=graph.dtype, device=graph.device)
        if spec is None:

            def entries(begin: int, end: int, samples: int) -> Form:
                units = torch.arange(begin, end, device=graph.device).expand(samples, -1)
                return Selected(graph.output_shape, like, units)

            return SpecRows(Identity(graph.output_shape, like), graph.output_shape, entries)
        rows = torch.as_tensor(spec, dtype=graph.dtype, device=graph.device)
        if rows.dim() == 1 + len(graph.output_shape):
            rows = rows.unsqueeze(0)
        if tuple(rows.shape[2:]) != graph.output_shape:
            raise PolycertError(
                f"spec must have rows of shape {graph.output_shape}, the network's output, got {tuple(rows.shape[2:])}"
            )
        return SpecRows(Dense(rows), (rows.shape[1],), lambda begin, end, _: Dense(rows[:, begin:end]))
