"""Random weights, samples, balls and boxes for a network of known shapes."""

from __future__ import annotations

import math
import random
from typing import Any

from tests.hunt.numbers import ENDS, nasty, put, rounded, scale

NORMS = (1.0, 1.5, 2.0, 3.0, 7.0, math.inf, math.inf, math.inf, 2.0)
Shape = tuple[int, ...]


def weights(rng: random.Random, shapes: dict[str, Shape], dtype: str, opposite: float = 0.1) -> dict[str, list[str]]:
    """Numbers for all tensors of a network; `opposite`: how often its layers are at both ends of the type."""
    mood = rng.choice(("tame",) * 5 + ("wild",) * 3 + ("ends",) * 2)
    sizes = {name: _size(rng, dtype, mood) for name in shapes}
    found = {}
    if rng.random() < opposite:
        sizes = opposed(rng, shapes, dtype)
        if rng.random() < 0.5:
            found = _cancelling(rng, shapes, sizes, dtype)
    return {
        name: found[name] if name in found else put(_tensor(rng, name, shape, dtype, sizes[name]))
        for name, shape in shapes.items()
    }


def _cancelling(
    rng: random.Random, shapes: dict[str, Shape], sizes: dict[str, float], dtype: str
) -> dict[str, list[str]]:
    """For the first two matrices: equal entries in each column, and then rows that nearly add up to nothing."""
    names = [name for name, shape in shapes.items() if len(shape) == 2][:2]
    if len(names) < 2 or shapes[names[0]][0] != shapes[names[1]][1] or shapes[names[1]][1] < 2:
        return {}
    (height, width), (rows, _) = (shapes[name] for name in names)
    column = [rounded(sizes[names[0]] * rng.choice((1, -1, 2, 3)), dtype) for _ in range(width)]
    second = []
    for _ in range(rows):
        row = [rounded(sizes[names[1]] * rng.uniform(-1, 1) / height, dtype) for _ in range(height - 1)]
        second += [*row, rounded(-math.fsum(row), dtype)]
    return {names[0]: put(column * height), names[1]: put(second)}


def _size(rng: random.Random, dtype: str, mood: str) -> float:
    """How large the numbers of a tensor are: usual, any, or at one end of the type."""
    if mood == "tame" or rng.random() < 0.4:
        return 1.0
    if mood == "wild":
        return scale(rng, dtype)
    low, high = ((-45.0, -35.0), (30.0, 38.0)) if dtype == "float32" else ((-323.0, -300.0), (300.0, 308.0))
    return float(10.0 ** rng.uniform(*rng.choice((low, high))))


def opposed(rng: random.Random, shapes: dict[str, Shape], dtype: str) -> dict[str, float]:
    """Layers at both ends of the type in turn, so that products are tame again but underflow on their way."""
    low, high = (ENDS[dtype][0], 2.0**127) if dtype == "float32" else (ENDS[dtype][0], 2.0**1023)
    level, sizes, small, met = 1.0, {}, rng.random() < 0.7, 0
    for name, shape in shapes.items():
        if len(shape) > 1 or (len(shape) == 1 and name.endswith("weight")):
            if met >= 2 and rng.random() < 0.7:  # one pair is enough
                sizes[name] = 1.0
                continue
            factor = low * 2.0 ** rng.randrange(1, 8) if small else high * 2.0 ** -rng.randrange(1, 8)
            level, small, met = level * factor, not small, met + 1
            sizes[name] = factor
        else:
            sizes[name] = max(level, low) * rng.choice((0.0, 1.0, 2.0**-8)) if level < high else 1.0
    return sizes


def _tensor(rng: random.Random, name: str, shape: Shape, dtype: str, size: float) -> list[float]:
    count = math.prod(shape)
    fan = max(1, count // max(1, shape[0] if shape else 1))
    size *= 1 if len(shape) < 2 else fan**-0.5
    usual = [rounded(rng.gauss(0, 1) * size, dtype) for _ in range(count)]
    style = rng.random()
    if name.endswith(("running_var", "std")):
        return [abs(value) + (0.1 * size if style < 0.8 else 0.0) for value in usual]
    if style < 0.5 or count < 2:
        return usual
    if style < 0.6:  # dyadic: ties become possible
        return [rounded(size * rng.randrange(-4, 5) / 4, dtype) for _ in range(count)]
    if style < 0.8:
        return [nasty(rng, dtype, size) for _ in range(count)]
    if style < 0.9:  # equal rows, or opposite ones
        row, sign = usual[:fan], rng.choice((-1, 1))
        return [value * (1 if k == 0 else sign) for k in range(count // fan) for value in row]
    # big, minus big, and what is left
    big = rounded(size / ENDS[dtype][2] * rng.choice((0.25, 1.0, 64.0)), dtype)
    return [(big, -big, value)[k % 3] for k, value in enumerate(usual)]


def epsilon(rng: random.Random, size: float) -> float:
    """A radius for samples of some size: 0, usual, tiny, or far too large."""
    draw = rng.random()
    if draw < 0.15:
        return 0.0
    if draw < 0.75:
        return size * 10.0 ** rng.uniform(-5, 0)
    if draw < 0.92:
        return float(10.0 ** rng.uniform(-20, 5))
    return rng.choice((5e-324, 2.0**-149, 1e-45, 1e30, 1e35, 10.0 ** rng.uniform(-45, 35)))


def ball(rng: random.Random, shape: Shape, samples: int, dtype: str) -> dict[str, Any]:
    """Samples `x`, and `norm`, `eps` for each of them, `low`, `high` (None or flat lists)."""
    size = rng.choice((1.0, 1.0, 1.0, scale(rng, dtype)))
    count = math.prod(shape)
    x = [[rounded(rng.uniform(-0.2, 1.2) * size, dtype) for _ in range(count)] for _ in range(samples)]
    low, high = _box(rng, count, size)
    x = [_into(row, low, high, rng) for row in x]
    eps = epsilon(rng, size)
    each = [eps * rng.choice((1.0, 1.0, 0.5, 0.0)) for _ in x] if rng.random() < 0.3 else [eps] * samples
    return {
        "x": put(x),
        "norm": put(rng.choice(NORMS)),
        "eps": put(each),
        "low": None if low is None else put(low),
        "high": None if high is None else put(high),
    }


def _box(rng: random.Random, count: int, size: float) -> tuple[list[float] | None, list[float] | None]:
    draw = rng.random()
    if draw < 0.4:
        return None, None
    if draw < 0.7:
        return [0.0] * count, [rounded(size, "float32")] * count
    # sides of their own, in numbers of float32 so that samples in any type can lie on them
    low = [rounded(-size * rng.choice((0.0, rng.random())), "float32") for _ in range(count)]
    high = [a if rng.random() < 0.1 else rounded(a + size * rng.random(), "float32") for a in low]
    return (low, high) if draw < 0.85 else (low, None) if draw < 0.93 else (None, high)


def _into(row: list[float], low: list[float] | None, high: list[float] | None, rng: random.Random) -> list[float]:
    ends = zip(row, low or [-math.inf] * len(row), high or [math.inf] * len(row), strict=True)
    clipped = [min(max(value, a), b) for value, a, b in ends]
    if low is not None and rng.random() < 0.2:
        clipped[0] = low[0]  # at the edge
    return clipped
