"""Exact arithmetic for leaves that float64 is too coarse to decide.

With every unit held on one side the network is affine, and the solution of the leaf's program (`programs.solve_leaf`)
says which rows are tight and which inputs stand at an end of the box. For any multipliers beta >= 0 of the units and
w >= 0 of a clause's rows, all points of the leaf satisfy

    w . rows(x)  >=  L(x) = w . rows(x) - sum over units on of beta z(x) + sum over units off of beta z(x),

so that a positive minimum of L over the region proves the leaf. L is computed without rounding. Unless the solver's
point lies on the round side of a ball, the multipliers are also solved for in fractions, such that L does not change
with the inputs that stand at no end. If the clause fails at this vertex of the leaf, in a tie for instance, the vertex
is a counterexample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.sets.ball import Region
from polycert.sets.geometry import drop_prices, power_norm
from polycert.verification.beta_crown import ON, Nodes
from polycert.verification.programs import LeafSolution
from polycert.verification.rational import RationalForm, RationalNetwork, Whole
from polycert.verification.reduced_problem import Reduced

MOST_ROWS = 60  # so many equations are solved in fractions, at most
NEAR_AN_END = 1e-7  # an input nearer to an end than this share of eps stands at it
SAFETY = Fraction(1, 2**50)  # relative error of a norm in float64 for each of its terms, and for a thousand more

Numbers = list[Fraction]


class ExactLeaf:
    """One leaf of a reduced problem."""

    def __init__(self, problem: Reduced, exact: RationalNetwork, node: Nodes, leaf: LeafSolution) -> None:
        self.region, self.exact, self.origin = problem.region, exact, problem.origin
        self.clause = problem.members[int(node.clause)]
        self.on = node.split[0] == ON
        self.sides = self.origin.held(self.on)
        self.beta, self.weight = leaf.beta[0], leaf.weight[0]
        self.inputs = leaf.inputs[0]

    def proved(self) -> bool:
        """Whether no point of the leaf fails, proved by the solver's multipliers or by those of its vertex."""
        if positive(self.region, self._sum(_fractions(self.weight), _fractions(self.beta))):
            return True
        solved = self._multipliers()
        return solved is not None and positive(self.region, self._sum(*solved))

    def vertex(self) -> Tensor | None:
        """Return the point `[inputs]` at which all tight rows are 0, or None if float64 cannot hold it."""
        tight, face = self._tight(), self._face()
        if face is None or len(tight) > MOST_ROWS:
            return None
        free = [i for i, end in enumerate(face.ends) if end is None]
        equations, right = [], []
        for row in map(self._row, tight):
            fixed = (a * end for a, end in zip(row.coefficients, face.ends, strict=True) if end is not None)
            equations.append([row.coefficients[i] for i in free])
            right.append(-row.constant - sum(fixed, Fraction(0)))
        if face.signs is not None:
            equations.append([face.signs[i] for i in free])
            right.append(face.reach)
        found = solve(equations, right, _fractions(self.inputs[free]))
        if found is None:
            return None
        solved = dict(zip(free, found, strict=True))
        point = [solved[i] if end is None else end for i, end in enumerate(face.ends)]
        numbers = [_float(value) for value in point]
        held = all(map(math.isfinite, numbers)) and [Fraction(number) for number in numbers] == point
        return torch.tensor(numbers, dtype=torch.float64) if held else None

    def _multipliers(self) -> tuple[Numbers, Numbers] | None:
        """Return weights and split multipliers such that L does not change with inputs that stand at no end."""
        tight, face = self._tight(), self._face()
        if face is None or len(tight) > MOST_ROWS:
            return None
        rows = [self._row(k) for k in tight]
        prices = _fractions(torch.cat([self.beta, self.weight]))
        units = len(self.beta)
        # The last unknown is the price of a step away from the sample, where the point lies on the ball's surface.
        signs = [Fraction(0)] * len(face.ends) if face.signs is None else face.signs
        free = [i for i, end in enumerate(face.ends) if end is None]
        equations = [[*(row.coefficients[i] for row in rows), signs[i]] for i in free]
        equations.append([*(Fraction(k >= units) for k in tight), Fraction(0)])
        right = [*(Fraction(0) for _ in free), sum(prices[units:], Fraction(0))]
        found = solve(equations, right, [*(prices[k] for k in tight), Fraction(0)])
        if found is None or min(found[:-1]) < 0:
            return None
        whole = math.lcm(*(price.denominator for price in found))  # multipliers may be scaled
        every = [Fraction(0)] * len(prices)
        for k, price in zip(tight, found, strict=False):
            every[k] = price * whole
        return every[units:], every[:units]

    def _tight(self) -> list[int]:
        """Return the numbers of the rows with a price: first units, then rows of the specification."""
        found: list[int] = torch.cat([self.beta, self.weight]).nonzero().flatten().tolist()
        return found

    def _row(self, k: int) -> RationalForm:
        """Return the k-th row as a function of the input: minus a unit that is on, a unit that is off, or a row."""
        price = torch.zeros(len(self.beta) + len(self.weight), dtype=torch.float64)
        price[k] = 1
        beta, weight = _fractions(price[: len(self.beta)]), _fractions(price[len(self.beta) :])
        return self._sum(weight, beta)

    def _sum(self, weight: Numbers, beta: Numbers) -> RationalForm:
        """Return L as an affine function of the input."""
        graph, spec = self.origin.graph, self.origin.spec
        rows: dict[int, Whole] = {}
        constant = Fraction(0)
        for k in self.clause.nonzero().flatten().tolist():
            if weight[k]:
                _add(rows, graph.output, _scaled(Whole.of(spec.rows[k]), weight[k]))
                constant += weight[k] * Fraction(float(spec.constants[k]))
        for (index, bend, place), price, on in zip(self.origin.units.tolist(), beta, self.on.tolist(), strict=True):
            if price:
                (source,) = graph.nodes[index].inputs
                sign = -1 if on else 1
                single = torch.zeros(graph.nodes[source].shape, dtype=torch.float64).flatten()
                single[place] = sign
                _add(rows, source, _scaled(Whole.of(single), price))
                pieces = graph.activation(index).pieces
                assert pieces is not None
                constant -= sign * price * Fraction(pieces.ends[bend])
        pulled = self.exact.pull(rows, self.sides)
        return RationalForm(pulled.coefficients, pulled.constant + constant)

    def _face(self) -> Face | None:
        """Return the face of the region on which the solver's point lies; None if it is the round side of a ball."""
        region, norm = self.region, self.region.norm
        x, eps = _fractions(region.x), Fraction(float(region.eps))
        delta = self.inputs - region.x.flatten()
        sides: Iterable[tuple[Fraction | None, Fraction | None]] = exact_box(region)
        if not math.isinf(norm):
            sides = zip(_side(region.low, region), _side(region.high, region), strict=True)
        near = Fraction(NEAR_AN_END) * eps
        ends = [_end(Fraction(v), near, *both) for v, both in zip(self.inputs.tolist(), sides, strict=True)]
        if math.isinf(norm) or float(power_norm(delta.abs(), norm)) < (1 - NEAR_AN_END) * float(eps):
            return Face(ends, None, Fraction(0))
        if norm != 1:
            return None
        moved = [abs(Fraction(d)) > near for d in delta.tolist()]
        signs = [Fraction((d > 0) - (d < 0)) for d in delta.tolist()]
        ends = [end if end is not None or there else at for end, there, at in zip(ends, moved, x, strict=True)]
        fixed = (s * (end - at) for s, end, at in zip(signs, ends, x, strict=True) if end is not None)
        back = (s * at for s, end, at in zip(signs, ends, x, strict=True) if end is None)
        return Face(ends, signs, eps - sum(fixed, Fraction(0)) + sum(back, Fraction(0)))


