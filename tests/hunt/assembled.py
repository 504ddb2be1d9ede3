"""`verify` and `certify` on small networks of mixed parts, several samples and a journal, against fractions.

Where `decisions` has chains of one activation, here are residual sums, maxima, a new activation in each layer, layers
at opposite ends of float64, a radius for each sample, and any norm. Beyond the norms 1 and inf the truth is known if a
single input counts; else only from above, by points that lie exactly on the sphere.
"""

from __future__ import annotations

import itertools
import math
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polycert as pc
from polycert.errors import PolycertWarning
from tests.hunt.decisions import FUNCTIONS, clamped, leaky
from tests.hunt.kind import claimed, note
from tests.hunt.numbers import ENDS, TYPES, nasty, put, simplified, take, tensor
from tests.hunt.rational import Bend, Domain, Net, Piece, Row, Sum, least

ONE, ZERO = Fraction(1), Fraction(0)
TIMEOUT = 4.0
SIZES = (
    (1, 2, 2),
    (2, 3, 2),
    (2, 5, 2),
    (3, 4, 3),
    (8, 3, 2),
    (2, 2, 2, 2),
    (3, 3, 2),
    (2, 3, 3, 2),
    (1, 3, 3, 2),
    (2, 2, 2, 2, 2, 2),
    (2, 1, 1, 1, 2),
)
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], list[Piece]]] = {
    **FUNCTIONS,
    "falling": (partial(F.leaky_relu, negative_slope=-0.3), leaky(-0.3)),
    "concave": (partial(F.leaky_relu, negative_slope=3.0), leaky(3.0)),
    "hardly": (partial(F.leaky_relu, negative_slope=1 - 2.0**-53), leaky(1 - 2.0**-53)),
    "tiny": (partial(F.leaky_relu, negative_slope=1e-30), leaky(1e-30)),
    "relu6": (partial(F.hardtanh, min_val=0.0, max_val=0.3), clamped(0.0, 0.3)),
}
JOINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "": lambda z, x: z,
    "plus": lambda z, x: z + x,
    "minus": lambda z, x: x - z,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}
EXTREMES = ("maximum", "minimum")
SPHERE = ((3, 4, 5), (5, 12, 13), (8, 15, 17), (1, 2, 2, 3), (2, 3, 6, 7), (1, 4, 8, 9))
NORMS = (math.inf, math.inf, math.inf, 1.0, 1.0, 2.0, 2.0, 1.5, 3.0, 1 + 2.0**-52, 1.04, 65.0, 100.5, 1e300)
NUDGES = (0.0, 0.0, 0.0, 1e-300, 1e-17, 1e-16, 4e-16, 1e-14, 1e-12, 1e-9, 1e-6, 1e-2)


