"""The rows of the paper's tables, measured on the released checkpoints: what certification must reproduce.

As a script: measure every checkpoint over its whole test set, one JSON line each (what is there is not redone), and
write the table: `python tests/helpers/golden.py --json golden.jsonl --table docs/golden.md`.
"""

import argparse
import dataclasses
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import polycert as pc

# Figures that a checkpoint gives where the paper prints another one: measured by the checkpoints' collectors
# (`CTE`, `CRE_Lin`, `ACB_Lin`, `ACB_IBP` of the l_inf models unless said otherwise).
MEASURED: dict[str, dict[str, float]] = {
    "relu_linf__mnist_fc1/mnist_fc1_l1_i-per": {"CTE": 1.63},
    "relu_linf__mnist_fc1/mnist_fc1_l1_mmr+at": {"CRE_Lin": 17.68, "ACB_Lin": 0.0823},
    "relu_linf__mnist_fc1/mnist_fc1_l1_c-ibp": {"ACB_IBP": 0.0856},
    "relu_linf__mnist_cnn/mnist_cnn_l1_kw": {"CTE": 1.16, "CRE_Lin": 4.46, "ACB_Lin": 0.0955, "ACB_PEC": 0.0970},
    "relu_linf__mnist_cnn/mnist_cnn_l1_c-per": {"CTE": 1.41},
    "relu_l2__mnist_cnn/mnist_cnn_l2_kw": {"CTE": 1.04},
    "relu_linf__cifar10_cnn/cifar_cnn_l1_at": {"CTE": 27.06},
    "relu_linf__cifar10_cnn/cifar_cnn_l1_i-perat": {"CTE": 26.56},
}
POINTS, RADII = 0.03, 0.0001
FIGURES = ("CTE", "CRE_Lin", "CRE_IBP", "ACB_Lin", "ACB_IBP", "ACB_PEC")


@dataclass(frozen=True)
class Row:
    """One model's figures: ours, the expected ones, and what rigour cost."""

    name: str
    activation: str
    count: int
    ours: dict[str, float]
    expected: dict[str, float]
    compared: int  # samples certified both ways
    lost: int  # certified by the fast run, not by the rigorous one
    doubles: int  # samples that the rigorous run decided in float64

    def differences(self) -> dict[str, float]:
        """Figures beyond the tolerance, ours minus the expected one."""
        beyond = {}
        for key, value in self.expected.items():
            difference = self.ours[key] - value
            # Printed figures carry half a digit of rounding on top of the tolerance.
            if abs(difference) > (POINTS + 0.005 if key.startswith("C") else RADII + 0.00005) + 1e-9:
                beyond[key] = difference
        return beyond


def models(zoo: Path) -> dict[str, dict[str, Any]]:
    """The checkpoints that an index describes."""
    return dict(json.loads((zoo / "index.json").read_text(encoding="utf-8"))["models"])


def measure(zoo: Path, name: str, *, limit: int | None = None, rigour: int | None = None) -> Row:
    """Certify one checkpoint as the paper does: `crown` with one slope, the better of ball and box in hidden layers.

    `rigour`: on how many samples the rigorous run is compared with the fast one; None for all.
    """
    entry = models(zoo)[name]
    net, test = pc.load(zoo / entry["file"]), pc.data.load(entry["dataset"])
    x, y = test.x[:limit], test.y[:limit]
    norm = math.inf if entry["norm"] == "linf" else 2.0
    ball = pc.Ball(norm, entry["eps"], 0.0, 1.0, minimum="either")
    fast = pc.certify(net, x, y, ball, rigorous=False)
    interval = pc.certify(net, x, y, ball, method="ibp", rigorous=False)
    compared = len(x) if rigour is None else min(rigour, len(x))
    lost = doubles = 0
    if compared:
        proved = pc.certify(net, x[:compared], y[:compared], ball, rigorous=True)
        lost = int((fast.certified[:compared] & ~proved.certified).sum())
        doubles = sum(kind == "float64" for kind in proved.dtype)
    linear, boxes = fast.summary(), interval.summary()
    ours = {
        "CTE": linear["CTE"],
        "CRE_Lin": linear["CRE"],
        "CRE_IBP": boxes["CRE"],
        "ACB_Lin": entry["eps"] * (1 - linear["CRE"] / 100),
        "ACB_IBP": entry["eps"] * (1 - boxes["CRE"] / 100),
        "ACB_PEC": linear["ACB"],
    }
    paper = {key.replace("CRO", "Lin"): value for key, value in entry["paper"].items()}
    expected = {key: paper[key] for key in FIGURES} | MEASURED.get(name, {})
    return Row(name, entry["activation"], len(x), ours, expected, compared, lost, doubles)


def main() -> None:
    """Measure what is missing, then write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shared", default=Path(__file__).parents[3] / "shared", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", default="golden.jsonl", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--rigour", type=int, help="samples of the rigorous run, all if not given")
    options = parser.parse_args()
    torch.set_num_threads(1)
    zoo = options.shared / "zoo"
    rows = _read(options.json)
    for name in models(zoo):
        if options.only not in name or name in rows:
            continue
        begin = time.perf_counter()
        row = measure(zoo, name, rigour=options.rigour)
        record = {**dataclasses.asdict(row), "seconds": round(time.perf_counter() - begin, 1)}
        with options.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(name, record["seconds"], "s", row.differences() or "equal", f"lost {row.lost}", flush=True)
    if options.table:
        options.table.write_text(_table(_read(options.json)), encoding="utf-8")


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.is_file():
        return {}
    return {record["name"]: record for record in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


HEADING = """# Golden rows

Every released checkpoint of the paper over its whole test set (10,000 images): `crown` with the `parallel` relaxation,
`rigorous=False`, the paper's convention for l_2 (`minimum="either"`). Each cell is ours / expected, where expected is
the paper's figure, or (*) the figure that the checkpoint is known to give where the paper prints another.
**Bold**: beyond 0.03 points or 0.0001.

`lost`: samples certified by the fast run and not by the rigorous one, of the first so many. `float64`: samples that the
rigorous run decided in float64. Seconds: the fast, the rigorous and the IBP run together, on one thread.
Made by `python tests/helpers/golden.py --table docs/golden.md` (with `--rigour 2000` for the networks on CIFAR-10). The
same rows are tests, half an hour of one core: `pytest -m slow tests/certification/test_golden.py`.
"""


def _table(records: dict[str, dict[str, Any]]) -> str:
    lines = [
        HEADING,
        "| model | " + " | ".join(f.replace("_", " ") for f in FIGURES) + " | lost | float64 | seconds |",
        "|---" * (len(FIGURES) + 4) + "|",
    ]
    for name in sorted(records):
        record = dict(records[name])
        seconds = record.pop("seconds")
        row = Row(**record)
        beyond = row.differences()
        cells = []
        for key in FIGURES:
            digits = 2 if key.startswith("C") else 4
            star = "*" if key in MEASURED.get(name, {}) else ""
            text = f"{row.ours[key]:.{digits}f} / {row.expected[key]:.{digits}f}{star}"
            cells.append(f"**{text}**" if key in beyond else text)
        lines.append(
            f"| {name.split('/')[1]} | " + " | ".join(cells) + f" | {row.lost} | {row.doubles} | {seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
