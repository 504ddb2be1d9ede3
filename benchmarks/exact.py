"""Measure the CPU time of exact verdicts on the samples that bounds and an attack leave open.

`python benchmarks/exact.py [--first N] [--limit N] [MODEL.npz …]`, by default FC1 and CNN C-PER+at of the released
checkpoints. One thread. A sample counts if neither `crown` with `best` proves it nor the attack of `verify` breaks it;
its time is that of a whole `decide`, bounds of hidden units included.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import torch

import polycert as pc
from polycert.attacks.pgd import attack_region
from polycert.exact import Specification, decide
from polycert.verification.question import VerificationSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from conftest import find_shared

MODELS = ("relu_linf__mnist_fc1/mnist_fc1_l1_c-perat.npz", "relu_linf__mnist_cnn/mnist_cnn_l1_c-perat.npz")
BALL = pc.Ball(float("inf"), 0.1, 0.0, 1.0)


def undecided(net: pc.Network, x: torch.Tensor, y: torch.Tensor) -> list[int]:
    """Return the positions of samples that neither bounds nor the attack decide."""
    proved = pc.certify(net, x, y, BALL, relaxation="best").certified
    asked, region = VerificationSettings(), BALL.at(x)
    options = {"steps": asked.attack_steps, "restarts": asked.attack_restarts, "seed": asked.seed}
    found = attack_region(net.bind(), region, y, torch.arange(len(x)), until_success=True, **options)
    return (~proved & ~found.success).nonzero().flatten().tolist()


def measure(path: Path, first: int, limit: int, timeout: float) -> None:
    """Measure one model, and print a line."""
    net, data = pc.load(path), pc.data.load("mnist", "test")
    x, y = data.x[first : first + limit], data.y[first : first + limit]
    seconds, statuses = [], Counter()
    for k in undecided(net, x, y):
        region, spec = BALL.at(x[k : k + 1].double()), Specification.margins(int(y[k]), 10)
        clock = time.process_time()
        found = decide(net, region, spec, timeout=timeout)
        seconds.append(time.process_time() - clock)
        statuses[f"{found.status} by {found.stage}"] += 1
    late = sorted(seconds)
    print(
        f"{path.stem}: {len(late)} undecided of {len(x)}, CPU seconds median {statistics.median(late):.3f}, "
        f"mean {statistics.mean(late):.3f}, "
        f"90 % below {late[int(0.9 * len(late))]:.3f}, most {late[-1]:.2f}; {dict(statuses)}"
    )


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--first", type=int, default=0, help="leave out the images before this one")
    parser.add_argument("--limit", type=int, default=2000)
    parser.add_argument("--timeout", type=float, default=20.0)
    given = parser.parse_args()
    shared = find_shared()
    models = given.models or ([shared / "zoo" / name for name in MODELS] if shared else [])
    torch.set_num_threads(1)
    for path in models:
        measure(path, given.first, given.limit, given.timeout)


if __name__ == "__main__":
    main()