class Assembled(nn.Module):
    """Linear layers; each may be joined with its input, and is followed by an activation, but for the last."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.joins, self.activations = case["joins"], case["activations"]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(case["sizes"]))
        self.to(TYPES[case["dtype"]])
        with torch.no_grad():
            for parameter, values in zip(self.parameters(), case["weights"], strict=True):
                parameter.copy_(tensor(values).reshape(parameter.shape))

    def forward(self, x: Tensor) -> Tensor:
        """The scores."""
        for layer, join, activation in zip(self.layers, self.joins, [*self.activations, None], strict=True):
            x = JOINS[join](layer(x), x)
            x = x if activation is None else ACTIVATIONS[activation][0](x)
        return x


class Mixtures:
    """No false robust, falsified or certified, and nothing that a journal changes."""

    name = "assembled"
    seconds = 90.0

    def generate(self, rng: random.Random) -> dict[str, Any]:
        """A network, up to three samples, a ball in a box, and how far from the boundary one sample is put."""
        sizes, dtype, norm = rng.choice(SIZES), rng.choice(tuple(TYPES)), rng.choice(NORMS)
        style = rng.choice(("dyadic", "dyadic", "usual", "usual", "nasty"))
        weights = [_numbers(rng, style, dtype, a * b) for a, b in itertools.pairwise(sizes)]
        biases = [_numbers(rng, style, dtype, b) if rng.random() < 0.8 else [0.0] * b for b in sizes[1:]]
        names, joins = _parts(rng, sizes)
        count = rng.choice((1, 1, 2, 3))
        first = [rng.randrange(-4, 5) / 4 if style == "dyadic" else rng.uniform(-1, 1) for _ in range(sizes[0])]
        x = [first if rng.random() < 0.5 else [rng.randrange(-4, 5) / 4 for _ in first] for _ in range(count)]
        eps = [rng.choice((0.0, 0.25, 0.5, 1.0, 10.0 ** rng.uniform(-8, 0.3))) for _ in x]
        ends = list(zip(*x, strict=True))
        low = [min(v) - rng.choice((0, 0.125, 0.3)) for v in ends] if rng.random() < 0.4 else None
        high = [max(v) + rng.choice((0, 0.125, 0.3)) for v in ends] if rng.random() < 0.4 else None
        if norm == 2 and sizes[0] > 1 and rng.random() < 0.6:
            row, radius = _triangle(rng, sizes[0])
            weights[0] = [rng.choice((-1, 1, 0.5)) * v for _ in range(sizes[1]) for v in row]
            eps = [radius] * count
        elif norm not in (1, math.inf):  # a single input counts
            x = [[row[0], *x[0][1:]] for row in x]
            ends = [row[0] for row in x]
            low, high = ([end, *x[0][1:]] for end in (min(ends) - rng.choice((0, 5)), max(ends) + rng.choice((0, 5))))
        if dtype == "float64" and rng.random() < 0.3 and not any(joins):
            names = [name if len(ACTIVATIONS[name][1]) == 2 else "relu" for name in names]
            powers = [rng.choice((0, 300, -300, 900, -900, rng.randrange(-1000, 1000))) for _ in sizes]
            weights = [_times(w, b - a) for w, (a, b) in zip(weights, itertools.pairwise(powers), strict=True)]
            biases = [_times(row, power) for row, power in zip(biases, powers[1:], strict=True)]
            x, eps = [_times(row, powers[0]) for row in x], _times(eps, powers[0])
            low, high = (side and _times(side, powers[0]) for side in (low, high))
        return {
            "sizes": list(sizes),
            "activations": names,
            "joins": joins,
            "dtype": dtype,
            "weights": put([part for pair in zip(weights, biases, strict=True) for part in pair]),
            "x": put(x),
            "norm": put(norm),
            "eps": put(eps),
            "low": low and put(low),
            "high": high and put(high),
            "nudge": put(rng.choice((-1, 1)) * rng.choice(NUDGES)),
            "sample": rng.randrange(count),
            "method": rng.choice(("crown", "ibp", "crown-ibp", "alpha-crown", "forward")),
            "before": rng.choice((0, 0, 0, 1, 2)),  # samples that the journal knows
        }

    def check(self, case: dict[str, Any]) -> str | None:
        """Every status against the least margin, every counterexample against set and network."""
        asked = Question(case)
        asked.move()
        x, label = tensor(case["x"]), torch.tensor([asked.label(k) for k in range(len(asked.x))])
        low, high = (None if case[k] is None else tensor(case[k]) for k in ("low", "high"))
        net = pc.capture(asked.module, (len(asked.x[0]),))
        eps = tensor(case["eps"])
        ball = pc.Ball(take(case["norm"]), eps, low, high)
        found = _in_parts(partial(_verified, net, x, label, ball, eps), min(case["before"], len(x)))
        if isinstance(found, str):
            return found
        certified = pc.certify(net, x, label, ball, method=case["method"]).certified.tolist()
        for k, (status, point) in enumerate(zip(found.status, found.counterexample, strict=True)):
            note(status)
            if status == "robust" or certified[k]:
                claimed()
                margin = asked.least(k)
                if margin <= 0:
                    return f"{'robust' if status == 'robust' else 'certified'}, yet the margin is {float(margin):g}"
            if status == "falsified":
                claimed()
                assert point is not None
                wrong = asked.witnessed(k, [Fraction(v) for v in point.tolist()])
                if wrong is not None:
                    return wrong
        return None

    def shrink(self, case: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Without journal and nudge, one sample, then simpler numbers."""
        for part in ({"before": 0}, {"nudge": put(0.0)}, {"low": None}, {"high": None}):
            if any(case[name] != value for name, value in part.items()):
                yield {**case, **part}
        if len(case["x"]) > 1:
            for k in range(len(case["x"])):
                yield {**case, "x": [case["x"][k]], "eps": [case["eps"][k]], "sample": 0}
        for place, values in enumerate(case["weights"]):
            for simple in simplified(values):
                yield {**case, "weights": [*case["weights"][:place], simple, *case["weights"][place + 1 :]]}


