"""Table 7: the paper's hyper-parameters of PER beside those of the recipes."""

from __future__ import annotations

from typing import Any

from polycert.training.recipe_files import library
from polycert_paper import printed_figures
from polycert_paper.settings import settings
from polycert_paper.table import Table, TableCell, TableColumn, TableLine, compared

COLUMNS = ("alpha", "eps", "every", "gamma")
NOTES = (
    "eps doubles after every so many epochs where a number is given, and is constant otherwise. "
    "In brackets: the recipe's value minus the paper's. `polycert train NAME --show` prints a whole recipe.",
    "The text of the paper says alpha = 1.5 eps; this table has 0.1 for CIFAR-10, l_inf, which is 12.7 times eps.",
)


def hyperparameter_table() -> Table:
    """Return the table, with the paper's and the recipe's values for each PER method and setting."""
    recipes = library()
    rows = printed_figures.lines("table7")
    titles = {name: setting.title for name, setting in settings(row["setting"] for row in rows).items()}
    lines: list[TableLine] = []
    for row in rows:
        for method in row["methods"].split():
            place = titles[row["setting"]], printed_figures.METHOD_NAMES[method]
            ours = _values(recipes[f"{row['setting']}-{method}"])
            lines.append(TableLine(*place, "paper", tuple(TableCell(row[name]) for name in COLUMNS)))
            cells = tuple(compared(ours[name], row[name]) for name in COLUMNS)
            lines.append(TableLine(*place, f"recipe {row['setting']}-{method}", cells))
    columns = tuple(map(TableColumn, ("alpha", "eps at first", "doubles every", "gamma")))
    return Table("table7", "hyper-parameters of PER", columns, tuple(lines), NOTES)


def _values(recipe: dict[str, Any]) -> dict[str, str]:
    """Return a recipe's values as text. Of a schedule of eps, they are its first value and the epochs of a doubling."""
    eps = recipe["eps"]
    first, every = (eps["first"], eps.get("every", "")) if isinstance(eps, dict) else (eps, "")
    return {"alpha": str(recipe["alpha"]), "eps": str(first), "every": str(every), "gamma": str(recipe["gamma"])}