class Face(NamedTuple):
    """A face of the region: the inputs that stand at an end and, on the ball of norm 1, `signs . free = reach`."""

    ends: list[Fraction | None]  # None: the input is free
    signs: Numbers | None  # None: the ball holds no input
    reach: Fraction


def _end(value: Fraction, near: Fraction, low: Fraction | None, high: Fraction | None) -> Fraction | None:
    """Return the end that a value stands at, or None."""
    if low is not None and value <= low + near:
        return low
    return high if high is not None and value >= high - near else None


def positive(region: Region, line: RationalForm) -> bool:
    """Whether an affine function is proved to be positive on the region around one sample, without rounding.

    Over a box the answer is exact. Over other balls it comes from the dual bound of `geometry`, which is valid for any
    prices; these are found in float64. The value at x, less what full inputs take, must be larger than
    `eps ||price||_q`.
    """
    if math.isinf(region.norm):
        box = exact_box(region)
        ends = (c * (low if c > 0 else high) for c, (low, high) in zip(line.coefficients, box, strict=True))
        return line.constant + sum(ends, Fraction(0)) > 0
    at_x = line.constant + sum(
        (c * x for c, x in zip(line.coefficients, _fractions(region.x), strict=True)), Fraction(0)
    )
    size = [abs(c) for c in line.coefficients]
    rooms = _rooms(region, line.coefficients)
    weight = torch.tensor([_float(c) for c in size], dtype=torch.float64)
    caps = torch.tensor([math.inf if room is None else _float(room) for room in rooms], dtype=torch.float64)
    for found in (weight, *drop_prices(weight, caps, region.eps.double().reshape(()), region.norm)):
        prices = [_price(p, c, room) for p, c, room in zip(found.tolist(), size, rooms, strict=True)]
        full = ((c - p) * room for c, p, room in zip(size, prices, rooms, strict=True) if room is not None)
        if _larger(at_x - sum(full, Fraction(0)), prices, Fraction(float(region.eps)), region.norm):
            return True
    return False


