"""The paper's tables by name, and the one of what was trained here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from polycert.reproduce.grid import Table
from polycert.reproduce.growth import growth_table
from polycert.reproduce.hyperparameters import hyperparameter_table
from polycert.reproduce.layouts import LAYOUTS
from polycert.reproduce.networks import network_table
from polycert.reproduce.store import Store
from polycert.reproduce.tangents import tangent_table
from polycert.reproduce.trained import trained_table

MAKERS: dict[str, Callable[[Store], Table]] = {
    **{name: partial(network_table, layout) for name, layout in LAYOUTS.items()},
    "table5": growth_table,
    "table6": lambda _: tangent_table(),
    "table7": lambda _: hyperparameter_table(),
}
TABLES = {f"table{number}": MAKERS[f"table{number}"] for number in range(1, 11)} | {"trained": trained_table}
