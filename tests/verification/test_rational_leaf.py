"""Leaves in exact arithmetic: what float64 cannot tell apart, decided without rounding."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import nn

import polycert as pc
from polycert.graph import Graph, Node
from polycert.rules.affine import Elementwise
from polycert.verification.counterexample import CounterexampleCheck
from polycert.verification.input_split import Boxes
from polycert.verification.rational import RationalForm, RationalNetwork, Undecided
from polycert.verification.rational_leaf import positive, solve
from polycert.verification.snapshot import NetworkSnapshot
from polycert.verification.specification import Specification
from polycert.verification.verify import decide


def network(*layers: nn.Module, shape: tuple[int, ...], seed: int = 0) -> NetworkSnapshot:
    """A captured network in float64 with random weights."""
    torch.manual_seed(seed)
    module = nn.Sequential(*layers)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return NetworkSnapshot.of(pc.capture(module.double().eval(), shape))


NETWORKS = {
    "linear": lambda: network(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), shape=(3,)),
    "leaky": lambda: network(nn.Linear(3, 4), nn.LeakyReLU(0.1), nn.Linear(4, 2), nn.Hardtanh(), shape=(3,)),
    "conv": lambda: network(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2), shape=(1, 3, 3)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_exact_outputs_are_those_of_the_network(name: str) -> None:
    net = NETWORKS[name]()
    x = torch.randn(5, *net.input_shape, dtype=torch.float64)
    found = [[float(value) for value in net.exact.outputs(point).fractions()] for point in x]
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), net.double.forward(x), rtol=1e-12, atol=1e-12)


def test_exact_outputs_are_not_rounded() -> None:
    """1e16 + 1 - 1e16 is 0 in float64."""
    layer = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        layer.weight.fill_(1.0)
    exact = RationalNetwork(NetworkSnapshot.of(pc.capture(layer, (3,))).double)
    assert exact.outputs(torch.tensor([1e16, 1.0, -1e16], dtype=torch.float64)).fractions() == [1]


def test_computed_coefficients_stay_undecided() -> None:
    net = network(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2), shape=(1, 3, 3))
    with pytest.raises(Undecided):
        net.exact.outputs(torch.zeros(1, 3, 3))


def test_equations_in_fractions() -> None:
    third = Fraction(1, 3)
    assert solve([[Fraction(3), Fraction(0)]], [Fraction(1)], [Fraction(0), Fraction(7)]) == [third, 7]
    assert solve([[Fraction(1)], [Fraction(1)]], [Fraction(1), Fraction(2)], [Fraction(0)]) is None
    assert solve([], [], [Fraction(5)]) == [5]


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
def test_the_least_value_is_told_apart_from_0(norm: float) -> None:
    """3 a + 4 b falls by 4, 5 and 7 over the unit balls: exactly that is not enough, a little more is."""
    region = pc.Ball(norm, 1.0).at(torch.zeros(1, 2, dtype=torch.float64))
    drop = {1.0: 4, 2.0: 5, math.inf: 7}[norm]
    slope = [Fraction(3), Fraction(4)]
    assert not positive(region, RationalForm(slope, Fraction(drop)))
    assert positive(region, RationalForm(slope, drop + Fraction(1, 10**40)))


@pytest.mark.parametrize("norm", [1.0, 1.5, 2.0, 3.0])
def test_the_box_helps(norm: float) -> None:
    """With room on one side of the first input only, the form falls by its second input alone."""
    region = pc.Ball(norm, 1.0, low=[0.0, -9.0]).at(torch.zeros(1, 2, dtype=torch.float64))
    slope = [Fraction(3), Fraction(4)]
    assert positive(region, RationalForm(slope, 4 + Fraction(1, 10**6)))
    assert not positive(region, RationalForm(slope, 4 - Fraction(1, 10**6)))


def corner_net(bias: float) -> nn.Module:
    """Margin `relu(x) + relu(y) + bias`, which is least where both are at or below 0."""
    first, second = nn.Linear(2, 2).double(), nn.Linear(2, 2).double()
    with torch.no_grad():
        first.weight.copy_(torch.eye(2))
        first.bias.zero_()
        second.weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
        second.bias.copy_(torch.tensor([bias, 0.0], dtype=torch.float64))
    return nn.Sequential(first, nn.ReLU(), second)


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
@pytest.mark.parametrize(("bias", "status"), [(0.0, "falsified"), (2.0**-1000, "robust"), (-(2.0**-1000), "falsified")])
def test_ties_fail_and_next_to_ties_holds(norm: float, bias: float, status: str) -> None:
    """The least margin of the ball is the bias, however small."""
    net = pc.capture(corner_net(bias), (2,))
    region = pc.Ball(norm, 1.0).at(torch.full((1, 2), 0.25, dtype=torch.float64))
    found = decide(net, region, Specification.margins(0, 2), timeout=10)
    assert found.status == status
    assert (found.proof == "rigorous") == (status == "robust")


def test_a_leaf_over_all_numbers_of_float64() -> None:
    """A side that ends at the largest number, as a property may have it: half its width, made larger, has none."""
    end = torch.tensor([[1.0, torch.finfo(torch.float64).max]], dtype=torch.float64)
    net = pc.capture(corner_net(2.0**-1000), (2,))
    assert decide(net, Boxes(-end, end).region(), Specification.margins(0, 2), timeout=5).status != "falsified"


def test_a_counterexample_that_only_rounding_makes_fail_is_refused() -> None:
    """In float64 the margin at x is 0; in truth it is 1."""
    layers = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).double()
    with torch.no_grad():  # sums of two terms, which no order of summation changes
        for layer, weight in zip(layers, ([[1.0, 1.0], [1.0, 0.0]], [[1.0, -1.0], [0.0, 0.0]]), strict=True):
            layer.weight.copy_(torch.tensor(weight))
    x = torch.tensor([[1e16, 1.0]], dtype=torch.float64)
    assert float(layers(x)[0, 0]) == 0.0
    found = decide(pc.capture(layers, (2,)), pc.Ball(eps=0.0).at(x), Specification.margins(0, 2), timeout=5)
    assert found.status != "falsified"


def test_a_point_that_exact_arithmetic_cannot_judge_is_no_counterexample() -> None:
    """A batch norm computes its coefficients: its points are left to forward passes."""
    net = network(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), shape=(1, 3, 3))
    region = pc.Ball(eps=1.0).at(torch.zeros(1, 1, 3, 3, dtype=torch.float64))
    check = CounterexampleCheck(net, region, Specification.margins(0, 2))
    assert check.exactly(torch.zeros(9, dtype=torch.float64)) is None


def test_the_slope_right_of_a_bend_is_a_number_of_its_own() -> None:
    """`0.1 + (1 - 0.1)` is not 1 without rounding."""
    exact = RationalNetwork(NetworkSnapshot.of(pc.capture(nn.Sequential(nn.LeakyReLU(0.1)), (2,))).double)
    found = exact.outputs(torch.tensor([3.0, -1.0], dtype=torch.float64)).fractions()
    assert found == [3, -Fraction(0.1)]


def test_a_shift_that_was_computed_stays_undecided() -> None:
    """A stored factor may come with a shift that was rounded: its size says so."""
    shift = torch.full((1, 2), 0.1, dtype=torch.float64)
    for size, known in ((None, True), (2 * shift, False)):
        op = Elementwise(torch.ones(1, 2, dtype=torch.float64), shift, (2,), shift_magnitude=size, stored_weights=True)
        nodes = (Node("input", None, (), (2,)), Node("shift", op, (0,), (2,)))
        exact = RationalNetwork(Graph(nodes, torch.float64, torch.device("cpu")))
        if known:
            assert exact.outputs(torch.zeros(2)).fractions() == [Fraction(0.1)] * 2
        else:
            with pytest.raises(Undecided):
                exact.outputs(torch.zeros(2))


@pytest.mark.parametrize("norm", [1.5, 3.0, 7.0])
def test_coefficients_below_all_that_float64_holds_keep_their_norm(norm: float) -> None:
    """Two layers whose product is 1e-360: the least value on the ball is a tenth of its size below 0."""
    module = nn.Sequential(nn.Linear(3, 1, bias=False), nn.Linear(1, 2, bias=False)).double()
    with torch.no_grad():
        module[0].weight.fill_(1e-180)
        module[1].weight.copy_(torch.tensor([[1e-180], [0.0]], dtype=torch.float64))
    sample = torch.full((1, 3), 0.9 * 3 ** (-1 / norm), dtype=torch.float64)
    assert pc.verify(module, sample, torch.tensor([0]), pc.Ball(norm, 1.0), timeout=5).status[0] != "robust"
    assert pc.verify(module, sample * 1.3, torch.tensor([0]), pc.Ball(norm, 1.0), timeout=5).status[0] == "robust"
