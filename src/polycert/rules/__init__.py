"""One rule per op: the only place that knows what the op does."""

from polycert.rules import (
    affine,
    arithmetic,
    bump,
    composed,
    conv2d,
    conv_rules,
    convex,
    indexing,
    maximum,
    moves,
    piecewise_linear,
    pooling,
    recurrent,
    s_shaped,
)
from polycert.rules.activation import Activation, Lines, Pieces
from polycert.rules.examples import Example
from polycert.rules.op import Affine, Decomposition, Linear, Op
from polycert.rules.registry import RULES, Call, Rule, Value

__all__ = [
    "RULES",
    "Activation",
    "Affine",
    "Call",
    "Decomposition",
    "Example",
    "Linear",
    "Lines",
    "Op",
    "Pieces",
    "Rule",
    "Value",
    "affine",
    "arithmetic",
    "bump",
    "composed",
    "conv2d",
    "conv_rules",
    "convex",
    "indexing",
    "maximum",
    "moves",
    "piecewise_linear",
    "pooling",
    "recurrent",
    "s_shaped",
]
