"""Whole networks over all rules: certificates, bounds, envelopes and radii against true outputs at chosen points."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import mpmath
import numpy as np
import torch
from mpmath import mpf
from torch import Tensor, nn

import polycert as pc
from tests.hunt import drawing
from tests.hunt.kind import claimed
from tests.hunt.nets import NETS, Net, shapes, traced
from tests.hunt.numbers import TYPES, put, simplified, take, tensor
from tests.hunt.oracle import Array, TooFarError, exact, precise
from tests.hunt.space import Space

METHODS = ("ibp", "forward", "crown", "crown", "crown-ibp", "alpha-crown")
RELAXATIONS = ("parallel", "adaptive", "best")
ASKS = ("certify", "certify", "bounds", "envelope", "radius")
STRATEGIES = ("root", "envelope", "bisection")
ALL = tuple(NETS)
SURE = 8000  # bits in which a violation is looked at once more


class Claim(NamedTuple):
    """What polycert says about all points of a set: `rows . outputs + terms . point >= least` in each row."""

    what: str
    space: Space
    rows: Array  # [rows, outputs]
    least: Array  # [rows]
    strict: bool  # then > instead
    terms: Array | None = None  # [rows, inputs]

    def broken(self, point: Array, outputs: Array) -> str | None:
        """How a point contradicts it."""
        values = np.dot(self.rows, outputs)
        if self.terms is not None:
            values = values + np.dot(self.terms, point)
        for k, (value, least) in enumerate(zip(values, self.least, strict=True)):
            if mpmath.isnan(least):
                return f"{self.what}: row {k} has NaN for a bound"
            if value < least or (self.strict and value <= least):
                gap, bound = mpmath.nstr(value - least, 6), mpmath.nstr(least, 17)
                return f"{self.what}: row {k} is {gap} from its lower bound {bound} at a point of the set"
        return None


@dataclass
class Setting:
    """A case made ready: the network with its weights, the samples and their sets."""

    case: dict[str, Any]
    net: Net
    x: Tensor
    ball: pc.Ball
    spaces: list[Space]
    label: Tensor | None

    @staticmethod
    def of(case: dict[str, Any]) -> Setting:
        """From its description."""
        net = traced(case["net"], case["dtype"])
        net.load(case["weights"])
        shape = NETS[case["net"]].shape
        x = tensor(case["x"], case["x_dtype"]).reshape(-1, *shape)
        eps = torch.tensor(take(case["eps"]), dtype=torch.float64)
        low, high = (None if case[k] is None else tensor(case[k]).reshape(shape) for k in ("low", "high"))
        norm = float(take(case["norm"]))
        ball = pc.Ball(norm, eps, low, high)
        count = math.prod(shape)
        sides = [
            [sign * math.inf] * count if case[k] is None else take(case[k]) for k, sign in (("low", -1), ("high", 1))
        ]
        spaces = [
            Space.of(row.double().tolist(), norm, float(e), *sides) for row, e in zip(x.flatten(1), eps, strict=True)
        ]
        label = None if case["labels"] is None else torch.tensor(case["labels"])
        return Setting(case, net, x, ball, spaces, label)


def margins(label: int, classes: list[int], count: int) -> Array:
    """Rows `z_label - z_i`."""
    rows = np.full((len(classes), count), mpf(0), dtype=object)
    for k, other in enumerate(classes):
        rows[k, label] += 1
        rows[k, other] -= 1
    return rows


def all_margins(label: int, count: int) -> Array:
    """For all other classes."""
    return margins(label, [k for k in range(count) if k != label], count)


def _certified(here: Setting, ask: dict[str, str]) -> list[Claim]:
    certs = pc.certify(
        here.net.network, here.x, here.label, here.ball, method=ask["method"], relaxation=ask["relaxation"]
    )
    count, found = here.net.network.output_shape[0], []
    for k, space in enumerate(here.spaces):
        label, radius = int(certs.label[k]), float(certs.radius[k])
        rows = all_margins(label, count)
        if bool(certs.certified[k]):
            margin = float(certs.margin[k])
            what = f"{_name(ask)} certified label {label} with eps {float(space.eps):.17g}, margin {margin:.6g}"
            found.append(Claim(what, space, rows, exact([0.0] * len(rows)), True))
            if margin > 0:
                found.append(Claim(f"{what} (the margin)", space, rows, exact([margin] * len(rows)), False))
        if radius > 0 or math.isnan(radius):
            what = f"{_name(ask)} gives label {label} the radius {radius!r}"
            found.append(Claim(what, space.with_eps(radius), rows, exact([0.0] * len(rows)), True))
    return found


def _searched(here: Setting, ask: dict[str, str]) -> list[Claim]:
    upper = max(float(space.eps) for space in here.spaces) or 1.0
    radii = pc.largest_radius(
        here.net.network,
        here.x,
        here.label,
        norm=here.ball.norm,
        upper=upper,
        low=here.ball.low,
        high=here.ball.high,
        tolerance=upper / 50,
        method=ask["method"],
        relaxation=ask["relaxation"],
        strategy=ask["strategy"],
    )
    found = []
    for k, space in enumerate(here.spaces):
        label, radius = int(radii.label[k]), float(radii.radius[k])
        rows = all_margins(label, here.net.network.output_shape[0])
        if radius > 0 or math.isnan(radius):
            what = f"largest_radius by {ask['strategy']} and {_name(ask)} gives label {label} {radius!r}"
            found.append(Claim(what, space.with_eps(radius), rows, exact([0.0] * len(rows)), True))
    return found


def _bounded(here: Setting, ask: dict[str, str]) -> list[Claim]:
    net = here.net.network
    options: Any = {"method": ask["method"], "relaxation": ask["relaxation"], "rigorous": True}
    lower, upper = (part.detach() for part in pc.bounds(net, here.x, here.ball, **options))
    size = int(np.prod(net.output_shape))
    eye = exact(torch.eye(size).tolist())
    found = []
    for k, space in enumerate(here.spaces):
        low, high = exact(lower[k].flatten()), exact(upper[k].flatten())
        claim = Claim(
            f"bounds by {_name(ask)}", space, np.concatenate([eye, -eye]), np.concatenate([low, -high]), False
        )
        if not all(mpmath.isinf(value) and value < 0 for value in claim.least):
            found.append(claim)
    return found


def says(bounds: Array) -> Array:
    """Offsets; one that overflowed says nothing: only `bounds` and `margins` promise numbers."""
    return np.array([value if mpmath.isfinite(value) else -mpf("inf") for value in bounds], dtype=object)


def _enveloped(here: Setting, ask: dict[str, str]) -> list[Claim]:
    env = pc.envelope(
        here.net.network,
        here.x,
        here.label,
        here.ball,
        method=ask["method"],
        relaxation=ask["relaxation"],
        rigorous=True,
    )
    count, found = here.net.network.output_shape[0], []
    if here.net.network.softmax:  # then it is about the logits, and the oracle ends in the softmax
        return found
    with torch.no_grad():
        distances, least = env.distances(), env.margins()
        offsets, slopes = env.offset.detach(), env.slope.detach().flatten(2)
    given_back = torch.zeros_like(offsets) if env.slack is None else env.slack.detach()
    for k, space in enumerate(here.spaces):
        classes = env.classes[k].tolist()
        (label,) = set(range(count)) - set(classes)
        rows, slope, offset = margins(label, classes, count), exact(slopes[k]), says(exact(offsets[k]))
        # Distances rest on the computed value at the sample, whose rounding the slack pays for.
        plain = offset + exact(given_back[k])
        found.append(Claim(f"envelope by {_name(ask)}", space, rows, offset, False, -slope))
        found.append(Claim(f"margins of the envelope by {_name(ask)}", space, rows, exact(least[k]), False))
        for row, distance in enumerate(distances[k].double().tolist()):
            # The half-space itself, whatever the network does: a finite distance is below the true one.
            if distance > 0 and (
                math.isfinite(distance) or not any(mpmath.isinf(s) for s in (*space.low, *space.high))
            ):
                reach = space.with_eps(distance)
                zero = np.full((1, count), mpf(0), dtype=object)
                what = f"distance {distance!r} of the envelope by {_name(ask)}"
                found.append(Claim(what, reach, zero, -plain[row : row + 1], True, slope[row : row + 1]))
    return found


ANSWERS = {"certify": _certified, "radius": _searched, "bounds": _bounded, "envelope": _enveloped}


def _name(ask: dict[str, str]) -> str:
    return f"{ask['method']}/{ask['relaxation']}"


class Networks:
    """Certificates and bounds of random networks of every rule."""

    seconds = 90.0

    def __init__(self, name: str = "networks", nets: tuple[str, ...] = ALL, opposite: float = 0.1) -> None:
        self.name, self.nets, self.opposite = name, nets, opposite

    def generate(self, rng: random.Random) -> dict[str, Any]:
        """A network with weights, samples with their set, and what to ask."""
        name, dtype = rng.choice(self.nets), rng.choice(("float32", "float32", "float64"))
        samples = rng.choice((1, 1, 1, 2))
        x_dtype = "float64" if dtype == "float64" or rng.random() < 0.1 else "float32"
        asks = []
        for _ in range(rng.choice((1, 2))):
            method = rng.choice(METHODS)
            relaxation = rng.choice(RELAXATIONS) if "crown" in method else "parallel"
            ask = {"ask": rng.choice(ASKS), "method": method, "relaxation": relaxation}
            asks.append(ask | {"strategy": rng.choice(STRATEGIES)} if ask["ask"] == "radius" else ask)
        return {
            "net": name,
            "dtype": dtype,
            "x_dtype": x_dtype,
            "weights": drawing.weights(rng, shapes(name), dtype, self.opposite),
            **self._ball(rng, NETS[name].shape, samples, x_dtype),
            "labels": None if rng.random() < 0.8 else [rng.randrange(2) for _ in range(samples)],
            "asks": asks,
            "tighten": rng.random() < 0.7,
            "seed": rng.randrange(2**32),
        }

    def _ball(self, rng: random.Random, shape: tuple[int, ...], samples: int, dtype: str) -> dict[str, Any]:
        """Where layers are at the ends of the type, often nothing but the sample: then only rounding is left."""
        drawn = drawing.ball(rng, shape, samples, dtype)
        return drawn | ({"eps": put([0.0] * samples)} if rng.random() < self.opposite / 2 else {})

    def check(self, case: dict[str, Any]) -> str | None:
        """Every claim at every point; then once more with the last bias moved so that a point just fails."""
        here = Setting.of(case)
        with precise():
            search, claims = Points(here), _claims(here)
            try:
                said = search.judge(claims)
            except ZeroDivisionError:  # the network has no value there
                proofs = [claim.what for claim in claims if claim.strict]
                return f"{proofs[0]}, though the network divides by 0" if proofs else None
            if said is not None or not case["tighten"]:
                return said
            tightened = search.tightened()
            return None if tightened is None else Points(tightened, search.worst).judge(_claims(tightened))

    def shrink(self, case: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Fewer questions and samples, then simpler numbers."""
        for k in range(len(case["asks"])):
            if len(case["asks"]) > 1:
                yield {**case, "asks": [case["asks"][k]]}
        for k in range(len(case["x"])):
            if len(case["x"]) > 1:
                one = {name: case[name][k : k + 1] for name in ("x", "eps")}
                yield {**case, **one, "labels": case["labels"] and case["labels"][k : k + 1]}
        for part in ({"low": None}, {"high": None}, {"labels": None}, {"tighten": False}, {"norm": "inf"}):
            if any(case[name] != value for name, value in part.items()):
                yield {**case, **part}
        for values in simplified(case["eps"]):
            yield {**case, "eps": values}
        for k, row in enumerate(case["x"]):
            for values in simplified(row):
                yield {**case, "x": [*case["x"][:k], values, *case["x"][k + 1 :]]}
        for name in case["weights"]:
            for values in simplified(case["weights"][name]):
                yield {**case, "weights": {**case["weights"], name: values}}


