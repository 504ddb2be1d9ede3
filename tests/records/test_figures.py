"""The schema of figures: every entry measures, means and prints something, and the documentation says the same."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from polycert.records.figures import ATTACKED, CERTIFIED, FIGURES, Figure, of

PAGE = Path(__file__).parents[2] / "docs" / "evaluate.md"
# Four samples: proved, proved by intervals alone, broken by an attack, misclassified.
COLUMNS = {
    "label": np.array([0, 1, 2, 3]),
    "prediction": np.array([0, 1, 2, 0]),
    "pgd": np.array([False, False, False, True]),
    "attacked": np.array([False, False, True, True]),
    "certified": np.array([True, False, False, False]),
    "certified_crown": np.array([True, False, False, False]),
    "certified_ibp": np.array([True, True, False, False]),
    "radius": np.array([0.2, 0.1, 0.1, 0.0]),
    "largest": np.array([0.5, np.nan, 0.1, 0.0]),
    **{f"evaluations_{name}": np.array([8.0, np.nan, 4.0, 0.0]) for name in ("bisection", "envelope", "root")},
    "unstable": np.array([1, 2, 3, 4]),
    "status": np.array(["robust", "robust", "falsified", ""], dtype=object),
}
VALUES = {
    "CTE": 25,
    "PGD": 25,
    "PGD_strong": 50,
    "CRE_Lin": 75,
    "CRE_CROWN": 75,
    "CRE_IBP": 50,
    "ACB_Lin": 0.05,
    "ACB_CROWN": 0.05,
    "ACB_IBP": 0.1,
    "ACB_PEC": 0.1,
    "radius_mean": 0.2,
    "T_bisection": 6,
    "T_envelope": 6,
    "T_root": 6,
    "unstable": 2.5,
    "CRE_exact": [100 / 3, 100 / 3],
}


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_a_figure_is_what_its_samples_give(figure: Figure) -> None:
    found = figure.estimate(COLUMNS, 0.2)
    assert found is not None
    assert found.value == pytest.approx(VALUES[figure.key])
    ends = found.value if isinstance(found.value, list) else [found.value]
    assert found.interval[0] <= min(ends) <= max(ends) <= found.interval[1]


def test_what_was_not_measured_is_no_figure() -> None:
    few = {**COLUMNS, "largest": np.full(4, np.nan)}
    del few["unstable"], few["status"]
    absent = {key for key, figure in FIGURES.items() if figure.estimate(few, 0.2) is None}
    assert absent == {"radius_mean", "T_bisection", "T_envelope", "T_root", "unstable", "CRE_exact"}


def test_groups_hold_every_figure_once() -> None:
    groups = {figure.group for figure in FIGURES.values()}
    assert sorted(figure.key for figure in of(*groups)) == sorted(FIGURES)
    assert [figure.key for figure in of(CERTIFIED, ATTACKED)] == [
        *("CRE_Lin", "CRE_CROWN", "CRE_IBP", "PGD", "PGD_strong"),
    ]


def test_the_documentation_says_what_each_figure_means() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert [key for key, figure in FIGURES.items() if not rows.get(key, "").startswith(figure.meaning)] == []
