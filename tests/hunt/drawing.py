"""Random weights, samples, balls and boxes for a network of known shapes."""

from __future__ import annotations

import math
import random
from typing import Any

from hunt.numbers import ENDS, nasty, put, rounded, scale

NORMS = (1.0, 1.5, 2.0, 3.0, 7.0, math.inf, math.inf, math.inf, 2.0)
Shape = tuple[int, ...]


def weights(rng: random.Random, shapes: dict[str, Shape], dtype: str) -> dict[str, list[str]]:
    """Numbers for all tensors of a network."""
    wild = rng.random() < 0.4
    return {name: put(_tensor(rng, name, shape, dtype, wild)) for name, shape in shapes.items()}


def _tensor(rng: random.Random, name: str, shape: Shape, dtype: str, wild: bool) -> list[float]:
    count = math.prod(shape)
    fan = max(1, count // max(1, shape[0] if shape else 1))
    size = (scale(rng, dtype) if wild and rng.random() < 0.6 else 1.0) * (1 if len(shape) < 2 else fan**-0.5)
    usual = [rounded(rng.gauss(0, 1) * size, dtype) for _ in range(count)]
    style = rng.random()
    if name.endswith(("running_var", "std")):
        return [abs(value) + (0.1 if style < 0.8 else 0.0) for value in usual]
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
    if draw < 0.1:
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
