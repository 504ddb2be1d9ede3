"""Training objectives: `loss(net, x, y, ball)` is the whole scalar to minimise."""

from polycert.losses.loss import AT, Loss, Plain
from polycert.losses.mmr import MMR
from polycert.losses.per import PER
from polycert.losses.random_draws import Draws, KeyedDraws, TorchDraws
from polycert.losses.regularisers import L1, Stability, Sum
from polycert.losses.worst_case import IBP, KW, MTLIBP, MTLKW, CrownIBP

__all__ = [
    "AT",
    "IBP",
    "KW",
    "L1",
    "MMR",
    "MTLIBP",
    "MTLKW",
    "PER",
    "CrownIBP",
    "Draws",
    "KeyedDraws",
    "Loss",
    "Plain",
    "Stability",
    "Sum",
    "TorchDraws",
]
