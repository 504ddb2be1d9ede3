"""Which tables compare networks, by which figures, and where their records are."""

from __future__ import annotations

from dataclasses import dataclass

from polycert_paper.stored_records import Figures
from polycert_paper.table import Figure

LEAK = (
    "† The paper's network: gradients of half the test images entered its training (an error of the released code), so "
    "its clean and attacked errors are no targets. Where a record has them, both halves are shown. Ours have no leak."
)
CORRECTED = (
    "*paper, corrected*: what the released network is known to give where the paper prints another figure; under CRE "
    "exact, what a complete certifier proves over all 10,000 images."
)
RELEASED = "*released network*: the paper's own weights, evaluated by polycert."
DIFFERENCES = (
    "In brackets: the figure minus the paper's printed one. Errors in per cent, ACB (radii) in units of the input."
)
STRONG = "PGD strong: a stronger attack, which the paper has not."
CRO = (
    "The paper calls the columns CRE Lin and ACB Lin of this table CRO; its figures were made with one slope, as Lin "
    "is. *paper, corrected*: with sound touching points."
)
SEARCH = (
    "Mean number of bound computations per image until the largest certifiable eps is known to 1e-4. Bisection is "
    "the paper's T_Lin, envelope its T_PEC; root is ours and has no figure in the paper."
)

# Heading and digits of each figure.
HEADINGS: dict[str, tuple[str, int]] = {
    "CTE": ("CTE", 2),
    "PGD": ("PGD", 2),
    "PGD_strong": ("PGD strong", 2),
    "CRE_Lin": ("CRE Lin", 2),
    "CRE_CROWN": ("CRE CROWN", 2),
    "CRE_IBP": ("CRE IBP", 2),
    "CRE_exact": ("CRE exact", 2),
    "ACB_Lin": ("ACB Lin", 4),
    "ACB_CROWN": ("ACB CROWN", 4),
    "ACB_IBP": ("ACB IBP", 4),
    "ACB_PEC": ("ACB PEC", 4),
    "T_bisection": ("T bisection", 2),
    "T_envelope": ("T envelope", 2),
    "ratio": ("envelope / bisection", 4),
    "T_root": ("T root", 2),
    "root_ratio": ("root / bisection", 4),
}
RATIOS = {"ratio": "T_envelope", "root_ratio": "T_root"}
OURS_ONLY = ("PGD_strong", "CRE_CROWN", "ACB_CROWN", "T_root", "root_ratio")


@dataclass(frozen=True)
class TableLayout:
    """One table of networks; `folders`: where its records are, the first being its own."""

    name: str
    title: str
    figures: tuple[str, ...]
    folders: tuple[str, ...]
    notes: tuple[str, ...]


_ERRORS = ("CTE", "PGD", "PGD_strong", "CRE_Lin")
_BOUNDS = ("ACB_Lin", "ACB_IBP", "ACB_PEC")
_CURVED = (*_ERRORS, "CRE_CROWN", "CRE_IBP", "ACB_Lin", "ACB_CROWN", "ACB_IBP", "ACB_PEC")
_SEARCH = ("T_bisection", "T_envelope", "ratio", "T_root", "root_ratio")
_MAIN_NOTES = (DIFFERENCES, STRONG, CORRECTED, RELEASED, LEAK)

LAYOUTS: dict[str, TableLayout] = {
    layout.name: layout
    for layout in (
        TableLayout(
            "table1",
            "ReLU networks, l_inf",
            (*_ERRORS, "CRE_IBP", "CRE_exact", *_BOUNDS),
            ("table1",),
            _MAIN_NOTES,
        ),
        TableLayout(
            "table2", "sigmoid and tanh, l_inf", _CURVED, ("table2",), (DIFFERENCES, STRONG, CRO, RELEASED, LEAK)
        ),
        TableLayout("table3", "large budgets, l_inf", ("CRE_exact",), ("table3",), (DIFFERENCES, LEAK)),
        TableLayout(
            "table4", "search for the largest eps, l_inf", _SEARCH, ("table4", "table1"), (SEARCH, RELEASED, LEAK)
        ),
        TableLayout("table8", "ReLU networks, l_2", (*_ERRORS, "CRE_IBP", *_BOUNDS), ("table8",), _MAIN_NOTES),
        TableLayout(
            "table9", "sigmoid and tanh, l_2", _CURVED, ("table9",), (DIFFERENCES, STRONG, CRO, RELEASED, LEAK)
        ),
        TableLayout(
            "table10", "search for the largest eps, l_2", _SEARCH, ("table10", "table8"), (SEARCH, RELEASED, LEAK)
        ),
    )
}


def value_of(record: Figures, figure: str) -> Figure | None:
    """A figure of a record; the ratios of the search are of its means."""
    if figure not in RATIOS:
        found: Figure | None = getattr(record, figure)
        return found
    over: float | None = getattr(record, RATIOS[figure])
    return None if over is None or record.T_bisection is None else over / record.T_bisection
