"""The report never says more than was proved."""

from __future__ import annotations

from pathlib import Path

import pytest

from polycert.report.overview import headline
from polycert.report.runs import ReportedModel
from polycert.sets.ball import eps_text


def run(**record: object) -> ReportedModel:
    return ReportedModel(
        "net", Path("net.json"), record={"n": 10_000, "norm": "inf", "eps": 0.1, "rigorous": True, **record}
    )


PARTS = {"proved": 99.99, "wrong": 0.01, "broken": 0.0, "open": 0.0}


def test_shares_of_proofs_are_rounded_down() -> None:
    assert headline(run(), PARTS).startswith("99.9 % of 10,000 samples are proved")
    assert headline(run(), {**PARTS, "proved": 100.0}).startswith("100.0 % of 10,000 samples are proved")


def test_fast_arithmetic_proves_nothing() -> None:
    said = headline(run(rigorous=False), PARTS)
    assert "nothing is proved" in said
    assert "are proved" not in said


@pytest.mark.parametrize(
    ("eps", "text"),
    [
        (0.1, "0.1"),
        (2 / 255, "0.00784313"),
        (1 - 1e-9, "0.999999"),
        (1.0, "1"),
        (1e-7 / 3, "3.33333e-08"),
        (12.5, "12.5"),
    ],
)
def test_radii_are_rounded_down(eps: float, text: str) -> None:
    assert eps_text(eps) == text
    assert float(eps_text(eps)) <= eps
