"""One rule per op: the only place that knows what an op does."""

from polycert.rules import (
    affine,
    arithmetic,
    bilinear,
    bump,
    conv2d,
    convex,
    indexing,
    maximum,
    piecewise_linear,
    pooling,
    recurrent,
    s_shaped,
)
from polycert.rules.activation import Activation, Lines, Pieces
from polycert.rules.op import Affine, Decomposition, Linear, Op
from polycert.rules.registry import RULES, Call, Value

__all__ = [
    "RULES",
    "Activation",
    "Affine",
    "Call",
    "Decomposition",
    "Linear",
    "Lines",
    "Op",
    "Pieces",
    "Value",
    "affine",
    "arithmetic",
    "bilinear",
    "bump",
    "conv2d",
    "convex",
    "indexing",
    "maximum",
    "piecewise_linear",
    "pooling",
    "recurrent",
    "s_shaped",
]
