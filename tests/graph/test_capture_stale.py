"""Captured networks follow their module, or say that they no longer can."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import polycert as pc


class Tied(nn.Module):
    """Two layers with one weight, and a tensor that is a mere attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.b.weight = self.a.weight
        self.shift = torch.tensor([1.0, 0.0])

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x))) + self.shift


X = torch.tensor([[3.0, 1.0]])


def test_untied_weights_are_noticed() -> None:
    model = Tied()
    net = pc.capture(model, (2,))
    with torch.no_grad():
        model.a.weight.mul_(2)  # both change
    torch.testing.assert_close(net(X), model(X))
    model.b.weight = nn.Parameter(torch.eye(2))
    with pytest.raises(pc.PolycertError, match="capture the model again"):
        pc.verify(net, X, None, pc.Ball(eps=0.1))


@pytest.mark.parametrize("in_place", [True, False])
def test_attributes_that_change_are_noticed(in_place: bool) -> None:
    model = Tied()
    net = pc.capture(model, (2,))
    if in_place:
        model.shift.add_(1)
    else:
        model.shift = model.shift + 1
    with pytest.raises(pc.PolycertError, match="shift has changed"):
        pc.certify(net, X, None, pc.Ball(eps=0.1))


def test_a_layer_that_was_replaced_by_another_kind_is_noticed() -> None:
    model = Tied()
    net = pc.capture(model, (2,))
    model.a = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(pc.PolycertError, match="capture the model again"):
        pc.certify(net, X, None, pc.Ball(eps=0.1))


class Mixed(nn.Module):
    """A float32 layer, then float64 ones whose weights float32 cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 1, bias=False)
        self.register_buffer("one", torch.ones(1, dtype=torch.float64))
        self.small, self.last = nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 2).double()
        with torch.no_grad():
            self.first.weight.fill_(1.0)
            self.small.weight.fill_(1e-46)
            self.last.weight.copy_(torch.tensor([[0.0], [1e38]], dtype=torch.float64))
            self.last.bias.copy_(torch.tensor([0.5, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.small(self.first(x) * self.one))


@pytest.mark.parametrize("method", ["crown", "ibp"])
def test_weights_longer_than_the_network_are_not_rounded_away(method: str) -> None:
    """The second logit is 1e12, and would be 0 with the weight in float32."""
    x = torch.tensor([[1e20]])
    found = pc.certify(Mixed(), x, torch.tensor([0]), pc.Ball(), method=method)
    assert not bool(found.certified[0])
    assert bool(pc.certify(Mixed(), x, torch.tensor([1]), pc.Ball(), method=method).certified[0])


def test_a_batch_norm_with_an_endless_eps_is_refused() -> None:
    with pytest.raises(pc.PolycertError, match="eps must be between"):
        pc.capture(nn.Sequential(nn.BatchNorm1d(2, eps=1e40)).eval(), (2,))
