"""Table 5: how the cost of each method grows, as the paper counts it and as we measured it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from polycert_paper import printed_figures
from polycert_paper.stored_records import Store
from polycert_paper.table import Missing, Table, TableCell, TableColumn, TableLine, compared, rounded

FOLDER, COMMAND = "table5", "python benchmarks/growth.py --out paper/results/table5/growth.json"
NOTES = (
    "Exponents of the CPU time in the number of samples, the units n of a hidden layer and the number N of hidden "
    "layers; the paper counts operations in N, n and the input's size m. In brackets: measured minus counted. "
    "Measured on random ReLU networks on 784 inputs, one thread: a line through the logarithms of the last three "
    "sizes. Why some are smaller or larger than counted was not looked into. PGD, CROWN, IBP "
    "and C-IBP: an evaluation; the others: a training step with its gradients.",
)


class Exponents(BaseModel):
    """The measured exponents of one method."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    samples: float
    width: float
    depth: float


class Growth(BaseModel):
    """A record of `benchmarks/growth.py`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    exponents: dict[str, Exponents]
    sizes: dict[str, list[int]] = {}
    remark: str = ""


def growth_table(store: Store) -> Table:
    """Return the table: for each method of the paper the counted exponents, and the measured ones of each record."""
    records = store.read(FOLDER, Growth).values()
    lines: list[TableLine] = []
    absent = False
    for row in printed_figures.lines("table5"):
        counted = {"samples": "1", "width": row["width"], "depth": row["depth"]}
        cells = (TableCell(f"O({row['complexity']})"), *map(TableCell, counted.values()))
        lines.append(TableLine("", row["method"], "paper, counted", cells))
        measured = [r.exponents[row["measured"]] for r in records if row["measured"] in r.exponents]
        absent = absent or not measured
        for one in measured:
            numbers = (compared(rounded(getattr(one, axis), 2), text) for axis, text in counted.items())
            lines.append(TableLine("", row["method"], "ours, measured", (TableCell(), *numbers)))
    columns = (TableColumn("operations", compared=False), *map(TableColumn, ("samples", "width n", "depth N")))
    missing = (Missing("growth", COMMAND),) if absent else ()
    notes = (*NOTES, *(_sizes(record) for record in records if record.sizes))
    return Table("table5", "growth of the cost", columns, tuple(lines), notes, missing)


def _sizes(record: Growth) -> str:
    """Return a note on the measured sizes, since exponents of small networks differ from those of large ones."""
    listed = (f"{axis} {', '.join(map(str, sizes))}" for axis, sizes in record.sizes.items())
    return f"Sizes that were measured: {'; '.join(listed)}.{f' {record.remark}' if record.remark else ''}"
