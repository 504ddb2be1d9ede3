"""The exact set around a sample: points that lie in ball and box without any rounding, in `mpf`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mpmath
import numpy as np
from mpmath import mpf

from tests.hunt.oracle import Array, exact

INF = mpf("inf")
NEARLY = 200  # bits for where to look: what counts is that points are inside


@dataclass(frozen=True)
class Space:
    """`||x' - x||_norm <= eps` and `low <= x' <= high`; arrays are flat, sides infinite where open."""

    x: Array
    norm: float
    eps: mpf
    low: Array
    high: Array

    @staticmethod
    def of(x: Sequence[float], norm: float, eps: float, low: Sequence[float], high: Sequence[float]) -> Space:
        """From floating-point numbers."""
        return Space(exact(x), norm, mpf(float(eps)), exact(low), exact(high))

    def with_eps(self, eps: float) -> Space:
        """Another radius; an endless one is the whole box, which must be finite then."""
        return Space(self.x, self.norm, mpf(float(eps)), self.low, self.high)

    def size(self, delta: Array) -> mpf:
        """The norm of a move."""
        moves = [abs(move) for move in delta]
        if mpmath.isinf(self.norm):
            return max(moves)
        if self.norm == 1:
            return mpmath.fsum(moves)
        top = max(moves)
        if top == 0:
            return mpf(0)
        power = mpf(self.norm)
        return top * mpmath.fsum((move / top) ** power for move in moves if move) ** (1 / power)

    def contains(self, point: Array) -> bool:
        """Without rounding for norms 1 and inf; others have room to spare of 2^-250, far above that of the powers."""
        if any(p < low or p > high for p, low, high in zip(point, self.low, self.high, strict=True)):
            return False
        room = mpf(1) if self.norm in (1, mpmath.inf) or not any(point != self.x) else 1 - mpf(2) ** -250
        return bool(self.size(point - self.x) <= self.eps * room)

    def inside(self, point: Array) -> Array:
        """A point clipped to the box and drawn towards x into the ball."""
        moved = np.array(
            [min(max(p, low), high) for p, low, high in zip(point, self.low, self.high, strict=True)], dtype=object
        )
        delta = moved - self.x
        if mpmath.isinf(self.norm):
            return self.x + np.array([min(max(d, -self.eps), self.eps) for d in delta], dtype=object)
        size = self.size(delta)
        shrink = mpf(1) - mpf(2) ** -240
        if self.norm == 1 and size > self.eps and self.eps > 0:  # whole sums: cut the last moves
            return self.x + self._cut(delta)
        return self.x + delta * (min(mpf(1), self.eps / size) * shrink) if size > 0 else self.x

    def _cut(self, delta: Array) -> Array:
        left, kept = self.eps, []
        for move in delta:
            part = min(abs(move), left)
            left -= part
            kept.append(part * mpmath.sign(move))
        return np.array(kept, dtype=object)

    def rooms(self, slope: Array) -> Array:
        """How far each coordinate may go the way that lowers a form."""
        ends = [
            max((x - low) if a > 0 else (high - x), mpf(0))
            for a, x, low, high in zip(slope, self.x, self.low, self.high, strict=True)
        ]
        return np.array(ends, dtype=object)

    def lowest(self, slope: Array) -> Array:
        """The point where a linear form is least, as good as exactly: always inside."""
        weight = np.array([abs(a) for a in slope], dtype=object)
        room = self.rooms(slope)
        down = -np.array([mpmath.sign(a) for a in slope], dtype=object)
        if mpmath.isinf(self.norm):
            sizes = [min(cap, self.eps) if w else mpf(0) for w, cap in zip(weight, room, strict=True)]
        elif self.norm == 1:
            sizes = [mpf(0)] * len(weight)
            left = self.eps
            for k in sorted(range(len(weight)), key=lambda k: -weight[k]):
                sizes[k] = min(room[k], left) if weight[k] else mpf(0)
                left -= sizes[k]
        else:
            sizes = self._powers(weight, room)
        return self.inside(self.x + down * np.array(sizes, dtype=object))

    def _powers(self, weight: Array, room: Array) -> list[mpf]:
        """`min(cap, t weight^(1/(p-1)))` with the t for which the norm is eps, or all are full; nearly so."""
        top = max(weight)
        if top == 0 or self.eps == 0:
            return [mpf(0)] * len(weight)
        with mpmath.workprec(NEARLY):
            power = mpf(self.norm)
            steps = [(w / top) ** (1 / (power - 1)) if w else mpf(0) for w in weight]
            caps = [min(cap / self.eps, mpf(1)) for cap in room]  # in units of eps
            moving = sorted((k for k, step in enumerate(steps) if step), key=lambda k: caps[k] / steps[k])
            full = mpf(0)
            for place, k in enumerate(moving):
                free = mpmath.fsum(steps[i] ** power for i in moving[place:])
                t = max((1 - full) / free, mpf(0)) ** (1 / power)
                if t * steps[k] <= caps[k]:
                    break
                full += caps[k] ** power
            else:
                t = mpf("inf")
            return [self.eps * min(cap, t * step) if step else mpf(0) for cap, step in zip(caps, steps, strict=True)]

    def draws(self, rng: random.Random, count: int) -> Iterator[Array]:
        """Random points: corners, single coordinates moved far, and any."""
        for number in range(count):
            reach = self.eps if mpmath.isfinite(self.eps) else mpf(0)
            signs = [rng.choice((-1, 1)) for _ in self.x]
            kind = number % 3
            lone = rng.randrange(len(signs))
            factors = [
                mpf(sign) * (1 if kind == 0 else (k == lone) if kind == 1 else mpf(rng.random()))
                for k, sign in enumerate(signs)
            ]
            yield self.inside(self.x + reach * np.array(factors, dtype=object))
