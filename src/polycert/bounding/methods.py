"""Bound methods: linear bounds of any rows over a network's output.

A method is a pair: how pre-activation bounds are computed, and how the final rows are bounded.

| name          | pre-activation bounds                  | final rows |
|---------------|----------------------------------------|------------|
| `ibp`         | intervals, layer by layer              | intervals, after fusion with the last affine layers |
| `forward`     | linear forms, their gap pushed forward | the same (Appendix A-C, "IBP-inspired") |
| `crown`       | backward to the input                  | backward (Appendix A-B) |
| `crown-ibp`   | intervals, layer by layer              | backward |
| `alpha-crown` | as `crown`                             | backward, with slopes optimised for each row |

`provable` and `error_model` choose the arithmetic on which a proof rests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.bounding.alpha_crown import final_by_alpha
from polycert.bounding.backward import (
    LOWER,
    UPPER,
    Bound,
    Pass,
    both_by_backward,
    final_by_backward,
    pre_activation_by_backward,
    pull,
)
from polycert.bounding.chunking import alpha_coefficients, final_coefficients, reuse_freed_blocks
from polycert.bounding.forward import ForwardPass, final_by_forward
from polycert.bounding.relaxations import RELAXATIONS, Relaxation, parallel
from polycert.errors import PolycertError
from polycert.forms import Dense, Form
from polycert.graph import Graph, Network
from polycert.rules import Affine
from polycert.runtime.execution import flushes, full_precision
from polycert.sets.ball import Region
from polycert.sets.interval import Interval, Rounding, holds


def pre_activation_by_interval(run: Pass, index: int) -> Interval:
    """Bounds of a node by interval arithmetic; those of nodes that are affine in the input, over the region at once."""
    if not run.graph.depends_on_activation[index]:
        return pre_activation_by_backward(run, index)
    node = run.graph.nodes[index]
    assert node.op is not None
    return node.op.interval(*(run.interval(i) for i in node.inputs), rounding=run.rounding)


def final_by_interval(run: Pass, form: Form, side: int) -> Bound:
    """The interval bound of rows over the output, after fusion with the last affine layers; its slope is 0."""
    if not run.graph.depends_on_activation[run.graph.output]:
        return final_by_backward(run, form, side)
    pulled = pull(run, run.graph.output, form, side, stop=run.graph.layout.fusion_ends)
    total = pulled.middle + side * pulled.spread
    slack = pulled.slack
    for index, part in pulled.forms.items():
        given = run.interval(index)
        centre, half = given.middle(run.rounding is not None)
        total = total + part.dot(centre) + side * part.abs_dot(half)
        if run.rounding is not None:
            slack = slack + part.abs_dot(3 * run.rounding.gamma(part.length) * given.magnitude + run.rounding.tiny)
    rows = part.dot(centre) * 0
    zero = Dense(run.like.new_zeros(1, rows.shape[1], *run.graph.input_shape))
    if run.rounding is None:
        return Bound(zero, rows + total, None)
    width = rows.detach() + slack * 1.01 + run.rounding.tiny
    return Bound(zero, rows + total + side * width, width)


class Method(NamedTuple):
    """A bound method.

    Attributes:
        pre_activation: bounds of a node's value.
        final: the bound of rows over the output, on one side.
        pass_class: the class that stores the bounds.
        sloped: whether the final bounds have a slope other than 0.
        numbers: the coefficients that it stores per sample.
        both: the bounds on both sides, if that costs less than one after the other.
        uses_gradients: whether it computes gradients itself, so that inference mode is not possible.
    """

    pre_activation: Callable[[Pass, int], Interval]
    final: Callable[[Pass, Form, int], Bound]
    pass_class: type[Pass] = Pass
    sloped: bool = True
    numbers: Callable[[Graph], int] = final_coefficients
    both: Callable[[Pass, Form], tuple[Bound, Bound]] | None = None
    uses_gradients: bool = False

    def sides(self, run: Pass, form: Form) -> tuple[Bound, Bound]:
        """The lower and the upper bound of rows over the output."""
        if self.both is not None:
            return self.both(run, form)
        return self.final(run, form, LOWER), self.final(run, form, UPPER)


METHODS: dict[str, Method] = {
    "ibp": Method(pre_activation_by_interval, final_by_interval, sloped=False),
    "forward": Method(pre_activation_by_backward, final_by_forward, pass_class=ForwardPass),
    "crown": Method(pre_activation_by_backward, final_by_backward, both=both_by_backward),
    "crown-ibp": Method(pre_activation_by_interval, final_by_backward, both=both_by_backward),
    "alpha-crown": Method(pre_activation_by_backward, final_by_alpha, numbers=alpha_coefficients, uses_gradients=True),
}


def get_method(name: str) -> Method:
    """The method of that name; raises `PolycertError` if there is none."""
    if name not in METHODS:
        raise PolycertError(f"unknown method {name!r}: choose one of {', '.join(METHODS)}")
    return METHODS[name]


def get_relaxations(name: str, method: str) -> tuple[Relaxation, ...]:
    """The relaxations that a name stands for: one, or all for `best`, which are used in separate passes."""
    if name != "best" and name not in RELAXATIONS:
        raise PolycertError(f"unknown relaxation {name!r}: choose one of {', '.join(RELAXATIONS)}, best")
    if method == "forward" and name != "parallel":
        raise PolycertError("method 'forward' needs one slope for both lines: use relaxation 'parallel'")
    # Interval arithmetic uses no lines: one pass is enough.
    return tuple(RELAXATIONS.values()) if name == "best" and method != "ibp" else (RELAXATIONS.get(name, parallel),)


def passes(graph: Graph, region: Region, method: str, relaxation: str, rounding: Rounding | None = None) -> list[Pass]:
    """New passes of a method over a region, one for each relaxation.

    They do not share pre-activation bounds: tighter ones make CROWN choose other slopes, which may be worse for a row,
    and `best` is never looser than either relaxation.
    """
    chosen = get_method(method)
    reuse_freed_blocks()
    relaxations = get_relaxations(relaxation, method)
    return [chosen.pass_class(graph, region, lines, chosen.pre_activation, rounding) for lines in relaxations]


def provable(net: Network, graph: Graph) -> Graph:
    """The graph if rigorous bounds can be computed in its type, else the network in float64.

    Raises `PolycertError` where float64 would not help: computed weights, or subnormal numbers flushed to 0.
    """
    if graph.computed:
        raise PolycertError(
            f"rigorous bounds need stored weights, but the model computes some (node '{graph.computed[0]}'): "
            "fold them into parameters, or use rigorous=False"
        )
    if flushes():
        raise PolycertError(
            "rigorous bounds need subnormal numbers, but this thread takes them for 0: "
            "call torch.set_flush_denormal(False) first, or use rigorous=False"
        )
    fits = not graph.narrowed and error_model(graph).usable(longest_sum(graph)) and full_precision(graph.device)
    return graph if fits or graph.dtype == torch.float64 else net.bind(torch.float64)


def error_model(graph: Graph) -> Rounding:
    """The error model of a pass over the graph."""
    return Rounding(graph.dtype, 4 * len(graph.nodes) + 16)


def longest_sum(graph: Graph) -> int:
    """The most terms of any sum in a pass over the graph."""
    sizes = [math.prod(node.shape) for node in graph.nodes]
    terms = [max(op.terms) for op in graph.linear.values() if isinstance(op, Affine)]
    return max([*sizes, *terms, 1])


def live_graph(network: Network, inputs: Tensor, rigorous: bool) -> Graph:
    """The graph for one call: with live parameters if gradients are on; if `rigorous`, in a type that allows proofs."""
    graph = network.trainable() if torch.is_grad_enabled() else network.bind()
    if not rigorous:
        return graph
    proof = provable(network, graph)
    return proof if holds(proof.dtype, inputs) else network.bind(torch.float64)
