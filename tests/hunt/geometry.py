"""One linear form over ball and box: drops, distances and extremes at nasty scales, against exact points."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import torch
from mpmath import mpf

import polycert as pc
from polycert.forms import Dense
from polycert.sets.geometry import largest_drop, least_norm
from polycert.sets.interval import Rounding
from tests.hunt import drawing
from tests.hunt.kind import claimed
from tests.hunt.numbers import TYPES, nasty, put, rounded, scale, simplified, take, tensor
from tests.hunt.oracle import exact, precise
from tests.hunt.space import Space

NORMS = (1.0, 1.000001, 1.01, 1.5, 2.0, 3.0, 7.0, 50.0, math.inf)
DEPTH = 24


class Geometry:
    """`largest_drop`, `least_norm`, and `Region.concretise` in all its ways."""

    name = "geometry"
    seconds = 20.0

    def generate(self, rng: random.Random) -> dict[str, Any]:
        """A form, a set, and which function is asked."""
        dtype = rng.choice(("float32", "float64"))
        size = rng.choice((1, 2, 3, 5, 12))
        wild = rng.random() < 0.6
        factor = scale(rng, dtype) if wild else 1.0
        coefficients = [
            nasty(rng, dtype, factor * (scale(rng, dtype) if wild and rng.random() < 0.3 else 1.0)) for _ in range(size)
        ]
        return {
            "what": rng.choice(("drop", "norm", "extremes")),
            "dtype": dtype,
            "coefficients": put(coefficients),
            **drawing.ball(rng, (size,), 1, dtype),
            "norm": put(rng.choice(NORMS)),
            "share": put(rng.choice((rng.random(), 1.0, 10.0 ** rng.uniform(-12, 0)))),
            "minimum": rng.choice(("open", "joint", "either")),
        }

    def check(self, case: dict[str, Any]) -> str | None:
        """What the function promises, at the best point of the set that the oracle knows."""
        with precise():
            said: str | None = getattr(self, f"_{case['what']}")(case)
        return said and f"{case['what']}, norm {take(case['norm'])}, {case['dtype']}: {said}"

    def _drop(self, case: dict[str, Any]) -> str | None:
        weight, cap = _weight_and_cap(case)
        norm, dtype = take(case["norm"]), TYPES[case["dtype"]]
        eps = torch.tensor([rounded(take(case["eps"])[0], case["dtype"])], dtype=dtype)
        relative = Rounding(dtype, DEPTH).gamma(weight.numel())
        claim = float(largest_drop(weight, cap, eps, norm, relative))
        space = _room(cap, norm, float(eps))
        slope = exact(weight.flatten())
        truth = -np.dot(slope, space.lowest(slope))
        return _over("a drop of at most", mpf(claim), truth, _underflow(weight, cap, dtype))

    def _norm(self, case: dict[str, Any]) -> str | None:
        weight, cap = _weight_and_cap(case)
        norm, dtype = take(case["norm"]), TYPES["float64"]  # distances are found in float64 always
        weight, cap = weight.to(dtype), cap.to(dtype)
        slope = exact(weight.flatten())
        there = _room(cap, norm, take(case["eps"])[0] or 1.0)
        reached = float(-np.dot(slope, there.lowest(slope)) * mpf(take(case["share"])))
        if not math.isfinite(reached):  # callers take an overflow for nothing known: see `at_least`
            return None
        drop = torch.tensor([reached], dtype=dtype)
        relative = Rounding(dtype, 8).gamma(weight.numel() + 64)
        claim = float(least_norm(weight, cap, drop, norm, relative))
        if math.isnan(claim):
            return None  # the judge takes it for 0
        if claim <= 0:
            return None
        claimed()
        if math.isinf(claim):
            total = mpmath.fsum(w * c for w, c in zip(slope, exact(cap.flatten()), strict=True) if w)
            missed = total < mpf(reached)
            return None if missed else f"out of reach, though the drop in the whole box is {mpmath.nstr(total, 17)}"
        space = _room(cap, norm, claim)
        most = -np.dot(slope, space.lowest(slope))
        if most > mpf(reached):
            return f"a drop of {reached!r} needs {claim!r}, yet there it is already {mpmath.nstr(most, 20)}"
        return None

    def _extremes(self, case: dict[str, Any]) -> str | None:
        dtype, norm = TYPES[case["dtype"]], take(case["norm"])
        x, coef = tensor(case["x"], dtype), tensor(case["coefficients"], dtype)
        low, high = (None if case[k] is None else tensor(case[k]) for k in ("low", "high"))
        eps = take(case["eps"])[0]
        region = pc.Ball(norm, eps, low, high, minimum=case["minimum"]).at(x)
        rounding = Rounding(dtype, DEPTH)
        ends = region.concretise(Dense(coef.reshape(1, 1, -1)), rounding, joint=case["minimum"] == "joint")
        lower, upper = (float(end) for end in ends)
        count = x.numel()
        sides = [[s * math.inf] * count if side is None else side.tolist() for side, s in ((low, -1), (high, 1))]
        space, slope = Space.of(x.flatten().tolist(), norm, eps, *sides), exact(coef)
        # The caller covers the sum over the coordinates: `_input_slack` of a pass.
        room = 2 * mpf(rounding.gamma(count)) * np.dot(abs(slope), exact(region.magnitude.flatten()))
        room = room + mpf(rounding.tiny) * (1 + mpmath.fsum(abs(a) for a in slope))
        down, up = np.dot(slope, space.lowest(slope)), np.dot(slope, space.lowest(-slope))
        below = _over("minus the least value is at most", mpf(-lower), -down, room)
        return below or _over("a value of at most", mpf(upper), up, room)

    def shrink(self, case: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Fewer coordinates, then simpler numbers."""
        size = len(case["coefficients"])
        for k in range(size if size > 1 else 0):
            gone = {"x": [_without(case["x"][0], k)], "coefficients": _without(case["coefficients"], k)}
            sides = {name: case[name] and _without(case[name], k) for name in ("low", "high")}
            yield {**case, **gone, **sides}
        for name in ("low", "high"):
            if case[name] is not None:
                yield {**case, name: None}
        for values in simplified(case["coefficients"]):
            yield {**case, "coefficients": values}
        for values in simplified(case["eps"]):
            yield {**case, "eps": values}


