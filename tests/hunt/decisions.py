"""Exact verdicts on tiny networks, at and next to the boundary, against enumeration in fractions."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath
import torch
import torch.nn.functional as F
from torch import Tensor

import polycert as pc
from tests.helpers.cases import Case
from tests.hunt import drawing
from tests.hunt.kind import claimed, note
from tests.hunt.nets import NETS, chain, shapes, traced
from tests.hunt.numbers import TYPES, put, simplified, take, tensor
from tests.hunt.oracle import exact, precise
from tests.hunt.rational import Domain, Net, Piece, Row, least
from tests.hunt.space import Space

ONE, ZERO = Fraction(1), Fraction(0)
TIMEOUT = 6.0


def leaky(leak: float) -> list[Piece]:
    return [Piece(None, ZERO, Fraction(leak), ZERO), Piece(ZERO, None, ONE, ZERO)]


def clamped(low: float, high: float) -> list[Piece]:
    a, b = Fraction(low), Fraction(high)
    return [Piece(None, a, ZERO, a), Piece(a, b, ONE, ZERO), Piece(b, None, ZERO, b)]


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], list[Piece]]] = {
    "relu": (F.relu, leaky(0.0)),
    "leaky": (partial(F.leaky_relu, negative_slope=0.1), leaky(0.1)),
    "abs": (torch.abs, leaky(-1.0)),
    "clamp": (partial(torch.clamp, min=-0.5, max=0.75), clamped(-0.5, 0.75)),
}
SIZES = (
    (1, 1, 2),
    (2, 3, 2),
    (2, 5, 3),
    (3, 4, 2),
    (6, 4, 2),
    (2, 2, 2, 2),
    (3, 2, 3, 2),
    (2, 2, 2, 2, 2),
    (4, 3, 2, 3),
)
NUDGES = (0.0, 0.0, 1e-17, 1e-16, 4e-16, 1e-14, 1e-12, 1e-9, 1e-6, 1e-2)


def _cases() -> dict[str, tuple[str, tuple[int, ...]]]:
    found = {}
    for function, sizes in itertools.product(FUNCTIONS, SIZES):
        if function == "clamp" and sum(sizes[1:-1]) > 4:
            continue
        name = f"tiny-{function}-{'-'.join(map(str, sizes))}"
        NETS[name] = Case(name, (sizes[0],), partial(chain, sizes, FUNCTIONS[function][0]))
        found[name] = function, sizes
    return found


TINY = _cases()


class Decisions:
    """`verify` and `decide`: no false robust, no false falsified, at ties and a hair beside them."""

    name = "exact"
    seconds = 90.0

    def generate(self, rng: random.Random) -> dict[str, Any]:
        """A tiny network, one sample, a ball in a box, and how far from the boundary it is put."""
        name, dtype = rng.choice(tuple(TINY)), rng.choice(("float32", "float64"))
        style = rng.choice(("dyadic", "usual", "any"))
        tensors = drawing.weights(rng, shapes(name), dtype)
        if style != "any":
            draw = (lambda: rng.randrange(-8, 9) / 4) if style == "dyadic" else (lambda: rng.gauss(0, 1))
            like = TYPES[dtype]
            tensors = {
                key: put([float(torch.tensor(draw(), dtype=like)) for _ in values]) for key, values in tensors.items()
            }
        count = TINY[name][1][0]
        x = [rng.randrange(-4, 5) / 4 if style == "dyadic" else rng.uniform(-1, 1) for _ in range(count)]
        low, high = rng.choice((None, [min(v, -0.5) for v in x])), rng.choice((None, [max(v, 0.5) for v in x]))
        eps = rng.choice((0.25, 0.5, 1.0)) if style == "dyadic" else 10.0 ** rng.uniform(-4, 0.3)
        return {
            "net": name,
            "dtype": dtype,
            "weights": tensors,
            "x": put(x),
            "norm": put(rng.choice((math.inf, math.inf, 1.0, 2.0))),
            "eps": put(eps),
            "low": low and put(low),
            "high": high and put(high),
            "nudge": put(rng.choice((-1, 1)) * rng.choice(NUDGES)),
            "clauses": rng.choice((0, 0, 0, 1, 2)),
            "seed": rng.randrange(2**32),
        }

    def check(self, case: dict[str, Any]) -> str | None:
        """The status against the least margin, the counterexample against set and network."""
        function, _ = TINY[case["net"]]
        made = traced(case["net"], case["dtype"])
        made.load(case["weights"])
        ask = Ask(case, made.module, FUNCTIONS[function][1])
        try:
            margin = ask.moved()
        except OverflowError:
            raise pc.PolycertError("the bias that is wanted is too large for its type") from None
        status, point = ask.asked(made.network)
        note(status)
        if status == "robust":
            claimed()
            if margin <= 0:
                return f"robust, yet the least margin is {_short(margin)}"
        if status == "falsified":
            claimed()
            assert point is not None
            return ask.witnessed([Fraction(v) for v in point.flatten().tolist()], margin)
        return None

    def shrink(self, case: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Without box and clauses, then simpler numbers."""
        for part in ({"low": None}, {"high": None}, {"clauses": 0}, {"nudge": put(0.0)}):
            if any(case[name] != value for name, value in part.items()):
                yield {**case, **part}
        for name in case["weights"]:
            for values in simplified(case["weights"][name]):
                yield {**case, "weights": {**case["weights"], name: values}}
        for values in simplified(case["x"]):
            yield {**case, "x": values}


