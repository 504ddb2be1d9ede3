"""Measure two of the paper's claims on one model: the iterations of Algorithm 1, and what PEC costs over plain CROWN.

Usage: python benchmarks/claims.py MODEL --dataset mnist --eps 0.1 [--norm 2] [--samples 500] --out FILE.json

The record has `iterations` (how many distances took so many rounds) and `PEC_overhead` (per cent of CPU time, one
thread, the best of several repetitions); `polycert report` reads both. Algorithm 1 is written here as the paper has it,
since polycert's own distances are found in another way; the two must agree.
"""

import argparse
import json
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path

import torch
from certify import margins_only, seconds
from torch import Tensor

import polycert as pc
from polycert.bounding.chunking import batch_size_for
from polycert.records.files import check_output, whole_file

AT_MOST = 100


def main() -> None:
    """Measure, print and write a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--eps", type=Fraction, required=True)
    parser.add_argument("--norm", choices=("inf", "2"), default="inf")
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    target = check_output(given.out)
    torch.set_num_threads(1)
    test, net = pc.data.load(given.dataset), pc.load(given.model)
    x, y = test.x[: given.samples], test.y[: given.samples]
    ball = pc.Ball(norm=float(given.norm), eps=float(given.eps), low=0.0, high=1.0)
    counts = iterations(net, x, y, ball)
    command = (
        f"python benchmarks/claims.py {given.model} --dataset {given.dataset} --norm {given.norm} --eps {given.eps}"
    )
    record = {
        "model": given.model.parent.name if given.model.stem == "model" else given.model.stem,
        "dataset": given.dataset,
        "norm": given.norm,
        "eps": float(given.eps),
        "n": len(x),
        "PEC_overhead": round(overhead(net, x, y, ball, given.repeat), 2),
        "iterations": {str(rounds): counts[rounds] for rounds in sorted(counts)},
        "command": f"{command} --samples {given.samples} --repeat {given.repeat} --out {given.out}",
        "version": pc.__version__,
    }
    with whole_file(target) as name:
        name.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))


def iterations(net: pc.Network, x: Tensor, y: Tensor, ball: pc.Ball) -> Counter[int]:
    """Return how many distances of samples inside their envelope take each number of rounds of Algorithm 1."""
    counts: Counter[int] = Counter()
    for inputs, labels in zip(x.split(50), y.split(50), strict=True):
        with torch.no_grad():
            env = pc.envelope(net, inputs, labels, ball)
            slope, at = env.slope.flatten(2).double(), inputs.flatten(1).double().unsqueeze(1)
            gap = (slope * at).sum(2) + env.offset.double()
            room = torch.where(slope > 0, at, 1 - at)
            found, rounds = greedy(slope.abs(), room, gap, ball.norm)
            inside = (gap > 0) & found.isfinite()
            torch.testing.assert_close(found[inside], env.distances().double()[inside], rtol=1e-3, atol=1e-5)
        counts.update(rounds[inside].tolist())
    return counts


def greedy(weight: Tensor, room: Tensor, gap: Tensor, norm: float) -> tuple[Tensor, Tensor]:
    """Run Algorithm 1 with |a|, the room of each coordinate and b; returns the norm and the number of rounds.

    Coordinates that leave the box are fixed at its border, and the optimum over the others (Eq. (5)) is computed again.
    The norm is infinite if the box does not reach the border.
    """
    fixed = torch.zeros_like(weight, dtype=torch.bool)
    rounds = torch.zeros_like(gap, dtype=torch.long)
    direction = torch.ones_like(weight) if math.isinf(norm) else weight
    for _ in range(AT_MOST):
        left = gap - (weight * room * fixed).sum(-1)
        length = left / (weight * direction * ~fixed).sum(-1)
        move = torch.where(fixed, room, length.unsqueeze(-1) * direction)
        violated = (move > room * (1 + 1e-12)) & ~fixed
        if not bool(violated.any()):
            break
        rounds += violated.any(-1)
        fixed |= violated
    return torch.where(length.isfinite(), torch.linalg.vector_norm(move, norm, dim=-1), math.inf), rounds


def overhead(net: pc.Network, x: Tensor, y: Tensor, ball: pc.Ball, repeat: int) -> float:
    """Return the per cent of CPU time that distances add to predictions and bounds of the margins."""
    batch = batch_size_for(net.bind())
    with_distances = seconds(lambda: pc.certify(net, x, y, ball, rigorous=False, batch_size=batch, threads=1), repeat)
    return 100 * (with_distances / seconds(lambda: margins_only(net, x, y, ball, batch), repeat) - 1)


if __name__ == "__main__":
    main()
