"""Piecewise linear networks in exact arithmetic, for near ties that float64 is too coarse to decide.

Floating-point numbers are whole numbers times powers of two, and so are sums of their products: Python's integers hold
them without rounding. Only ops whose coefficients are stored numbers can be written out like this. A batch norm or a
mean computes its coefficients; a network with one of these, or with very large ops, stays undecided here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polycert.bounding.methods import error_model
from polycert.forms import Identity
from polycert.graph import Graph
from polycert.rules import Activation, Linear, Pieces

LARGEST_OP = 2**22  # coefficients of one op, zeros included: more would take seconds and gigabytes
MANTISSA = 53  # bits of a float64's mantissa


class Undecided(Exception):
    """Exact arithmetic cannot tell: the network is too large, or an op has no stored coefficients."""


class Whole(NamedTuple):
    """The numbers `values 2^exponent`; `values` is a flat array of Python integers."""

    values: np.ndarray
    exponent: int

    @staticmethod
    def of(numbers: Tensor) -> Whole:
        """Return floating-point numbers without rounding, flattened."""
        flat = numbers.detach().double().flatten()
        if not bool(torch.isfinite(flat).all()):
            raise Undecided
        mantissa, exponent = np.frexp(flat.numpy())
        least = int(exponent[mantissa != 0].min(initial=0))
        shift = np.where(mantissa != 0, exponent - least, 0).astype(object)
        digits = (mantissa * 2.0**MANTISSA).astype(np.int64).astype(object)
        return Whole(digits * 2**shift, least - MANTISSA)

    @staticmethod
    def zeros(count: int) -> Whole:
        """Return `count` zeros."""
        return Whole(np.zeros(count, np.int64).astype(object), 0)

    def plus(self, other: Whole) -> Whole:
        """Return the sum, entry by entry."""
        least = min(self.exponent, other.exponent)
        return Whole(self.at(least) + other.at(least), least)

    def times(self, other: Whole) -> Whole:
        """Return the product, entry by entry."""
        return Whole(self.values * other.values, self.exponent + other.exponent)

    def total(self) -> Fraction:
        """Return the sum of all entries."""
        return int(self.values.sum()) * Fraction(2) ** self.exponent

    def at(self, exponent: int) -> np.ndarray:
        """Return the integers that stand for the same numbers with another exponent, which is not larger."""
        shifted: np.ndarray = self.values * 2 ** (self.exponent - exponent)
        return shifted

    def fractions(self) -> list[Fraction]:
        """Return the numbers as fractions."""
        unit = Fraction(2) ** self.exponent
        return [int(value) * unit for value in self.values]


class Matrix(NamedTuple):
    """A sparse matrix: the entries that are not 0, and where they are."""

    rows: np.ndarray
    columns: np.ndarray
    entries: Whole
    shape: tuple[int, int]

    @staticmethod
    def of(matrix: Tensor) -> Matrix:
        """Return the sparse form of a dense matrix `[rows, columns]`."""
        rows, columns = matrix.nonzero(as_tuple=True)
        return Matrix(rows.numpy(), columns.numpy(), Whole.of(matrix[rows, columns]), (len(matrix), matrix.shape[1]))

    def apply(self, vector: Whole) -> Whole:
        """Return the product with a column vector: `[rows]`."""
        return self._product(vector, self.columns, self.rows, self.shape[0])

    def pull(self, vector: Whole) -> Whole:
        """Return the product with a row vector from the left: `[columns]`."""
        return self._product(vector, self.rows, self.columns, self.shape[1])

    def _product(self, vector: Whole, read: np.ndarray, write: np.ndarray, size: int) -> Whole:
        """Add up entries times the vector's values at `read`, in the places `write` of a vector of some size."""
        there = vector.values[read] != 0
        found = np.zeros(size, np.int64).astype(object)
        np.add.at(found, write[there], vector.values[read[there]] * self.entries.values[there])
        return Whole(found, vector.exponent + self.entries.exponent)


class RationalForm(NamedTuple):
    """The affine function `coefficients . x + constant` of the network's input."""

    coefficients: list[Fraction]
    constant: Fraction