def _numbers(rng: random.Random, style: str, dtype: str, count: int) -> list[float]:
    """Weights of one tensor; sometimes its second half repeats the first."""
    draw = {
        "dyadic": lambda: rng.randrange(-8, 9) / 4,
        "usual": lambda: rng.gauss(0, 1),
        "nasty": lambda: nasty(rng, dtype, rng.choice((1.0, 1.0, 1e-8, 1e8, 1 / ENDS[dtype][2]))),
    }[style]
    found = [float(draw()) for _ in range(count)]
    return found[: count // 2] * 2 if count % 2 == 0 and rng.random() < 0.1 else found


def _parts(rng: random.Random, sizes: tuple[int, ...]) -> tuple[list[str], list[str]]:
    """Activations and joins; few pieces where there are many units."""
    few = [name for name, (_, pieces) in ACTIVATIONS.items() if len(pieces) == 2 or sum(sizes[1:-1]) < 5]
    joins = [rng.choice(tuple(JOINS)) if a == b and rng.random() < 0.7 else "" for a, b in itertools.pairwise(sizes)]
    if sum(join in EXTREMES for join in joins) > 1:
        joins = ["" if join in EXTREMES else join for join in joins]
    return [rng.choice(few) for _ in sizes[1:-1]], joins


def _triangle(rng: random.Random, size: int) -> tuple[list[float], float]:
    """A vector of whole length, and its length: rows along it are least at numbers of float64 on the sphere."""
    *sides, length = rng.choice([sides for sides in SPHERE if len(sides) <= size + 1])
    scale = 2.0 ** rng.randrange(-6, 3)
    return [side * scale for side in sides] + [0.0] * (size - len(sides)), length * scale


def _times(values: list[float], power: int) -> list[float]:
    """In units of a power of two, the largest number instead of infinity."""
    top = ENDS["float64"][3]
    exact = (Fraction(value) * Fraction(2) ** power for value in values)
    return [float(max(min(value, Fraction(top)), -Fraction(top))) for value in exact]


def _verified(
    net: pc.Network, x: Tensor, label: Tensor, ball: pc.Ball, eps: Tensor, count: int, journal: Path | None
) -> pc.Verdicts:
    here = slice(0, count)
    return pc.verify(net, x[here], label[here], ball.with_eps(eps[here]), timeout=TIMEOUT, journal=journal)


def _in_parts(ask: Callable[[int, Path | None], pc.Verdicts], before: int) -> pc.Verdicts | str:
    """All samples, of which a journal knows some already; or what it has changed."""
    everyone = 2**31
    if before == 0:
        return ask(everyone, None)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error", PolycertWarning)
        first = ask(before, Path(folder) / "journal")
        try:
            found = ask(everyone, Path(folder) / "journal")
        except PolycertWarning as warning:
            return f"a journal that nobody has touched is not believed: {warning}"
    for old, new in zip(first.decisions, found.decisions, strict=False):
        if old.status != "unknown" and (old.status != new.status or not new.resumed):
            return f"{old.status} became {new.status}"
    return found


class Question:
    """A case with its truth."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case, self.module = case, Assembled(case).eval()
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.module.parameters()):
            raise pc.PolycertError("a weight is not finite")
        self.x: list[Row] = [[Fraction(v) for v in row] for row in take(case["x"])]
        self.eps, self.norm = [Fraction(v) for v in take(case["eps"])], float(take(case["norm"]))
        self.sides = [
            [None] * len(self.x[0]) if case[name] is None else [Fraction(v) for v in take(case[name])]
            for name in ("low", "high")
        ]
        self.net = self._net()

    def _net(self) -> Net:
        steps: list[Sum | Bend] = []
        parts = zip(self.module.layers, self.module.joins, [*self.module.activations, None], strict=True)
        for layer, join, activation in parts:
            weight, bias = (part.detach().double().tolist() for part in (layer.weight, layer.bias))
            rows, constant = [[Fraction(v) for v in row] for row in weight], [Fraction(v) for v in bias]
            _join(steps, join, rows, constant)
            if activation is not None:
                steps.append(Bend(len(steps), ACTIVATIONS[activation][1]))
        return Net(steps)

    def label(self, k: int) -> int:
        """The class of a sample before the boundary was moved."""
        if not hasattr(self, "_labels"):
            scores = [self.net.outputs(x) for x in self.x]
            self._labels = [max(range(len(row)), key=lambda k, row=row: row[k]) for row in scores]
        return self._labels[k]

    def _margins(self, k: int, outputs: Row) -> dict[int, Fraction]:
        label = self.label(k)
        return {other: outputs[label] - z for other, z in enumerate(outputs) if other != label}

    def move(self) -> None:
        """Move the bias of a score so that the least margin of one sample is nearly the nudge."""
        k = self.case["sample"]
        self.label(k)
        worst, other = min((value, other) for other, value in self._worst(k).items())
        size = max((abs(v) for v in self.net.outputs(self.x[k])), default=ONE) or ONE
        bias = self.module.layers[-1].bias
        wanted = Fraction(float(bias[other].detach())) + worst + Fraction(take(self.case["nudge"])) * size
        if abs(wanted) > Fraction(torch.finfo(bias.dtype).max):
            raise pc.PolycertError("the bias that is wanted is too large for its type")
        with torch.no_grad():
            bias[other] = float(wanted)
        self.net = self._net()

    def least(self, k: int) -> Fraction:
        """The least margin of a sample; for most norms only a number that is no smaller."""
        return min(self._worst(k).values())

    def _worst(self, k: int) -> dict[int, Fraction]:
        """By the other class."""
        others = self._margins(k, self.net.outputs(self.x[k]))
        count = len(others) + 1
        if self.norm in (1, math.inf) or self._counting() <= 1:
            norm = self.norm if self.norm == 1 else math.inf
            domain = Domain.around(self.x[k], norm, self.eps[k], *self.sides)
            clauses = [
                [([Fraction((i == self.label(k)) - (i == other)) for i in range(count)], ZERO)] for other in others
            ]
            return dict(zip(others, least(self.net, domain, clauses), strict=True))
        points = [self.x[k], *filter(partial(self._inside, k), self._on_the_sphere(k))]
        values = [self._margins(k, self.net.outputs(point)) for point in points]
        return {other: min(value[other] for value in values) for other in others}

    def _counting(self) -> int:
        """How many inputs can move and are looked at."""
        first = self.module.layers[0].weight.detach()
        seen = [bool(self.module.joins[0]) or bool((column != 0).any()) for column in first.T]
        free = [low is None or high is None or low < high for low, high in zip(*self.sides, strict=True)]
        return sum(a and b for a, b in zip(seen, free, strict=True))

    def _on_the_sphere(self, k: int) -> Iterator[Row]:
        """Points at the distance eps: along one input, and of norm 2 along whole triangles."""
        x, eps = self.x[k], self.eps[k]
        moves = {(ONE, *[ZERO] * (len(x) - 1))}
        if self.norm == 2:
            whole = [sides for sides in SPHERE if len(sides) <= len(x) + 1]
            moves |= {(*(Fraction(a, s[-1]) for a in s[:-1]), *[ZERO] * (len(x) + 1 - len(s))) for s in whole}
        for move in moves:
            for order in set(itertools.permutations(move)) if len(x) < 5 else {move}:
                for signs in itertools.product((1, -1), repeat=sum(a != 0 for a in order)):
                    sign = iter(signs)
                    yield [v + (next(sign) * a * eps if a else a) for v, a in zip(x, order, strict=True)]

    def witnessed(self, k: int, point: Row) -> str | None:
        """What is wrong with a counterexample."""
        if not self._inside(k, point):
            return "the counterexample is not in the set"
        margin = min(self._margins(k, self.net.outputs(point)).values())
        return None if margin <= 0 else f"the counterexample has the margin {float(margin):g} in exact arithmetic"

    def _inside(self, k: int, point: Row) -> bool:
        for value, low, high in zip(point, *self.sides, strict=True):
            if (low is not None and value < low) or (high is not None and value > high):
                return False
        moves, eps = [abs(a - b) for a, b in zip(point, self.x[k], strict=True)], self.eps[k]
        if math.isinf(self.norm) or sum(move != 0 for move in moves) <= 1:
            return max(moves) <= eps
        power = int(self.norm)
        return self.norm != power or power > 64 or sum(move**power for move in moves) <= eps**power


def _join(steps: list[Sum | Bend], join: str, rows: list[Row], constant: Row) -> None:
    """A layer and how it meets its input: `max(z, x) = x + relu(z - x)`, `min(z, x) = x - relu(x - z)`."""
    before, size = len(steps), len(constant)

    def eye(sign: int) -> list[Row]:
        return [[Fraction(sign * (i == j)) for j in range(size)] for i in range(size)]

    if join == "minus":
        rows, constant = [[-v for v in row] for row in rows], [-v for v in constant]
    steps.append(Sum([(before, rows), *([(before, eye(1))] if join in ("plus", "minus") else [])], constant))
    if join in EXTREMES:
        sign = 1 if join == "maximum" else -1
        steps.append(Sum([(before + 1, eye(sign)), (before, eye(-sign))], [ZERO] * size))
        steps.append(Bend(before + 2, leaky(0.0)))
        steps.append(Sum([(before, eye(1)), (before + 3, eye(sign))], [ZERO] * size))
