"""Ops that are written as several others: a recipe is a little program of ops that have rules already."""

from __future__ import annotations

from typing import NamedTuple

from polycert.forms import Shape
from polycert.rules.op import Op


class DecompositionStep(NamedTuple):
    """One op, and where its inputs are: first the call's own inputs are counted, then the steps before."""

    op: Op
    inputs: tuple[int, ...]


class Decomposition:
    """Steps in order, the last of them being the result; or several results, for calls that give a tuple."""

    def __init__(self, *in_shapes: Shape) -> None:
        self.shapes: list[Shape] = list(in_shapes)
        self.steps: list[DecompositionStep] = []
        self.several: tuple[int, ...] | None = None

    def add(self, op: Op, *inputs: int) -> int:
        """Append an op; gives the place of its result."""
        self.steps.append(DecompositionStep(op, inputs))
        self.shapes.append(op.out_shape)
        return len(self.shapes) - 1

    def follow(self, other: Decomposition, *inputs: int) -> int:
        """Append all steps of another recipe, applied to these places."""
        places = list(inputs)
        for op, sources in other.steps:
            places.append(self.add(op, *(places[i] for i in sources)))
        return places[-1]
