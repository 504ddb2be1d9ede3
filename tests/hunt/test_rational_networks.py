"""Exact arithmetic of `verify` against the hunt's oracle, on every network whose coefficients are stored."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from polycert.errors import PolycertError
from polycert.verification.rational import RationalNetwork, Undecided, Whole, beyond, pieces_of
from polycert.verification.snapshot import NetworkSnapshot
from tests.hunt.decisions import fraction
from tests.hunt.nets import NETS, traced
from tests.hunt.oracle import exact, precise

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_arithmetic_rounds_nothing(dtype: str) -> None:
    """Outputs are those of 1,600 bits, and the affine function of the pieces around a point has them there."""
    decided = 0
    for name in NETS:
        try:
            made = traced(name, dtype)
            x = torch.randn(made.network.input_shape, generator=torch.Generator().manual_seed(0))
            net = NetworkSnapshot.of(made.network).exact
            found = net.outputs(x).fractions()
        except (Undecided, PolycertError):
            continue
        decided += 1
        with precise():
            assert found == [fraction(value) for value in made.oracle.outputs(exact(x)).flatten()], name
        assert _by_pieces(net, x) == found[0], name
    assert decided > 50


def _by_pieces(net: RationalNetwork, x: torch.Tensor) -> Fraction:
    """The first output by the affine function of the pieces that hold at a point."""
    graph, values, sides = net.graph, [Whole.of(x)], {}
    for index, node in enumerate(graph.nodes[1:], start=1):
        inputs = [values[k] for k in node.inputs]
        if index in graph.activations:
            sides[index] = torch.from_numpy(beyond(inputs[0], pieces_of(graph, index)))
        values.append(net._value(index, inputs))
    first = torch.zeros(len(values[-1].values), dtype=torch.float64)
    first[0] = 1
    form = net.pull({graph.output: Whole.of(first)}, sides)
    pairs = zip(form.coefficients, x.flatten().tolist(), strict=True)
    return sum((a * Fraction(b) for a, b in pairs), form.constant)