def _claims(here: Setting) -> list[Claim]:
    found = [claim for ask in here.case["asks"] for claim in ANSWERS[ask["ask"]](here, ask)]
    if any(np.isfinite([float(v) for v in claim.least]).any() or claim.strict for claim in found):
        claimed()
    return found


class Points:
    """Looks for points that contradict claims, and remembers the one that came nearest."""

    def __init__(self, here: Setting, more: tuple[Array, ...] = ()) -> None:
        self.here, self.more = here, more
        self.module: nn.Module = here.net.double
        self.rng = random.Random(here.case["seed"])
        self.worst: tuple[Array, ...] = ()
        self._slack: mpf = mpf("inf")
        self._known: dict[tuple[str, ...], Array] = {}
        self._row: tuple[Array, Array, Array] | None = None

    def judge(self, claims: list[Claim]) -> str | None:
        """The first contradiction."""
        for claim in claims:
            for point in self._points(claim):
                if not claim.space.contains(point):
                    continue
                try:
                    outputs = self._outputs(point)
                except TooFarError:
                    continue
                said = claim.broken(point, outputs)
                if said is not None and self._surely(claim, point):
                    return f"{said} {_text(point)}"
                self._remember(claim, point, outputs)
        return None

    def _surely(self, claim: Claim, point: Array) -> bool:
        with precise(SURE):
            return claim.broken(point, self.here.net.oracle.outputs(self._shaped(point))) is not None

    def _shaped(self, point: Array) -> Array:
        return point.reshape(NETS[self.here.case["net"]].shape)

    def _outputs(self, point: Array) -> Array:
        key = tuple(str(p._mpf_) for p in point)
        if key not in self._known:
            self._known[key] = self.here.net.oracle.outputs(self._shaped(point))
        return self._known[key]

    def _points(self, claim: Claim) -> Iterator[Array]:
        """The sample, what a claim's own slopes say, descent, random ones."""
        space = claim.space
        yield space.x
        yield from (space.inside(point) for point in self.more)
        if claim.terms is not None:
            for k in range(len(claim.terms)):
                yield space.lowest(claim.terms[k])
        if any(r != 0 for r in claim.rows.flat):
            for k in self.rng.sample(range(len(claim.rows)), min(2, len(claim.rows))):
                yield from self._descent(claim, k)
        yield from space.draws(self.rng, 4)

    def _descent(self, claim: Claim, row: int) -> Iterator[Array]:
        """To the lowest point of the linearised row, twice; also by its sign pattern from there."""
        point = claim.space.x
        rows = torch.tensor([float(r) for r in claim.rows[row]], dtype=torch.float64)
        for _ in range(2):
            at = torch.tensor([float(p) for p in point], dtype=torch.float64)
            at = at.reshape(1, *NETS[self.here.case["net"]].shape).requires_grad_()
            (slope,) = torch.autograd.grad((self.module(at).flatten() * rows).sum(), at)
            if not bool(torch.isfinite(slope).all()):
                return
            point = claim.space.lowest(exact(slope.flatten()))
            yield point

    def _remember(self, claim: Claim, point: Array, outputs: Array) -> None:
        """The strict claim of the first sample that came nearest to failing."""
        if not claim.strict or claim.terms is not None or any(claim.space.x != self.here.spaces[0].x):
            return
        slack = min(np.dot(claim.rows, outputs))
        if slack < self._slack:
            self._slack, self.worst, self._row = slack, (point,), (claim.rows, outputs, point)

    def tightened(self) -> Setting | None:
        """The same with one last bias moved up, as little as its type allows, so that the worst point fails."""
        bias = _last_bias(self.here)
        if self._row is None or bias is None:
            return None
        rows, outputs, _ = self._row
        values = np.dot(rows, outputs)
        worst = min(range(len(values)), key=lambda k: values[k])
        (other,) = (k for k in range(len(outputs)) if rows[worst][k] < 0)
        (label,) = (k for k in range(len(outputs)) if rows[worst][k] > 0)
        name, old = bias
        wanted = old[other] + values[worst]
        dtype = TYPES[self.here.case["dtype"]]
        new = torch.tensor(float(wanted), dtype=torch.float64).to(dtype)
        while bool(torch.isfinite(new)) and mpf(float(new)) < wanted:
            new = torch.nextafter(new, torch.tensor(math.inf, dtype=dtype))
        if not bool(torch.isfinite(new)):
            return None
        values_now = list(self.here.case["weights"][name])
        values_now[other] = put(float(new))
        labels = [label] * len(self.here.spaces)
        case = {**self.here.case, "weights": {**self.here.case["weights"], name: values_now}, "labels": labels}
        return replace(Setting.of(case), case=case)


def _last_bias(here: Setting) -> tuple[str, Array] | None:
    """The bias that is added to the outputs and to nothing else, if the network ends in a linear layer."""
    last = list(here.net.oracle.program.graph.nodes)[-1].args[0][0]
    if str(last.target) != "aten.linear.default" or len(last.args) < 3:
        return None
    name = here.net.oracle.program.graph_signature.inputs_to_parameters[last.args[2].name]
    return name, exact(take(here.case["weights"][name]))


def _text(point: Array) -> str:
    return "[" + ", ".join(mpmath.nstr(p, 20) for p in point[:8]) + (", …]" if len(point) > 8 else "]")