def _price(found: float, size: Fraction, room: Fraction | None) -> Fraction:
    """Return a price between 0 and the coefficient's size; it is the size where the input has no end."""
    return size if room is None or not math.isfinite(found) else min(max(Fraction(found), Fraction(0)), size)


def _larger(value: Fraction, prices: Sequence[Fraction], eps: Fraction, norm: float) -> bool:
    """Whether `value > eps ||prices||_q`."""
    if norm == 1:
        return value > eps * max(prices)
    if norm == 2:
        return value > 0 and value**2 > eps**2 * sum(price**2 for price in prices)
    top = max(prices)
    if top == 0:
        return value > 0
    # The norm is taken in units of the largest price: the prices themselves may be below all that float64 can hold.
    shares = torch.tensor([float(price / top) for price in prices], dtype=torch.float64)
    size = float(power_norm(shares, norm / (norm - 1)))
    return math.isfinite(size) and value > eps * top * Fraction(size) * (1 + SAFETY * (len(prices) + 1000))


def exact_box(region: Region) -> list[tuple[Fraction, Fraction]]:
    """Return the ends of the box around the ball of one sample, cut by the region's sides, without rounding."""
    eps = Fraction(float(region.eps))
    rooms = zip(_fractions(region.x), _side(region.low, region), _side(region.high, region), strict=True)
    return [
        (x - eps if low is None else max(low, x - eps), x + eps if high is None else min(high, x + eps))
        for x, low, high in rooms
    ]


def _rooms(region: Region, coefficients: Numbers) -> list[Fraction | None]:
    """Return how far each input can go in the direction in which the function falls; None means without end."""
    lows, highs = _side(region.low, region), _side(region.high, region)
    found: list[Fraction | None] = []
    for x, c, low, high in zip(_fractions(region.x), coefficients, lows, highs, strict=True):
        end = low if c > 0 else high
        found.append(None if end is None else abs(end - x))
    return found


def _side(side: Tensor | None, region: Region) -> list[Fraction | None]:
    """Return one side of the region's box, an entry for each input; None where it has no end."""
    if side is None:
        return [None] * region.x[0].numel()
    values = side.double().expand_as(region.x).flatten().tolist()
    return [Fraction(value) if math.isfinite(value) else None for value in values]


def solve(equations: Sequence[Numbers], right: Numbers, guess: Numbers) -> Numbers | None:
    """Return a solution of linear equations, or None; unknowns that the equations leave free take their guess."""
    rows = [[*row, end] for row, end in zip(equations, right, strict=True)]
    pivots: list[int] = []
    for column in range(len(guess)):
        top = len(pivots)
        place = next((k for k in range(top, len(rows)) if rows[k][column]), None)
        if place is None:
            continue
        rows[top], rows[place] = rows[place], rows[top]
        rows[top] = [value / rows[top][column] for value in rows[top]]
        for k, row in enumerate(rows):
            if k != top and row[column]:
                rows[k] = [a - row[column] * b for a, b in zip(row, rows[top], strict=True)]
        pivots.append(column)
    if any(row[-1] for row in rows[len(pivots) :]):
        return None
    found = list(guess)
    free = [column for column in range(len(guess)) if column not in pivots]
    for row, column in zip(rows, pivots, strict=False):
        found[column] = row[-1] - sum((row[k] * found[k] for k in free), Fraction(0))
    return found


def _fractions(numbers: Tensor) -> Numbers:
    """Return numbers as fractions, flattened."""
    return [Fraction(value) for value in numbers.double().flatten().tolist()]


def _float(value: Fraction) -> float:
    """Return the nearest float64; infinity for numbers beyond the largest."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _scaled(row: Whole, factor: Fraction) -> Whole:
    """Return a row times a fraction whose denominator is a power of two."""
    return Whole(row.values * factor.numerator, row.exponent - (factor.denominator.bit_length() - 1))


def _add(rows: dict[int, Whole], index: int, row: Whole) -> None:
    """Add a row to those over a node."""
    rows[index] = rows[index].plus(row) if index in rows else row
