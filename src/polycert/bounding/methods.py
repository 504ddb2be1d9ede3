"""Bound methods: how linear bounds of any rows of a network's output are found, and by what intermediate bounds.

A method is a pair: where the bounds of the hidden layers come from, and how the final rows are pulled to the input.

| name        | hidden layers                    | final rows |
|-------------|----------------------------------|------------|
| `ibp`       | intervals, layer by layer        | intervals, the last affine layers fused |
| `forward`   | linear forms, their gap pushed forward | the same (Appendix A-C, "IBP-inspired") |
| `crown`     | pulled back to the input, each   | pulled back (Appendix A-B) |
| `crown-ibp` | intervals, layer by layer        | pulled back |
| `alpha-crown` | as `crown`                     | pulled back, each row with slopes optimised for it |

A proof by any of them rests on the arithmetic that `provable` and `error_model` choose for a graph.
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
from polycert.bounding.chunking import keep_freed_blocks, of_rows, of_slopes
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
    """Interval arithmetic, layer by layer; what is affine in the input is bounded over the region at once."""
    if not run.graph.depends_on_activation[index]:
        return pre_activation_by_backward(run, index)
    node = run.graph.nodes[index]
    assert node.op is not None
    return node.op.interval(*(run.interval(i) for i in node.inputs), rounding=run.rounding)


def final_by_interval(run: Pass, form: Form, side: int) -> Bound:
    """Fuse the last affine layers with the rows, then take intervals: a bound whose slope is zero."""
    if not run.graph.depends_on_activation[run.graph.output]:
        return final_by_backward(run, form, side)
    pulled = pull(run, run.graph.output, form, side, through=False)
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
    """Where hidden bounds come from, how the final rows are bounded, and how many coefficients that takes.

    `both` gives both sides of the final rows where that is less work than one after the other. `descends`: it takes
    gradients on its way.
    """

    hidden: Callable[[Pass, int], Interval]
    final: Callable[[Pass, Form, int], Bound]
    run: type[Pass] = Pass
    sloped: bool = True
    numbers: Callable[[Graph], int] = of_rows  # of one sample
    both: Callable[[Pass, Form], tuple[Bound, Bound]] | None = None
    descends: bool = False

    def sides(self, run: Pass, form: Form) -> tuple[Bound, Bound]:
        """The lower and the upper bound of rows over the output."""
        if self.both is not None:
            return self.both(run, form)
        return self.final(run, form, LOWER), self.final(run, form, UPPER)


METHODS: dict[str, Method] = {
    "ibp": Method(pre_activation_by_interval, final_by_interval, sloped=False),
    "forward": Method(pre_activation_by_backward, final_by_forward, run=ForwardPass),
    "crown": Method(pre_activation_by_backward, final_by_backward, both=both_by_backward),
    "crown-ibp": Method(pre_activation_by_interval, final_by_backward, both=both_by_backward),
    "alpha-crown": Method(pre_activation_by_backward, final_by_alpha, numbers=of_slopes, descends=True),
}


def get_method(name: str) -> Method:
    """A method by name, or a clear error."""
    if name not in METHODS:
        raise PolycertError(f"unknown method {name!r}: choose one of {', '.join(METHODS)}")
    return METHODS[name]


def get_relaxations(name: str, method: str) -> tuple[Relaxation, ...]:
    """The relaxations that a name stands for; `best` is all of them, each in a pass of its own."""
    if name != "best" and name not in RELAXATIONS:
        raise PolycertError(f"unknown relaxation {name!r}: choose one of {', '.join(RELAXATIONS)}, best")
    if method == "forward" and name != "parallel":
        raise PolycertError("method 'forward' needs one slope for both lines: use relaxation 'parallel'")
    # Interval arithmetic has no lines: one pass is enough.
    return tuple(RELAXATIONS.values()) if name == "best" and method != "ibp" else (RELAXATIONS.get(name, parallel),)


def passes(graph: Graph, region: Region, method: str, relaxation: str, rounding: Rounding | None = None) -> list[Pass]:
    """Fresh passes of a method over a region, one for each relaxation."""
    chosen = get_method(method)
    keep_freed_blocks()
    return [chosen.run(graph, region, one, chosen.hidden, rounding) for one in get_relaxations(relaxation, method)]


def provable(net: Network, graph: Graph) -> Graph:
    """The graph itself if its type can carry a proof, else the same in float64; refuses what float64 cannot mend."""
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
    """Rounding in a pass over the graph."""
    return Rounding(graph.dtype, 4 * len(graph.nodes) + 16)


def longest_sum(graph: Graph) -> int:
    """The most terms in any sum of a pass over the graph."""
    sizes = [math.prod(node.shape) for node in graph.nodes]
    terms = [max(op.terms) for op in graph.linear.values() if isinstance(op, Affine)]
    return max([*sizes, *terms, 1])


def live_graph(network: Network, inputs: Tensor, rigorous: bool) -> Graph:
    """The graph for one call: live under gradients, in a type that can carry a proof if one is asked for."""
    graph = network.trainable() if torch.is_grad_enabled() else network.bind()
    if not rigorous:
        return graph
    proof = provable(network, graph)
    return proof if holds(proof.dtype, inputs) else network.bind(torch.float64)
