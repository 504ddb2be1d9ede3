"""Lines of every activation, on nasty intervals and with any slopes, against true values."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mpmath
import torch
from mpmath import mpf

from polycert.bounding.relaxations import adaptive, lines_of, parallel
from polycert.rules import Activation, Call, Value, bump, convex, piecewise_linear
from polycert.rules.registry import ACTIVATION_FAMILIES, rules
from polycert.sets.interval import Interval, Rounding
from tests.hunt.kind import claimed, note
from tests.hunt.numbers import ENDS, TYPES, nasty, put, rounded, scale, simplified, take, tensor
from tests.hunt.oracle import ELEMENTWISE, LARGEST, Array, TooFarError, elementwise, exact, leaky, op_of, precise

SHAPE = (1,)
DIGITS, SURE = 700, 4000  # bits, and where something seems wrong
Made = tuple[Activation, Callable[[Array], Array]]


def _classes(kind: type) -> Iterator[type]:
    for sub in kind.__subclasses__():
        if not sub.__abstractmethods__:
            yield sub
        yield from _classes(sub)


def _reciprocal(z: mpf) -> mpf:
    """Of numbers from 1 on: it is used for nothing else, whatever the interval says."""
    if z < 1:
        raise TooFarError
    return 1 / z


def _registered() -> Iterator[tuple[str, Callable[[float], Made]]]:
    """Every activation that a rule makes without arguments, and the true function of its name."""
    for declared in rules():
        name = op_of(declared.targets[0])
        call = Call(declared.targets[0], (Value(0),), {}, (SHAPE,), SHAPE, torch.zeros(0))
        if declared.family in ACTIVATION_FAMILIES and name in ELEMENTWISE:
            yield titled(name), partial(_made, declared.build(call), ELEMENTWISE[name])


def _made(op: Activation, truth: Callable[[Array], Array], _: float) -> Made:
    return op, truth


def titled(name: str) -> str:
    """`leaky_relu` is `LeakyRelu`."""
    return "".join(part.title() for part in name.split("_"))


# Activations by name, with their true functions: those of the registry, and those that only an argument makes.
MADE: dict[str, Callable[[float], Made]] = {
    **dict(_registered()),
    "LeakyRelu": lambda leak: (piecewise_linear.LeakyRelu(SHAPE, leak=leak), leaky(leak)),
    "TanhGelu": lambda _: (bump.TanhGelu(SHAPE), ELEMENTWISE["gelu_tanh"]),
    "Reciprocal": lambda _: (convex.Reciprocal(SHAPE), elementwise(_reciprocal)),
}
LEAKS = (0.01, 0.1, -0.3, 1.7, -1.0, 1.0, 1e-40, 1e-46, -5.0, 1e20)


def missing() -> set[str]:
    """Activations that polycert has and `MADE` has not."""
    own = {kind.__name__ for kind in _classes(Activation) if kind.__module__.startswith("polycert.")}
    return own - {type(make(0.5)[0]).__name__ for make in MADE.values()}


class Relaxations:
    """Lower and upper lines, and intervals, of activations."""

    name = "relaxations"
    seconds = 20.0

    def generate(self, rng: random.Random) -> dict[str, Any]:
        """An activation, some intervals, and a slope for each where slopes are given."""
        dtype = rng.choice(("float32", "float64"))
        ends = [sorted(_interval(rng, dtype)) for _ in range(4)]
        slopes = [_slope(rng, dtype) for _ in ends]
        return {
            "op": rng.choice(tuple(MADE)),
            "leak": put(rng.choice(LEAKS)),
            "dtype": dtype,
            "how": rng.choice(("parallel", "adaptive", "given")),
            "lower": put([low for low, _ in ends]),
            "upper": put([high for _, high in ends]),
            "slope": put(slopes),
            "seed": rng.randrange(2**32),
        }

    def check(self, case: dict[str, Any]) -> str | None:
        """The function is between the lines, and in the interval, at every point tried."""
        op, truth = MADE[case["op"]](take(case["leak"]))
        dtype = TYPES[case["dtype"]]
        lower, upper = tensor(case["lower"], dtype)[:, None], tensor(case["upper"], dtype)[:, None]
        given, rounding = Interval(lower, upper), Rounding(dtype, 20)
        if case["how"] == "given":
            slope = tensor(case["slope"], dtype)[:, None]
            lines = lines_of(op, slope, slope, given, rounding)
        else:
            lines = (parallel if case["how"] == "parallel" else adaptive)(op, given, rounding)
        values = op.interval(given, rounding=rounding)
        assert lines.error is not None
        columns = [part.detach().expand_as(lower).flatten().double().tolist() for part in (*lines, *values)]
        for k in range(len(lower)):
            row = [column[k] for column in columns]
            for bits in (DIGITS, SURE):
                with precise(bits):
                    said = self._looked_at(float(lower[k]), float(upper[k]), row, truth, random.Random(case["seed"]))
                if said is None:
                    break
            else:
                if said is not None:
                    return f"{case['op']}, {case['how']}, {case['dtype']}: {said}"
        return None

    def _looked_at(
        self, lower: float, upper: float, row: list[float], truth: Callable[[Array], Array], rng: random.Random
    ) -> str | None:
        slopes, offsets = (row[0], row[2]), (row[1], row[3])
        if all(math.isfinite(value) for value in row[:5]):
            claimed()
        for point in _points(lower, upper, slopes, rng):
            try:
                value = truth(exact([0.0]) + point)[0]
            except TooFarError:
                continue
            for side in (0, 1):
                sign = 1 - 2 * side
                if all(map(math.isfinite, (slopes[side], offsets[side], row[4]))):
                    line = mpf(slopes[side]) * point + mpf(offsets[side]) - sign * mpf(row[4])
                    if sign * (value - line) < 0:
                        return _sentence("line", side, lower, upper, point, sign * (value - line))
                elif _counted(offsets[side], row[4], sign):
                    return f"a line with offset {offsets[side]} and error {row[4]} on [{lower!r}, {upper!r}]"
                end = row[5 + side]
                if math.isnan(end):
                    note("nan interval")
                elif sign * (value - mpf(end)) < 0:
                    return _sentence("interval", side, lower, upper, point, sign * (value - mpf(end)))
        return None

    def shrink(self, case: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """One interval, then simpler numbers."""
        lists = ("lower", "upper", "slope")
        if len(case["lower"]) > 1:
            for k in range(len(case["lower"])):
                yield {**case, **{name: case[name][k : k + 1] for name in lists}}
        for name in lists:
            for values in simplified(case[name]):
                smaller = {**case, name: values}
                if all(low <= high for low, high in zip(take(smaller["lower"]), take(smaller["upper"]), strict=True)):
                    yield smaller


def _counted(offset: float, error: float, sign: int) -> bool:
    """Infinite the wrong way: a lower line at +inf. NaN and the other way say nothing, and count for nothing."""
    return math.isinf(offset) and offset * sign > 0 and math.isfinite(error)


def _sentence(what: str, side: int, lower: float, upper: float, point: mpf, gap: mpf) -> str:
    which = ("lower", "upper")[side]
    return (
        f"the {which} {what} on [{lower!r}, {upper!r}] is wrong by {mpmath.nstr(-gap, 6)} at {mpmath.nstr(point, 20)}"
    )


def _interval(rng: random.Random, dtype: str) -> tuple[float, float]:
    draw, size = rng.random(), scale(rng, dtype)
    first = nasty(rng, dtype, size)
    if draw < 0.1:
        return first, first
    if draw < 0.3:  # next to each other, or nearly
        return first, rounded(first + abs(first) * ENDS[dtype][2] * rng.choice((2, 4, 1e3, 1e5)), dtype)
    if draw < 0.5:  # one end far out
        return first, rounded(rng.choice((-1, 1)) * 10.0 ** rng.uniform(0, 38), dtype)
    return first, nasty(rng, dtype, rng.choice((size, 1.0, scale(rng, dtype))))


def _slope(rng: random.Random, dtype: str) -> float:
    """Any, mostly where functions have theirs."""
    draw = rng.random()
    if draw < 0.5:
        return rounded(rng.uniform(-0.2, 1.2), dtype)
    if draw < 0.7:
        return rounded(rng.choice((0.0, 1.0, -1.0, 1e-8, 1 - 1e-7, 1e-30, 1e-38, 1e-44)), dtype)
    return nasty(rng, dtype, scale(rng, dtype))


def _points(lower: float, upper: float, slopes: tuple[float, float], rng: random.Random) -> Iterator[mpf]:
    """Ends, kinks, the middle, random ones, and where a slope may touch: on many scales around 0."""
    low, high = mpf(lower), mpf(upper)
    inside = [low, high, (low + high) / 2, mpf(0), mpf(1), mpf("0.5"), mpf(2).sqrt(), -mpf(2).sqrt()]
    inside += [low + (high - low) * mpf(rng.random()) for _ in range(4)]
    inside += [mpf(sign * 10.0 ** rng.uniform(-3, 2)) for sign in (-1, 1) for _ in range(3)]
    for slope in map(mpf, (value for value in slopes if math.isfinite(value))):
        inside += _touching(slope)
    for point in inside:
        if low <= point <= high and abs(point) < LARGEST:
            yield point


def _touching(slope: mpf) -> list[mpf]:
    """Where the derivatives of the usual functions have this value."""
    found = [slope / 2]
    if slope > 0:
        found += [mpmath.log(slope)]
    if slope < 0:
        found += [1 / mpmath.sqrt(-slope)]
    if 0 < slope < 1:
        root = mpmath.sqrt((1 - slope) / slope)
        cosh, bell = mpmath.asinh(root), mpmath.sqrt(-mpmath.log(slope))
        found += [mpmath.log(slope / (1 - slope)), root, -root, cosh, -cosh, bell, -bell]
    if 0 < slope < mpf(1) / 4:
        sigmoid = 2 * mpmath.asinh(mpmath.sqrt((1 - 4 * slope) / (4 * slope)))
        found += [sigmoid, -sigmoid]
    return found
