"""The tables that compare networks: the figures that each shows, and the folders of its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from polycert.records.figures import ATTACKED, CERTIFIED, CLEAN, FIGURES, PARTIAL, WHOLE, of
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


class Heading(NamedTuple):
    """The title of a column, and the digits of its figures."""

    title: str
    digits: int


# Ratios of the cost of a search to that of bisection.
RATIOS = {"ratio": "T_envelope", "root_ratio": "T_root"}
HEADINGS = {
    **{key: Heading(figure.title, figure.group.kind.digits) for key, figure in FIGURES.items()},
    "ratio": Heading("envelope / bisection", 4),
    "root_ratio": Heading("root / bisection", 4),
}


@dataclass(frozen=True)
class TableLayout:
    """A table of networks: its figures, and the folders of its records, of which the first is its own."""

    name: str
    title: str
    figures: tuple[str, ...]
    folders: tuple[str, ...]
    notes: tuple[str, ...]


_CURVED = tuple(figure.key for figure in of(CLEAN, ATTACKED, CERTIFIED, WHOLE, PARTIAL))
# For ReLU networks the paper has only one slope, and Table 1 has the exact error.
_RELU = tuple(key for key in _CURVED if key not in ("CRE_CROWN", "ACB_CROWN"))
_EXACT = _RELU.index("CRE_IBP") + 1
_SEARCH = ("T_bisection", "T_envelope", "ratio", "T_root", "root_ratio")
_MAIN_NOTES = (DIFFERENCES, STRONG, CORRECTED, RELEASED, LEAK)

LAYOUTS: dict[str, TableLayout] = {
    layout.name: layout
    for layout in (
        TableLayout(
            "table1",
            "ReLU networks, l_inf",
            (*_RELU[:_EXACT], "CRE_exact", *_RELU[_EXACT:]),
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
        TableLayout("table8", "ReLU networks, l_2", _RELU, ("table8",), _MAIN_NOTES),
        TableLayout(
            "table9", "sigmoid and tanh, l_2", _CURVED, ("table9",), (DIFFERENCES, STRONG, CRO, RELEASED, LEAK)
        ),
        TableLayout(
            "table10", "search for the largest eps, l_2", _SEARCH, ("table10", "table8"), (SEARCH, RELEASED, LEAK)
        ),
    )
}


def value_of(record: Figures, figure: str) -> Figure | None:
    """Return a figure of a record, or None if the record lacks it. Ratios of searches are those of their means."""
    if figure not in RATIOS:
        return record.figures.get(figure)
    over, under = record.figures.get(RATIOS[figure]), record.figures.get("T_bisection")
    return over / under if isinstance(over, float) and isinstance(under, float) and under > 0 else None
