"""Measure a training step and what the trainer adds to it: one thread, CPU time, medians of alternating repetitions.

Usage: python benchmarks/training.py [--steps 10] [--repeat 5] [--cnn]

The column `bare` is the loss, its gradient and a step of Adam on one batch of 100. The column `trainer` is the same
step by `polycert train`, with its draws, schedules, clipping and averaging. The column `epoch` is a step's share of
an epoch's order, validation and checkpoint.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path

import torch

import polycert as pc
from polycert.models.architectures import ARCHITECTURES, build
from polycert.training import Run, make_recipe, prepare

SHAPE = (1, 28, 28)
METHODS = {
    "plain": {},
    "at": {},
    "kw": {"subsample": 40},
    "ibp": {"kappa": 0.5},
    "c-ibp": {"kappa": 0.5, "beta": 0.5},
    "mmr": {"weight": 0.5, "gamma_boundary": 0.2, "gamma_decision": 0.2, "boundary_share": 0.1, "subsample": 40},
    "c-per": {"alpha": 0.15, "gamma": 0.5, "subsample": 40},
    "c-per+at": {"alpha": 0.15, "gamma": 0.5, "subsample": 40},
    "i-per": {"alpha": 0.15, "gamma": 0.5, "subsample": 40},
}

FIXED = {
    "dataset": "mnist",
    "target": 0.1,
    "eps": 0.1,
    "epochs": 10,
    "certified": 500,
}


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of the work."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def run_of(method: str, architecture: str, folder: Path) -> Run:
    """Return a run on MNIST (`polycert data mnist`)."""
    values = FIXED | {"architecture": architecture, "method": method} | METHODS[method]
    if architecture == "cnn":
        values |= {"certified": 100, **({"subsample": 20} if "subsample" in values else {})}
    return prepare(make_recipe(values), folder)


def measure(method: str, architecture: str, steps: int, repeat: int) -> tuple[float, float, float]:
    """Return the seconds of a bare step, of the trainer's step, and of an epoch's fixed part for each step."""
    with tempfile.TemporaryDirectory() as scratch:
        run = run_of(method, architecture, Path(scratch))
        batches = list(islice(run.samples.epoch(run.recipe, 0), steps))
        stream = (batch for epoch in count(1) for batch in run.samples.epoch(run.recipe, epoch))
        next(stream)
        torch.manual_seed(0)
        module = build(ARCHITECTURES[architecture](SHAPE))
        net, optimiser, loss = (
            pc.capture(module, SHAPE),
            torch.optim.Adam(module.parameters(), fused=True),
            run.recipe.loss(0.0),
        )

        def bare() -> None:
            for k in range(steps):
                optimiser.zero_grad()
                x, y, _ = batches[k]
                loss(net, x, y, pc.Ball(eps=0.1, low=0.0, high=1.0)).backward()
                optimiser.step()

        def trainer() -> None:
            for batch in islice(stream, steps):
                run.step(batch, 0.5)

        bare(), trainer()
        pairs = [(seconds(bare), seconds(trainer)) for _ in range(repeat)]
        fixed = seconds(lambda: next(run.samples.epoch(run.recipe, 0)))
        fixed += seconds(lambda: run.keep(0, {"epoch": 1, **run.validate()}))
    one, two = (statistics.median(column) / steps for column in zip(*pairs, strict=True))
    return one, two, fixed / run.samples.steps(run.recipe)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--cnn", action="store_true", help="the CNN instead of FC1")
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    architecture = "cnn" if options.cnn else "fc1"
    print(f"torch {torch.__version__}, one thread, {architecture}, batch 100, medians of {options.repeat}, CPU time")
    print(f"{'':<10}{'bare ms':>10}{'trainer ms':>12}{'epoch ms':>10}{'added':>9}")
    for method in options.methods:
        bare, trainer, fixed = measure(method, architecture, options.steps, options.repeat)
        added = (trainer + fixed) / bare - 1
        print(f"{method:<10}{1e3 * bare:>10.2f}{1e3 * trainer:>12.2f}{1e3 * fixed:>10.2f}{100 * added:>8.1f}%")


if __name__ == "__main__":
    main()
