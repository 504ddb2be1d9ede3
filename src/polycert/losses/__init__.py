"""Training objectives: `loss(net, x, y, ball)` is the whole scalar to minimise."""

from polycert.losses.base import Loss
from polycert.losses.draws import Draws, KeyedDraws, TorchDraws
from polycert.losses.extras import L1, Stability, Sum
from polycert.losses.mmr import MMR
from polycert.losses.per import PER
from polycert.losses.plain import AT, Plain
from polycert.losses.worst import IBP, KW, MTLIBP, MTLKW, CrownIBP

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
