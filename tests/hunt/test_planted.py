"""A hunt that finds nothing proves nothing unless it can find: bugs are planted, and each is found soon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

import polycert as pc
from polycert.certification import certify, radius
from polycert.forms import Dense
from polycert.graph import inputs
from polycert.rules.piecewise_linear import LeakyRelu, Relu
from polycert.rules.s_shaped import SShaped
from polycert.sets import geometry
from polycert.sets.ball import Region
from polycert.sets.interval import Interval, Rounding
from polycert.verification import rational_leaf
from tests.hunt.kind import Kind
from tests.hunt.kinds import by_name
from tests.hunt.outcome import Outcome, case_of, try_case

pytestmark = pytest.mark.slow  # each hunts until it finds what was planted

Plant = Callable[[pytest.MonkeyPatch], None]
SEED = 7


def no_slack(patch: pytest.MonkeyPatch) -> None:
    """Rounding is forgotten."""
    patch.setattr(Rounding, "gamma", lambda self, terms: 0.0)
    patch.setattr(Rounding, "library", lambda self, size: size * 0)
    patch.setattr(Rounding, "tiny", 0.0)


def low_offset(patch: pytest.MonkeyPatch) -> None:
    """The upper line of a ReLU is a hair too low."""
    right = Relu.parallel

    def wrong(self: Relu, lower: Tensor, upper: Tensor) -> tuple[Tensor, Interval]:
        slope, (low, high) = right(self, lower, upper)
        return slope, Interval(low, high * (1 - 1e-3))

    patch.setattr(Relu, "parallel", wrong)
    patch.setattr(LeakyRelu, "offset_range", _narrow(LeakyRelu.offset_range))


def narrow_curves(patch: pytest.MonkeyPatch) -> None:
    """Touching points of S-shaped functions are forgotten."""

    def wrong(self: SShaped, slope: Tensor, lower: Tensor, upper: Tensor) -> Interval:
        ends = self.forward(lower) - slope * lower, self.forward(upper) - slope * upper
        return Interval(torch.minimum(*ends), torch.maximum(*ends))

    patch.setattr(SShaped, "offset_range", wrong)


def _narrow(right: Callable[..., Interval]) -> Callable[..., Interval]:
    def wrong(*args: object) -> Interval:
        low, high = right(*args)
        return Interval(low, high - (high - low) * 1e-3)

    return wrong


def short_dot(patch: pytest.MonkeyPatch) -> None:
    """Dense rows forget their last coordinate."""
    right = Dense.dot
    patch.setattr(Dense, "dot", lambda self, value: right(self, value * _all_but_last(value)))


def _all_but_last(value: Tensor) -> Tensor:
    kept = torch.ones_like(value).flatten(1)
    kept[:, -1] = 0
    return kept.reshape(value.shape)


def narrow_set(patch: pytest.MonkeyPatch) -> None:
    """The radius is rounded down."""
    patch.setattr(Region, "radius", property(lambda self: self.eps.to(self.x.dtype) * (1 - 1e-6)))


def small_dual(patch: pytest.MonkeyPatch) -> None:
    """Dual norms are too small by three units."""
    right = geometry.dual_norm
    patch.setattr(geometry, "dual_norm", lambda weight, norm: right(weight, norm) * (1 - 1e-5))


def hopeful(patch: pytest.MonkeyPatch) -> None:
    """What the search leaves open is called robust."""
    right = pc.verify

    def wrong(*args: Any, **options: Any) -> pc.Verdicts:
        found = right(*args, **options)
        decisions = [replace(d, status="robust") if d.status == "unknown" else d for d in found.decisions]
        pairs = zip(found.verdicts, decisions, strict=True)
        return replace(found, verdicts=tuple(replace(v, decision=d) for v, d in pairs))

    patch.setattr(pc, "verify", wrong)


def ties_hold(patch: pytest.MonkeyPatch) -> None:
    """Exact arithmetic takes a tie for a proof."""
    right = rational_leaf.positive
    hair = Fraction(1, 2**3000)
    patch.setattr(
        rational_leaf, "positive", lambda region, line: right(region, line._replace(constant=line.constant + hair))
    )


def unchecked_numbers(patch: pytest.MonkeyPatch) -> None:
    """NaN and infinite numbers are let in."""
    patch.setattr(inputs, "all_finite", lambda values: True)
    for module in (certify, radius):
        patch.setattr(module, "check_finite", lambda graph, values: None)


PLANTS: list[tuple[str, Plant, int]] = [
    ("networks", no_slack, 60),
    ("networks", low_offset, 500),
    ("networks", short_dot, 60),
    ("networks", narrow_set, 100),
    ("linear", no_slack, 60),
    ("linear", narrow_set, 60),
    ("geometry", small_dual, 60),
    ("geometry", narrow_set, 60),
    ("relaxations", low_offset, 60),
    ("relaxations", narrow_curves, 60),
    ("relaxations", no_slack, 60),
    ("exact", hopeful, 60),
    ("exact", no_slack, 60),
    ("exact", ties_hold, 150),
    ("assembled", hopeful, 60),
    ("assembled", no_slack, 150),
    ("assembled", ties_hold, 150),
    ("inputs", unchecked_numbers, 200),
]


def first_find(kind: Kind, plant: Plant, most: int) -> tuple[int, Outcome] | None:
    """The number of the first case that fails with the bug and not without it, and how."""
    for number in range(most):
        case = case_of(kind, SEED, number)
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            outcome = try_case(kind, case)
        if outcome.found and not try_case(kind, case).found:
            return number, outcome
    return None


@pytest.mark.parametrize(("name", "plant", "most"), PLANTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_planted_bug_is_found(name: str, plant: Plant, most: int) -> None:
    found = first_find(by_name(name), plant, most)
    assert found is not None
    print(*found)
