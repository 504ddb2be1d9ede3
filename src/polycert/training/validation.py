"""Errors on held-out samples of the training set. No parameter's gradient and no random number is involved."""

from __future__ import annotations

import torch
from torch import Tensor

from polycert.attacks.pgd import margin_of, pgd_attack
from polycert.certification.certify import envelope
from polycert.graph import Graph, Network
from polycert.sets.ball import Ball

BATCH = 500


def validate(net: Network, x: Tensor, y: Tensor, ball: Ball, certified: int, batch_size: int) -> dict[str, float]:
    """Clean error on all samples and certified error on the first `certified` of them, in per cent."""
    if not len(x):
        return {}
    with torch.no_grad():
        graph = net.bind()
        predicted = torch.cat([graph.forward(part).argmax(1) for part in x.split(BATCH)])
    found = {"validation_CTE": 100 * float((predicted != y).double().mean())}
    if certified:
        few = zip(x[:certified].split(batch_size), y[:certified].split(batch_size), strict=True)
        proved = torch.cat([_proved(net, graph, *part, ball) for part in few])
        found["validation_CRE"] = 100 * float((~proved).double().mean())
    return found


@torch.no_grad()
def _proved(net: Network, graph: Graph, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
    """Whether `ibp` or `crown` proves the whole ball. What one step of an attack breaks is not asked: bounds cost more.

    Networks trained by intervals are often proved by nothing else.
    """
    struck = pgd_attack(graph, ball.at(x), y, x, steps=1, step=1.0)
    left = (margin_of(graph.forward(struck), y) > 0).nonzero().squeeze(1)
    proved = torch.zeros_like(y, dtype=torch.bool)
    for method in ("ibp", "crown"):
        if len(left):
            proved[left] = (envelope(net, x[left], y[left], ball, method=method).margins() > 0).all(1)
            left = left[~proved[left]]
    return proved