def _without(values: list[str], place: int) -> list[str]:
    return [*values[:place], *values[place + 1 :]]


def _weight_and_cap(case: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """|a|, and how far the box lets each coordinate move in the direction in which the form falls: `[1, n]` each."""
    dtype = TYPES[case["dtype"]]
    coef, x = tensor(case["coefficients"], dtype), tensor(case["x"], dtype)
    region = pc.Ball(take(case["norm"]), 0.0, *_sides(case)).at(x)
    caps = region.box_caps()
    down, up = caps if caps is not None else (torch.full_like(x, math.inf),) * 2
    return coef.abs()[None], torch.where(coef > 0, down, up).clamp(min=0)


def _sides(case: dict[str, Any]) -> list[torch.Tensor | None]:
    return [None if case[name] is None else tensor(case[name]) for name in ("low", "high")]


def _room(cap: torch.Tensor, norm: float, eps: float) -> Space:
    """Moves down from 0, by the caps at most."""
    caps = cap.flatten().tolist()
    return Space.of([0.0] * len(caps), norm, eps, [-c for c in caps], [0.0] * len(caps))


def _underflow(weight: torch.Tensor, cap: torch.Tensor, dtype: torch.dtype) -> mpf:
    """What the passes pay for products below the smallest normal number."""
    return mpf(Rounding(dtype, DEPTH).tiny) * (1 + mpmath.fsum(exact(weight.flatten())))


def _over(what: str, claim: mpf, truth: Any, room: mpf) -> str | None:
    if mpmath.isnan(claim) or claim == -mpf("inf"):
        return None  # an overflow that says nothing: `at_least` and `at_most` see to it, of every bound
    if mpmath.isfinite(claim):
        claimed()
    if truth > claim + room:
        return f"{what} {mpmath.nstr(claim, 17)}, yet it is {mpmath.nstr(truth - claim, 6)} more"
    return None
