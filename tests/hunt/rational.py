"""The exact least margin of a tiny piecewise linear network over a box or an l_1 ball, in fractions.

All sides of all units are tried, layer by layer; what is left in each is a linear program, solved by the simplex method
with Bland's rule in rational arithmetic. Nothing here rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

Row = list[Fraction]
ZERO, ONE = Fraction(0), Fraction(1)


@dataclass(frozen=True)
class Affine:
    """`slope . t + offset` in the program's variables."""

    slope: Row
    offset: Fraction

    def scaled(self, factor: Fraction) -> Affine:
        """A multiple."""
        return Affine([factor * a for a in self.slope], factor * self.offset)


def total(parts: Sequence[tuple[Fraction, Affine]], offset: Fraction, size: int) -> Affine:
    """A combination plus a constant."""
    slope = [sum((f * part.slope[k] for f, part in parts), ZERO) for k in range(size)]
    return Affine(slope, offset + sum((f * part.offset for f, part in parts), ZERO))


@dataclass(frozen=True)
class Piece:
    """One linear piece of an activation: between two values of its input (None: endless), `gain z + shift`."""

    low: Fraction | None
    high: Fraction | None
    gain: Fraction
    shift: Fraction


@dataclass(frozen=True)
class Sum:
    """Rows over earlier values, by their places, all added up with a constant."""

    parts: list[tuple[int, list[Row]]]
    constant: Row

    def of(self, values: Sequence[Row]) -> Row:
        """Its value."""
        found = list(self.constant)
        for place, rows in self.parts:
            found = [
                b + sum((w * v for w, v in zip(row, values[place], strict=True)), ZERO)
                for row, b in zip(rows, found, strict=True)
            ]
        return found


@dataclass(frozen=True)
class Bend:
    """An activation in pieces of every entry of an earlier value."""

    place: int
    pieces: list[Piece]

    def of(self, values: Sequence[Row]) -> Row:
        """Its value."""
        return [self._apply(z) for z in values[self.place]]

    def _apply(self, z: Fraction) -> Fraction:
        for piece in self.pieces:
            if (piece.low is None or z >= piece.low) and (piece.high is None or z <= piece.high):
                return piece.gain * z + piece.shift
        raise AssertionError("pieces cover the line")


@dataclass(frozen=True)
class Net:
    """Steps in order; value 0 is the input, value k + 1 that of step k, the last one the output."""

    steps: list[Sum | Bend]

    @staticmethod
    def chain(layers: list[tuple[list[Row], Row]], pieces: list[Piece]) -> Net:
        """Layers of weights and biases, with one activation between them."""
        steps: list[Sum | Bend] = []
        for weight, bias in layers:
            steps += [Bend(len(steps), pieces)] if steps else []
            steps.append(Sum([(len(steps), weight)], bias))
        return Net(steps)

    def outputs(self, x: Row) -> Row:
        """The exact outputs at a point."""
        values = [x]
        for step in self.steps:
            values.append(step.of(values))
        return values[-1]


@dataclass(frozen=True)
class Domain:
    """Inputs as affine functions of variables `t >= 0` with `rows . t <= limits`."""

    inputs: list[Affine]
    rows: list[Row]
    limits: Row

    @staticmethod
    def around(
        x: Row, norm: float, eps: Fraction, low: Sequence[Fraction | None], high: Sequence[Fraction | None]
    ) -> Domain:
        """A ball of the norm inf or 1 in a box."""
        count = len(x)
        down = [value if side is None else min(value, side) for value, side in _rooms(x, eps, low, -1)]
        up = [value if side is None else min(value, side) for value, side in _rooms(x, eps, high, 1)]
        if math.isinf(norm):
            inputs = [Affine(_unit(k, count), x[k] - down[k]) for k in range(count)]
            return Domain(
                inputs, [_unit(k, count) for k in range(count)], [a + b for a, b in zip(down, up, strict=True)]
            )
        size = 2 * count  # moves up, then moves down
        inputs = [
            Affine([a - b for a, b in zip(_unit(k, size), _unit(count + k, size), strict=True)], x[k])
            for k in range(count)
        ]
        rows = [_unit(k, size) for k in range(size)] + [[ONE] * size]
        return Domain(inputs, rows, [*up, *down, eps])


def _rooms(
    x: Row, eps: Fraction, sides: Sequence[Fraction | None], sign: int
) -> Iterator[tuple[Fraction, Fraction | None]]:
    for value, side in zip(x, sides, strict=True):
        yield eps, None if side is None else sign * (side - value)


def _unit(k: int, size: int) -> Row:
    return [ONE if i == k else ZERO for i in range(size)]


def least(net: Net, domain: Domain, clauses: list[list[tuple[Row, Fraction]]]) -> list[Fraction]:
    """For each clause, the least over the domain of its largest row, `row . outputs + constant`."""
    best: list[Fraction | None] = [None] * len(clauses)
    size = len(domain.inputs[0].slope)
    for limits, outputs in _regions(net, domain):
        rows, ends = domain.rows + [a for a, _ in limits], domain.limits + [b for _, b in limits]
        for k, clause in enumerate(clauses):
            forms = [total(list(zip(row, outputs, strict=True)), constant, size) for row, constant in clause]
            value, known = _least_of_largest(forms, rows, ends), best[k]
            if value is not None and (known is None or value < known):
                best[k] = value
    return [value for value in best if value is not None]


