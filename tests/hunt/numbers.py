"""Numbers at nasty scales, as strings that keep every bit."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

TYPES = {"float32": torch.float32, "float64": torch.float64}
# The ends of each type: smallest subnormal, smallest normal, a unit roundoff, largest.
ENDS = {
    "float32": (2.0**-149, 2.0**-126, 2.0**-24, 2.0**128 - 2.0**104),
    "float64": (2.0**-1074, 2.0**-1022, 2.0**-53, sys.float_info.max),
}


def put(values: Any) -> Any:
    """Floats, nested in lists, as strings."""
    return [put(value) for value in values] if isinstance(values, (list, tuple)) else float(values).hex()


def take(values: Any) -> Any:
    """Back again."""
    return [take(value) for value in values] if isinstance(values, list) else float.fromhex(values)


def tensor(values: Any, dtype: str | torch.dtype = torch.float64) -> Tensor:
    """Strings as a tensor."""
    return torch.tensor(take(values), dtype=TYPES[dtype] if isinstance(dtype, str) else dtype)


def rounded(value: float, dtype: str) -> float:
    """To the nearest number of a type, the largest instead of infinity."""
    top = ENDS[dtype][3]
    return float(torch.tensor(max(-top, min(top, value)), dtype=TYPES[dtype]))


def scale(rng: random.Random, dtype: str) -> float:
    """A power of ten: mostly tame, sometimes near an end of the type."""
    draw = rng.random()
    if draw < 0.6:
        return 10.0 ** rng.uniform(-2, 2)
    if draw < 0.85:
        return 10.0 ** rng.uniform(-12, 12)
    low, high = (-45, 38) if dtype == "float32" else (-320, 308)
    return 10.0 ** rng.uniform(low, high)


def nasty(rng: random.Random, dtype: str, size: float = 1.0) -> float:
    """One number: zeros, ends of the type, whole and dyadic numbers, neighbours of 1, and the usual ones."""
    sign = rng.choice((-1, 1))
    draw = rng.random()
    if draw < 0.08:
        return 0.0
    if draw < 0.12:
        return sign * rng.choice(ENDS[dtype])
    if draw < 0.3:
        return rounded(sign * size * rng.randrange(1, 9) / 8, dtype)
    if draw < 0.35:
        return rounded(sign * size * (1 + rng.choice((-1, 1)) * 2 * ENDS[dtype][2]), dtype)
    return rounded(rng.gauss(0, 1) * size, dtype)


def smaller(value: str) -> Iterator[str]:
    """Simpler numbers in the place of one."""
    number = float.fromhex(value)
    for simple in (0.0, 1.0, -1.0, float(round(number)) if abs(number) < 1e15 else number):
        if number != simple and abs(simple) <= max(abs(number), 1.0):
            yield simple.hex()


def simplified(values: Sequence[str], few: int = 40) -> Iterator[list[str]]:
    """Lists in which all, halves, or single numbers are simpler."""
    values = list(values)
    if len(values) > 1:
        half = len(values) // 2
        for part in (slice(None), slice(0, half), slice(half, None)):
            if any(take(value) != 0 for value in values[part]):
                yield [
                    *values[: part.start or 0],
                    *[(0.0).hex()] * len(values[part]),
                    *values[part.stop or len(values) :],
                ]
    for place in range(min(len(values), few)):
        for simple in smaller(values[place]):
            yield [*values[:place], simple, *values[place + 1 :]]