class Ask:
    """A case with its truth: the least value of every clause, moved to the boundary by the last bias."""

    def __init__(self, case: dict[str, Any], module: torch.nn.Module, pieces: list[Piece]) -> None:
        self.case, self.module, self.pieces = case, module, pieces
        self.x: Row = [Fraction(v) for v in take(case["x"])]
        self.norm, self.eps = take(case["norm"]), Fraction(take(case["eps"]))
        self.sides = [
            [None] * len(self.x) if case[name] is None else [Fraction(v) for v in take(case[name])]
            for name in ("low", "high")
        ]
        self.net = self._net()
        clean = self.net.outputs(self.x)
        self.label = max(range(len(clean)), key=lambda k: clean[k])
        self.clauses = self._clauses(len(clean))

    def _net(self) -> Net:
        named = dict(self.module.named_parameters())
        weights = [named[name].detach().double().tolist() for name in named if name.endswith("weight")]
        biases = [named[name].detach().double().tolist() for name in named if name.endswith("bias")]
        layers = [
            ([[Fraction(v) for v in row] for row in weight], [Fraction(v) for v in bias])
            for weight, bias in zip(weights, biases, strict=True)
        ]
        return Net.chain(layers, self.pieces)

    def _clauses(self, count: int) -> list[list[tuple[Row, Fraction]]]:
        """The margins of the label; or general ones, of up to two rows, as VNN-LIB has them."""
        if not self.case["clauses"]:
            others = [k for k in range(count) if k != self.label]
            return [[([Fraction((i == self.label) - (i == k)) for i in range(count)], ZERO)] for k in others]
        rng = random.Random(self.case["seed"])
        return [
            [
                ([Fraction(rng.randrange(-4, 5), 4) for _ in range(count)], Fraction(rng.randrange(-8, 9), 4))
                for _ in range(self.case["clauses"])
            ]
            for _ in range(2)
        ]

    def moved(self) -> Fraction:
        """The least margin, after the bias of an output (or the constants) was moved so that it is nearly the nudge."""
        values = self._least()
        worst = min(range(len(values)), key=lambda k: values[k])
        size = max((abs(v) for v in self.net.outputs(self.x)), default=ONE) or ONE
        shift = values[worst] + Fraction(take(self.case["nudge"])) * size
        if self.case["clauses"]:
            self.clauses = [[(row, Fraction(float(c - shift))) for row, c in clause] for clause in self.clauses]
        else:
            (other,) = (k for k, a in enumerate(self.clauses[worst][0][0]) if a < 0)
            bias = [p for name, p in self.module.named_parameters() if name.endswith("bias")][-1]
            with torch.no_grad():
                wanted = float(Fraction(float(bias[other])) + shift)
                bias[other] = torch.tensor(wanted, dtype=torch.float64).to(bias)
            if not bool(torch.isfinite(bias).all()):
                raise pc.PolycertError("the bias has overflowed")
            self.net = self._net()
        return min(self._least())

    def _least(self) -> list[Fraction]:
        """Exact for the norms 1 and inf; for others the least over points, which can only be too large."""
        if self.norm in (1, math.inf):
            domain = Domain.around(self.x, self.norm, self.eps, *self.sides)
            return least(self.net, domain, self.clauses)
        points = list(self._candidates())
        return [min(self._worst(clause, point) for point in points) for clause in self.clauses]

    def _worst(self, clause: list[tuple[Row, Fraction]], point: Row) -> Fraction:
        outputs = self.net.outputs(point)
        return max(sum((a * z for a, z in zip(row, outputs, strict=True)), c) for row, c in clause)

    def _candidates(self) -> Iterator[Row]:
        """Lowest points of each row's linear forms around points found so far: exactly inside."""
        ends = [
            [s * math.inf] * len(self.x) if self.case[k] is None else take(self.case[k])
            for k, s in (("low", -1), ("high", 1))
        ]
        rng = random.Random(self.case["seed"])
        double = traced(self.case["net"], self.case["dtype"]).double
        with precise():
            space = Space.of(take(self.case["x"]), self.norm, take(self.case["eps"]), *ends)
            starts = [space.x, *space.draws(rng, 6)]
            for clause, start in itertools.product(self.clauses, starts):
                for row, _ in clause:
                    point = start
                    for _ in range(3):
                        at = torch.tensor([[float(p) for p in point]], dtype=torch.float64, requires_grad=True)
                        weight = torch.tensor([float(a) for a in row], dtype=torch.float64)
                        (slope,) = torch.autograd.grad((double(at)[0] * weight).sum(), at)
                        if not bool(torch.isfinite(slope).all()):
                            break
                        point = space.lowest(exact(slope.flatten()))
                        if space.contains(point):
                            yield [fraction(p) for p in point]
            yield self.x

    def asked(self, network: pc.Network) -> tuple[str, Tensor | None]:
        """polycert's status and counterexample."""
        low, high = (None if self.case[k] is None else tensor(self.case[k]) for k in ("low", "high"))
        ball = pc.Ball(self.norm, float(self.eps), low, high)
        x = tensor(self.case["x"])[None]
        if self.case["clauses"]:
            rows = [row for clause in self.clauses for row, _ in clause]
            constants = [float(c) for clause in self.clauses for _, c in clause]
            clause = [k for k, rows_of in enumerate(self.clauses) for _ in rows_of]
            spec = pc.exact.Specification(
                torch.tensor([[float(a) for a in row] for row in rows], dtype=torch.float64),
                torch.tensor(constants, dtype=torch.float64),
                torch.tensor(clause),
            )
            decision = pc.exact.decide(network, ball.at(x), spec, timeout=TIMEOUT)
            return decision.status, None if decision.witness is None else decision.witness.input
        found = pc.verify(network, x, torch.tensor([self.label]), ball, timeout=TIMEOUT)
        return found.status[0], found.counterexample[0]

    def witnessed(self, point: Row, margin: Fraction) -> str | None:
        """What is wrong with a counterexample."""
        if not self._inside(point):
            return "the counterexample is not in the set"
        own = min(self._worst(clause, point) for clause in self.clauses)
        if own > 0 and self.norm in (1, math.inf) and margin > 0:
            return f"falsified, yet the least margin is {_short(margin)}"
        if own > 0:
            return f"the counterexample has the margin {_short(own)} in exact arithmetic"
        return None

    def _inside(self, point: Row) -> bool:
        for value, low, high in zip(point, *self.sides, strict=True):
            if (low is not None and value < low) or (high is not None and value > high):
                return False
        moves = [abs(a - b) for a, b in zip(point, self.x, strict=True)]
        if math.isinf(self.norm):
            return max(moves) <= self.eps
        return sum(m ** int(self.norm) for m in moves) <= self.eps ** int(self.norm)


def fraction(value: Any) -> Fraction:
    sign, mantissa, exponent, _ = value._mpf_
    return Fraction(-mantissa if sign else mantissa) * Fraction(2) ** int(exponent)


def _short(value: Fraction) -> str:
    return str(mpmath.nstr(mpmath.mpf(value.numerator) / value.denominator, 6))
