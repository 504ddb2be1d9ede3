"""The figures that the paper prints: every row of its tables, as text with the printed digits, and corrections.

The folder `printed` has one file for each table, taken from the paper's source; `corrections.csv` holds figures that
replace printed ones, with the reason: `checkpoint` (what the released network gives), `exact` (a complete certifier
over all samples), `tangents` (sound touching points of sigmoid and tanh).
"""

from __future__ import annotations

import csv
from importlib import resources

Figures = dict[str, str]
RowKey = tuple[str, str]  # setting and method, as in the names of recipes

METHOD_NAMES = {
    "plain": "plain",
    "at": "at",
    "kw": "KW",
    "ibp": "IBP",
    "c-ibp": "C-IBP",
    "mmr": "MMR",
    "mmr+at": "MMR+at",
    "c-per": "C-PER",
    "c-per+at": "C-PER+at",
    "i-per": "I-PER",
    "i-per+at": "I-PER+at",
}
# Methods that the paper lacks. They are shown where there is a record of one.
OWN_METHODS = {"mtl-ibp": "MTL-IBP", "mtl-kw": "MTL-KW"}
# The released training code of these methods let gradients of test images into the weights.
LEAKED = ("c-per+at", "i-per+at")


def lines(name: str) -> list[dict[str, str]]:
    """Return the lines of one data file, each as its values by heading."""
    text = (resources.files("polycert_paper") / "printed" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def printed(table: str) -> dict[RowKey, Figures]:
    """Return the printed figures of a table by `(setting, method)`, in the paper's order."""
    rows = lines(table)
    return {(row.pop("setting"), row.pop("method")): row for row in rows}


def with_own_methods(rows: dict[RowKey, Figures]) -> dict[RowKey, Figures]:
    """Return the rows, and after those of each setting an empty one for each method that the paper lacks."""
    names = dict.fromkeys(setting for setting, _ in rows)
    own = {(name, method): Figures() for name in names for method in OWN_METHODS}
    order = list(names)
    return dict(sorted((rows | own).items(), key=lambda row: order.index(row[0][0])))  # keeps the order within


def method_name(method: str) -> str:
    """Return the name of a method as tables show it."""
    return (METHOD_NAMES | OWN_METHODS)[method]


def corrections(table: str) -> dict[RowKey, Figures]:
    """Return the figures that replace printed ones by `(setting, method)`, for the rows that have any."""
    found: dict[RowKey, Figures] = {}
    for line in lines("corrections"):
        if line["table"] == table:
            found.setdefault((line["setting"], line["method"]), {})[line["figure"]] = line["value"]
    return found
