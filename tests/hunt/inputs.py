"""Calls that make no sense, or nearly none: a sentence or a right answer, never another exception, never a proof."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import polycert as pc
from tests.hunt.kind import claimed

NAN, INF = math.nan, math.inf


def _net() -> nn.Module:
    """A network that is robust around its samples, so that what is wrong with a call is all that is wrong."""
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        for tensor, values in zip(
            net.parameters(),
            ([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [1.0] * 3, [[1.0, 1, 1], [-1, -1, -1]], [1, -1]),
            strict=True,
        ):
            tensor.copy_(torch.tensor(values))
    return net


X = [[0.5, 0.25], [0.25, 0.5]]
# What each argument may be: its name, and whether polycert may say anything but a sentence.
INPUTS: dict[str, Callable[[], Any]] = {
    "usual": lambda: torch.tensor(X),
    "double": lambda: torch.tensor(X, dtype=torch.float64),
    "half": lambda: torch.tensor(X, dtype=torch.float16),
    "bfloat16": lambda: torch.tensor(X, dtype=torch.bfloat16),
    "integers": lambda: torch.tensor([[1, 2], [3, 4]]),
    "large integers": lambda: torch.tensor([[2**24 + 1, 2**53 + 1], [1, 2]]),
    "bools": lambda: torch.tensor([[True, False], [False, True]]),
    "complex": lambda: torch.tensor(X) + 1j,
    "list": lambda: X,
    "numpy": lambda: np.array(X),
    "numpy big-endian": lambda: np.array(X, dtype=">f4"),
    "numpy objects": lambda: np.array(X, dtype=object),
    "numpy strings": lambda: np.array([["a", "b"], ["c", "d"]]),
    "numpy longdouble": lambda: np.array(X, dtype=np.longdouble),
    "numpy backwards": lambda: np.array(X)[::-1, ::-1],
    "read only": lambda: np.broadcast_to(np.array(X[0]), (2, 2)),
    "empty": lambda: torch.zeros(0, 2),
    "no features": lambda: torch.zeros(2, 0),
    "flat": lambda: torch.zeros(2),
    "number": lambda: torch.tensor(1.0),
    "wrong width": lambda: torch.zeros(2, 3),
    "deeper": lambda: torch.zeros(2, 1, 2),
    "nan": lambda: torch.tensor([[NAN, 0.0], [0.0, 0.0]]),
    "inf": lambda: torch.tensor([[INF, 0.0], [0.0, 0.0]]),
    "huge": lambda: torch.tensor([[3e38, 3e38], [0.0, 0.0]]),
    "huge double": lambda: torch.tensor([[1e300, 0.0], [0.0, 0.0]], dtype=torch.float64),
    "denormal": lambda: torch.tensor([[1e-45, 0.0], [-1e-45, 0.0]]),
    "None": lambda: None,
    "text": lambda: "x",
    "meta": lambda: torch.zeros(2, 2, device="meta"),
    "sparse": lambda: torch.tensor(X).to_sparse(),
    "sparse rows": lambda: torch.tensor(X).to_sparse_csr(),
    "jagged": lambda: torch.nested.nested_tensor(X, layout=torch.jagged),
    "needs gradients": lambda: torch.tensor(X, requires_grad=True),
    "conjugate view": lambda: torch.tensor(X).t().contiguous().t(),
}
LABELS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "right": lambda: torch.tensor([0, 0]),
    "wrong": lambda: torch.tensor([1, 1]),
    "numpy": lambda: np.array([0, 0], dtype=np.uint8),
    "list": lambda: [0, 0],
    "too large": lambda: torch.tensor([0, 2]),
    "negative": lambda: torch.tensor([0, -1]),
    "floats": lambda: torch.tensor([0.0, 0.0]),
    "bools": lambda: torch.tensor([False, True]),
    "one only": lambda: torch.tensor([0]),
    "column": lambda: torch.tensor([[0], [0]]),
    "number": lambda: 0,
    "huge": lambda: torch.tensor([0, 2**62]),
    "nan": lambda: torch.tensor([NAN, 0.0]),
    "text": lambda: "0",
    "complex": lambda: torch.tensor([0j, 0j]),
}
EPS: dict[str, Callable[[], Any]] = {
    "usual": lambda: 0.01,
    "zero": lambda: 0.0,
    "per sample": lambda: torch.tensor([0.01, 0.02]),
    "numpy": lambda: np.array([0.01, 0.02]),
    "list": lambda: [0.01, 0.02],
    "0-d": lambda: torch.tensor(0.01),
    "0-d numpy": lambda: np.float32(0.01),
    "too many": lambda: torch.tensor([0.01, 0.02, 0.03]),
    "none": lambda: torch.tensor([]),
    "column": lambda: torch.tensor([[0.01], [0.02]]),
    "negative": lambda: -0.1,
    "minus zero": lambda: -0.0,
    "nan": lambda: NAN,
    "inf": lambda: INF,
    "one nan": lambda: torch.tensor([0.01, NAN]),
    "large": lambda: 1e35,
    "largest": lambda: 1.7e308,
    "smallest": lambda: 5e-324,
    "integer": lambda: 1,
    "huge integer": lambda: 10**400,
    "bool": lambda: True,
    "text": lambda: "0.1",
    "None": lambda: None,
    "complex": lambda: 0.1j,
}
SIDES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "none": lambda: (None, None),
    "unit": lambda: (0.0, 1.0),
    "below only": lambda: (0.0, None),
    "swapped": lambda: (1.0, 0.0),
    "nan": lambda: (NAN, 1.0),
    "endless": lambda: (-INF, INF),
    "infinitely high": lambda: (INF, INF),
    "x outside": lambda: (0.9, 1.0),
    "features": lambda: (torch.zeros(2), torch.ones(2)),
    "lists": lambda: ([0.0, 0.0], [1.0, 1.0]),
    "wrong shape": lambda: (torch.zeros(3), torch.ones(3)),
    "shapes differ": lambda: (torch.zeros(2), torch.ones(3)),
    "one inf": lambda: (torch.tensor([-INF, 0.0]), torch.tensor([1.0, INF])),
    "zero width": lambda: (torch.tensor(X[0]), torch.tensor(X[0])),
    "text": lambda: ("a", "b"),
    "integers": lambda: (0, 1),
    "empty": lambda: (torch.zeros(0), torch.zeros(0)),
    "batch": lambda: (torch.zeros(2, 2), torch.ones(2, 2)),
    "complex": lambda: (0j, 1.0),
}
NORMS: dict[str, Any] = {
    "inf": INF, "one": 1, "two": 2.0, "half": 0.5, "zero": 0, "nan": NAN, "minus": -INF, "text": "2", "None": None,
    "huge": 1e300, "next to one": 1 + 2.0**-52, "true": True, "tensor": torch.tensor(2.0), "numpy": np.float64(2.0),
    "complex": 2j, "integer": 10**400,
}  # fmt: skip
WEIGHTS: dict[str, float] = {"usual": 0.0, "nan": NAN, "inf": INF, "-inf": -INF, "largest": 3.4e38, "denormal": 1e-45}
CALLS = ("certify", "bounds", "envelope", "radius", "verify", "attack")
PARTS: dict[str, dict[str, Any]] = {
    "x": INPUTS,
    "y": LABELS,
    "eps": EPS,
    "box": SIDES,
    "norm": NORMS,
    "weights": WEIGHTS,
    "call": dict.fromkeys(CALLS),
    "method": dict.fromkeys(("crown", "ibp", "forward", "crown-ibp", "alpha-crown", "", "Crown")),
    "relaxation": dict.fromkeys(("parallel", "adaptive", "best", "other")),
}
USUAL = {name: next(iter(values)) for name, values in PARTS.items()}
# What may not lead to a proof, whatever the rest.
NONSENSE = {
    "x": {"nan", "inf", "complex", "text", "None", "meta", "numpy strings", "empty", "wrong width"},
    "eps": {"negative", "nan", "inf", "one nan", "text", "None", "complex", "huge integer"},
    "box": {"nan", "swapped", "x outside", "wrong shape", "shapes differ", "text", "infinitely high"},
    "norm": {"half", "zero", "nan", "minus", "text", "None", "complex"},
    "weights": {"nan", "inf", "-inf"},
    "y": {"wrong", "too large", "negative", "huge", "nan"},
}


class Inputs:
    """One or two odd arguments among usual ones."""

    name = "inputs"
    seconds = 60.0

    def generate(self, rng: random.Random) -> dict[str, str]:
        """The name of what each argument is."""
        case = {**USUAL, "call": rng.choice(CALLS)}
        for part in rng.sample(sorted(PARTS), rng.choice((1, 2, 2, 3))):
            case[part] = rng.choice(tuple(PARTS[part]))
        return case

    def check(self, case: dict[str, str]) -> str | None:
        """No claim about nonsense; the samples that are fine are right either way."""
        claims, numbers = _answer(case)
        if claims:
            claimed()
        nonsense = [f"{part} {case[part]!r}" for part, names in NONSENSE.items() if case[part] in names]
        if claims and nonsense and not _half_right(case):
            return f"{case['call']} claims something with {', '.join(nonsense)}"
        if any(math.isnan(value) for value in numbers):
            return f"{case['call']} returns NaN"
        return None

    def shrink(self, case: dict[str, str]) -> Iterator[dict[str, str]]:
        """Usual values in the place of odd ones."""
        for part, usual in USUAL.items():
            if case[part] != usual:
                yield {**case, part: usual}


def _half_right(case: dict[str, str]) -> bool:
    """Claims that say nothing about a label."""
    own = [part for part, names in NONSENSE.items() if case[part] in names]
    return own == ["y"] and case["call"] in ("bounds", "envelope", "attack")


def _answer(case: dict[str, str]) -> tuple[int, list[float]]:
    """How many samples something was claimed of, and the numbers that were returned."""
    net = _net()
    with torch.no_grad():
        if case["weights"] != "usual":
            net[0].weight[0, 0] = WEIGHTS[case["weights"]]
    x, y, norm = INPUTS[case["x"]](), LABELS[case["y"]](), NORMS[case["norm"]]
    low, high = SIDES[case["box"]]()
    kinds: Any = {"method": case["method"], "relaxation": case["relaxation"]}
    eps = EPS[case["eps"]]()
    if case["call"] == "radius":
        radii = pc.largest_radius(net, x, y, norm=norm, upper=eps, low=low, high=high, tolerance=1e-3, **kinds)
        return int((radii.radius > 0).sum()), radii.radius.tolist()
    ball = pc.Ball(norm, eps, low, high)
    if case["call"] == "certify":
        certs = pc.certify(net, x, y, ball, **kinds)
        return int((certs.certified | (certs.radius > 0)).sum()), certs.radius.tolist()
    if case["call"] == "bounds":
        bounds = pc.bounds(net, x, ball, rigorous=True, **kinds)
        ends = torch.cat([part.detach().flatten() for part in bounds])
        return int(torch.isfinite(ends).sum()), ends.tolist()
    if case["call"] == "envelope":
        env = pc.envelope(net, x, y, ball, rigorous=True, **kinds)
        return int((env.margins() > 0).sum()), _flat(env.margins())
    if case["call"] == "verify":
        found = pc.verify(net, x, y, ball, timeout=5)
        return found.status.count("robust"), []
    pc.attack(net, x, y, ball, steps=3, restarts=1, seed=0)
    return 0, []


def _flat(values: Tensor) -> list[float]:
    found: list[float] = values.detach().flatten().tolist()
    return found