def _least_of_largest(forms: list[Affine], rows: list[Row], limits: Row) -> Fraction | None:
    if len(forms) == 1:
        found = minimise(forms[0].slope, rows, limits)
        return None if found is None else found[0] + forms[0].offset
    # one more variable, free of sign: above all forms
    above = [[*form.slope, -ONE, ONE] for form in forms]
    found = minimise(
        [ZERO] * len(forms[0].slope) + [ONE, -ONE],
        [[*row, ZERO, ZERO] for row in rows] + above,
        [*limits, *(-form.offset for form in forms)],
    )
    return None if found is None else found[0]


Limits = list[tuple[Row, Fraction]]


def _regions(net: Net, domain: Domain) -> Iterator[tuple[Limits, list[Affine]]]:
    """All choices of a piece for each unit, those that are plainly empty left out."""
    size = len(domain.inputs[0].slope)

    def after(values: list[list[Affine]], limits: Limits) -> Iterator[tuple[Limits, list[Affine]]]:
        if len(values) > len(net.steps):
            yield limits, values[-1]
            return
        step = net.steps[len(values) - 1]
        if isinstance(step, Bend):
            yield from bent(step, values, [], limits)
            return
        found = []
        for k, b in enumerate(step.constant):
            terms = [pair for place, rows in step.parts for pair in zip(rows[k], values[place], strict=True)]
            found.append(total(terms, b, size))
        yield from after([*values, found], limits)

    def bent(
        step: Bend, values: list[list[Affine]], done: list[Affine], limits: Limits
    ) -> Iterator[tuple[Limits, list[Affine]]]:
        if len(done) == len(values[step.place]):
            yield from after([*values, done], limits)
            return
        z = values[step.place][len(done)]
        for piece in step.pieces:
            more = []
            if piece.low is not None:
                more.append(([-a for a in z.slope], z.offset - piece.low))
            if piece.high is not None:
                more.append((list(z.slope), piece.high - z.offset))
            held = [*limits, *more]
            rows, ends = domain.rows + [a for a, _ in held], domain.limits + [b for _, b in held]
            if minimise([ZERO] * size, rows, ends) is not None:
                value = z.scaled(piece.gain)
                yield from bent(step, values, [*done, Affine(value.slope, value.offset + piece.shift)], held)

    yield from after([domain.inputs], [])


def minimise(cost: Row, rows: list[Row], limits: Row) -> tuple[Fraction, Row] | None:
    """The least of `cost . t` over `rows . t <= limits`, `t >= 0`, and where; None if no t is allowed.

    The domain must be bounded. A dictionary with Bland's rule; the first phase lowers one artificial variable.
    """
    size, count = len(cost), len(rows)
    # basic = constant + coefficients . nonbasic
    table = [[limit, *(-a for a in row)] for row, limit in zip(rows, limits, strict=True)]
    basic, free = list(range(size, size + count)), list(range(size))
    if any(line[0] < 0 for line in table):
        artificial = size + count
        for line in table:
            line.append(ONE)
        free.append(artificial)
        goal = [ZERO] * (size + 1) + [ONE]
        worst = min(range(count), key=lambda k: table[k][0])
        _pivot(table, goal, basic, free, worst, size)
        _descend(table, goal, basic, free)
        if goal[0] > 0:
            return None
        if artificial in basic:
            place = basic.index(artificial)
            column = next(k for k in range(len(free)) if table[place][k + 1] != 0)
            _pivot(table, goal, basic, free, place, column)
        gone = free.index(artificial)
        del free[gone]
        for line in table:
            del line[gone + 1]
    goal = [ZERO] * (len(free) + 1)
    for k, a in enumerate(cost):
        if k in free:
            goal[free.index(k) + 1] += a
        else:
            goal = [g + a * b for g, b in zip(goal, table[basic.index(k)], strict=True)]
    _descend(table, goal, basic, free)
    point = [ZERO] * size
    for line, k in zip(table, basic, strict=True):
        if k < size:
            point[k] = line[0]
    return goal[0], point


def _descend(table: list[Row], goal: Row, basic: list[int], free: list[int]) -> None:
    while True:
        falling = [k for k in range(len(free)) if goal[k + 1] < 0]
        if not falling:
            return
        column = min(falling, key=lambda k: free[k])
        stops = [(line[0] / -line[column + 1], basic[i], i) for i, line in enumerate(table) if line[column + 1] < 0]
        _pivot(table, goal, basic, free, min(stops)[2], column)


def _pivot(table: list[Row], goal: Row, basic: list[int], free: list[int], place: int, column: int) -> None:
    """Let a nonbasic variable take the place of a basic one."""
    line = table[place]
    pivot = line[column + 1]
    new = [-a / pivot for a in line]
    new[column + 1] = 1 / pivot
    table[place] = new
    for other in (*(row for k, row in enumerate(table) if k != place), goal):
        factor = other[column + 1]
        if factor:
            other[column + 1] = ZERO
            for k, a in enumerate(new):
                other[k] += factor * a
    basic[place], free[column] = free[column], basic[place]
