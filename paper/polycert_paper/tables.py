"""The tables by name: those of the paper, and one of the networks that were trained here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from polycert_paper.cost_growth import growth_table
from polycert_paper.hyperparameters import hyperparameter_table
from polycert_paper.layouts import LAYOUTS
from polycert_paper.network_tables import network_table
from polycert_paper.stored_records import Store
from polycert_paper.table import Table
from polycert_paper.tangents import tangent_table
from polycert_paper.trained import trained_table

MAKERS: dict[str, Callable[[Store], Table]] = {
    **{name: partial(network_table, layout) for name, layout in LAYOUTS.items()},
    "table5": growth_table,
    "table6": lambda _: tangent_table(),
    "table7": lambda _: hyperparameter_table(),
}
TABLES = {f"table{number}": MAKERS[f"table{number}"] for number in range(1, 11)} | {"trained": trained_table}
