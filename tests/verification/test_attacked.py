"""What an attack on the verifier found, and what was repaired since."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
import torch
from torch import nn

import polycert as pc
from polycert.graph import Graph
from polycert.verification.question import VerificationSettings
from polycert.verification.verify import ask


def layers(*sizes: int) -> nn.Sequential:
    """A ReLU network of these widths with random weights."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        parts += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def test_tied_samples_keep_the_total_time() -> None:
    """100 samples on a tie, each of which costs exact arithmetic a tenth of a second, end soon after their limit."""
    net = layers(784, 300, 300, 300, 10)
    with torch.no_grad():
        net[-1].weight[1] = net[-1].weight[0]
        net[-1].bias[:2] = 50.0
    captured = pc.capture(net, (784,))
    started = time.process_time()  # of the CPU, so that other processes do not count
    pc.verify(
        captured, torch.rand(100, 784), torch.zeros(100, dtype=torch.long), pc.Ball(eps=0.01), timeout=0.5, total=0.5
    )
    assert time.process_time() - started < 0.5 + 2


def test_an_attack_on_samples_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack that begins after its deadline takes a few forward passes at most, not 3 restarts of 40 steps."""
    x = torch.rand(4, 5)
    question = ask(layers(5, 8, 3), x, None, pc.Ball(eps=1e-4), VerificationSettings())
    forward, passes = Graph.forward, []

    def counted(graph: Graph, inputs: torch.Tensor) -> torch.Tensor:
        passes.append(len(inputs))
        return forward(graph, inputs)

    monkeypatch.setattr(Graph, "forward", counted)
    list(question.attack(time.monotonic() - 1))
    assert len(passes) < 10


class AddMean(nn.Module):
    """Each entry plus the mean of all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """An op that computes its coefficients."""
        return x + x.mean(1, keepdim=True)


BELOW_ROUNDING = {
    "a mean": lambda: nn.Sequential(AddMean(), nn.Linear(3, 2)),
    "a large op": lambda: layers(3, 2100, 2100, 2),
}


@pytest.mark.parametrize("name", BELOW_ROUNDING)
def test_what_only_rounding_makes_fail_is_never_falsified(name: str) -> None:
    """Both scores are the same function, but for 1e-20 in favour of the label: nothing fails in exact arithmetic."""
    torch.manual_seed(0)
    net = BELOW_ROUNDING[name]()
    with torch.no_grad():
        net[-1].weight[1] = net[-1].weight[0]
        net[-1].bias.copy_(torch.tensor([1e-20, 0.0]))
    found = pc.verify(net, torch.rand(1, 3) + 5, torch.tensor([0]), pc.Ball(eps=0.1), timeout=2)
    assert found.status != ("falsified",)