@dataclass(frozen=True, eq=False)
class RationalNetwork:
    """A network whose values are computed without rounding."""

    graph: Graph  # float64
    _written: dict[int, tuple[list[Matrix | None], Whole | None]] = field(default_factory=dict)  # coefficients by node

    def outputs(self, point: Tensor) -> Whole:
        """Return the network's output at one input, `[outputs]`."""
        found = [Whole.of(point)]
        for index, node in enumerate(self.graph.nodes[1:], start=1):
            inputs = [found[k] for k in node.inputs]
            found.append(self._value(index, inputs))
        return found[-1]

    def _value(self, index: int, inputs: list[Whole]) -> Whole:
        """Return a node's value for the values of its inputs."""
        if isinstance(self.graph.nodes[index].op, Activation):
            (z,) = inputs
            slope, constant = piece(pieces_of(self.graph, index), beyond(z, pieces_of(self.graph, index)))
            return slope.times(z).plus(constant)
        matrices, bias = self._coefficients(index)
        total = Whole.zeros(math.prod(self.graph.nodes[index].shape)) if bias is None else bias
        for matrix, value in zip(matrices, inputs, strict=True):
            total = total if matrix is None else total.plus(matrix.apply(value))
        return total

    def pull(self, rows: Mapping[int, Whole], sides: Mapping[int, Tensor]) -> RationalForm:
        """Return a sum of rows over nodes as an affine function of the input, with every activation on one piece.

        Args:
            rows: the coefficients of nodes' values, by node.
            sides: whether an activation's input is beyond each bend, `[bends, size]`, by activation.
        """
        waiting, constant = dict(rows), Fraction(0)
        for index in range(self.graph.output, 0, -1):
            if index not in waiting:
                continue
            row = waiting.pop(index)
            parts, part = self._pull(index, row, sides)
            constant += part
            for source, added in zip(self.graph.nodes[index].inputs, parts, strict=True):
                if added is None:
                    continue
                waiting[source] = waiting[source].plus(added) if source in waiting else added
        left = waiting.get(0, Whole.zeros(math.prod(self.graph.input_shape)))
        return RationalForm(left.fractions(), constant)

    def _pull(self, index: int, row: Whole, sides: Mapping[int, Tensor]) -> tuple[list[Whole | None], Fraction]:
        """Return a row over a node as rows over the node's inputs, None where they are 0, and a constant."""
        if isinstance(self.graph.nodes[index].op, Activation):
            slope, constant = piece(pieces_of(self.graph, index), sides[index].numpy())
            return [row.times(slope)], row.times(constant).total()
        matrices, bias = self._coefficients(index)
        rows = [None if matrix is None else matrix.pull(row) for matrix in matrices]
        return rows, Fraction(0) if bias is None else row.times(bias).total()

    def _coefficients(self, index: int) -> tuple[list[Matrix | None], Whole | None]:
        """Return a matrix for each input of an affine node, None where it is 0, and its constants if it has any."""
        if index not in self._written:
            op, sources = self.graph.nodes[index].op, self.graph.nodes[index].inputs
            shapes = [self.graph.nodes[k].shape for k in sources]
            size = math.prod(self.graph.nodes[index].shape)
            if not isinstance(op, Linear) or size * max(math.prod(shape) for shape in shapes) > LARGEST_OP:
                raise Undecided
            entries = Identity(op.out_shape, torch.zeros(1, dtype=torch.float64))
            ones = [torch.ones(1, *shape, dtype=torch.float64) for shape in shapes]
            if op.pull_error(entries, ones, error_model(self.graph)) is not None:
                raise Undecided
            # A bias that is not as large as its magnitude was computed with rounding.
            if op.bias is not None and not torch.equal(op.bias.abs(), _size(op.bias_magnitude)):
                raise Undecided
            forms = op.pull(entries)
            matrices = [None if form is None else Matrix.of(form.dense().coef.flatten(2)[0]) for form in forms]
            self._written[index] = matrices, None if op.bias is None else Whole.of(op.bias)
        return self._written[index]


def _size(magnitude: Tensor | None) -> Tensor:
    """Return the magnitude, which every op with a bias has."""
    assert magnitude is not None
    return magnitude


def pieces_of(graph: Graph, index: int) -> Pieces:
    """Return the pieces of an activation node; a smooth activation has none and is `Undecided`."""
    pieces = graph.activation(index).pieces
    if pieces is None:
        raise Undecided
    return pieces


def beyond(z: Whole, pieces: Pieces) -> np.ndarray:
    """Return which of the bends each number has passed, `[bends, size]`."""
    values = z.fractions()
    passed = [[value >= Fraction(at) for value in values] for at in pieces.ends]
    return np.array(passed, dtype=bool).reshape(len(pieces.ends), len(values))


def piece(pieces: Pieces, passed: np.ndarray) -> tuple[Whole, Whole]:
    """Return slope and constant of the piece that each entry is on, by the bends `[bends, size]` that it has passed."""
    place = torch.from_numpy(passed.sum(0))
    slope = Whole.of(torch.tensor(pieces.slopes, dtype=torch.float64)[place])
    constant = Whole.of(torch.full(place.shape, pieces.value, dtype=torch.float64))
    for at, (before, after), there in zip(pieces.ends, pairwise(pieces.slopes), passed, strict=True):
        bent = torch.from_numpy(there.astype(np.float64))
        for change in (before, -after):
            constant = constant.plus(Whole.of(bent * change).times(Whole.of(bent * at)))
    return slope, constant
