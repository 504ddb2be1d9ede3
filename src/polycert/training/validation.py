"""Errors on held-out samples of the training set. No gradient and no random number is involved."""

from __future__ import annotations

import torch
from torch import Tensor

from polycert.certify import certify
from polycert.graph import Network
from polycert.sets import Ball

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
        few = slice(certified)
        certs = certify(net, x[few], y[few], ball, rigorous=False, batch_size=batch_size)
        found["validation_CRE"] = certs.summary()["CRE"]
    return found
