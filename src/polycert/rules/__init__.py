"""One rule per op: the only place that knows what an op does."""

from polycert.rules import activation, affine, convolution, pooling, shape
from polycert.rules.base import RULES, Activation, Affine, Call, Interval, Linear, Lines, Op, Pieces, Value

__all__ = [
    "RULES",
    "Activation",
    "Affine",
    "Call",
    "Interval",
    "Linear",
    "Lines",
    "Op",
    "Pieces",
    "Value",
    "activation",
    "affine",
    "convolution",
    "pooling",
    "shape",
]
