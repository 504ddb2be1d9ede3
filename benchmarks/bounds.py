"""Measure time and memory of bounds and of training steps, as a table of ratios within one run.

Usage: python benchmarks/bounds.py [--only TEXT] [--json FILE] [--markdown FILE]

One thread, CPU time, the best of a few repetitions, `rigorous=False`. For each network and method: milliseconds per
image, peak memory above what was there before, and two figures that do not depend on the machine: the ratio to a
plain forward pass, and to a matrix product (sgemm) of as many floating-point operations as the bounds need.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from flops import bound_flops, forward_flops
from nets import Subject, subject

import polycert as pc

METHODS = [
    ("ibp", "parallel"),
    ("crown-ibp", "parallel"),
    ("crown-ibp", "adaptive"),
    ("crown", "parallel"),
    ("crown", "adaptive"),
    ("forward", "parallel"),
]
SLOW = {("CNN7", "crown"): 1, ("CNN7", "forward"): 1}  # largest batch, as one image takes a minute
BATCHES = {"FC1": (1, 10, 20, 100), "MNIST CNN": (1, 10, 20, 100), "CIFAR CNN": (1, 10, 100)}
GIGA = 1e9
SHORT, LONG = 0.25, 20  # seconds


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    network: str
    work: str
    batch: int
    ms_per_image: float
    memory_mb: float | None
    to_forward: float
    gflop: float
    to_sgemm: float


def seconds(work: Callable[[], object], repeat: int = 4) -> float:
    """Return the CPU time of the fastest of `repeat` repetitions, after one to warm up.

    Short work is repeated more often, and long work runs only once.
    """
    begin = time.process_time()
    work()
    first = time.process_time() - begin
    if first > LONG:
        return first
    times = []
    while len(times) < repeat or sum(times) < SHORT:
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def sgemm_rate() -> float:
    """Return the floating-point operations a second of a large product, measured now."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 2 * 1024**3 / seconds(lambda: a @ b, 8)


def peak_memory(work: Callable[[], object]) -> float | None:
    """Return the peak of the work in megabytes above the memory in use before; None where the system does not say."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return None
    ctypes.CDLL(None).malloc_trim(0)  # what earlier work left behind would hide what this one needs
    reset.write_text("5")
    before = _status(status, "VmRSS")
    work()
    return (_status(status, "VmHWM") - before) / 1024


def _status(file: Path, key: str) -> int:
    """Return a figure of the process's status, in kilobytes."""
    return int(next(line for line in file.read_text().splitlines() if line.startswith(key)).split()[1])


def measured(network: str, name: str, batch: int, plain: float, need: int, work: Callable[[], object]) -> Row:
    """Return a line: a forward pass takes `plain` seconds a batch, and the work needs `need` operations an image."""
    spent, rate = seconds(work), sgemm_rate()
    memory, ideal = peak_memory(work), batch * need / rate
    return Row(network, name, batch, 1e3 * spent / batch, memory, spent / plain, need / GIGA, spent / ideal)


def certify_rows(given: Subject) -> Iterator[Row]:
    """Yield a line for every method and batch size; `crown` with distances is PEC."""
    graph = given.net.bind()
    for batch in BATCHES.get(given.name, (1, 4)):
        x, y = given.x[:batch], given.y[:batch]
        with torch.no_grad():
            plain = seconds(lambda: graph.forward(x))  # noqa: B023
        for method, relaxation in METHODS:
            if batch > SLOW.get((given.name, method), batch):
                continue

            def work(method: str = method, relaxation: str = relaxation) -> object:
                return pc.certify(
                    given.net,
                    x,  # noqa: B023
                    y,  # noqa: B023
                    given.ball,
                    method=method,
                    relaxation=relaxation,
                    rigorous=False,
                    batch_size=batch,  # noqa: B023
                )

            yield measured(given.name, f"{method}, {relaxation}", batch, plain, bound_flops(graph, method), work)


def training_rows(given: Subject, batch: int) -> Iterator[Row]:
    """Yield a line for a step of each loss; with gradients it needs three times the operations of the bounds."""
    x, y, graph = given.x[:batch], given.y[:batch], given.net.bind()
    losses = {
        "C-PER": (pc.losses.PER(method="crown"), "crown"),
        "I-PER": (pc.losses.PER(method="forward"), "forward"),
        "KW": (pc.losses.KW(), "crown"),
        "CROWN-IBP": (pc.losses.CrownIBP(beta=1.0), "crown-ibp"),
    }
    with torch.no_grad():
        plain = seconds(lambda: graph.forward(x))
    for name, (loss, method) in losses.items():

        def work(loss: torch.nn.Module = loss) -> None:
            loss(given.net, x, y, given.ball).backward()

        need = 3 * (bound_flops(graph, method) + forward_flops(graph))
        yield measured(given.name, f"step {name}", batch, plain, need, work)


def rows(only: str) -> Iterator[Row]:
    """Yield the lines of the networks whose name contains `only`."""
    for name in ("FC1", "MNIST CNN", "CIFAR CNN", "ResNet", "CNN7"):
        if only.lower() not in name.lower():
            continue
        given = subject(name, 100)
        yield from certify_rows(given)
        steps = {"FC1": 100, "MNIST CNN": 20, "CIFAR CNN": 10}
        if name in steps:
            yield from training_rows(given, steps[name])


def markdown(found: list[Row]) -> str:
    """Return the table as Markdown."""
    names = ("network", "work", "batch", "ms/image", "peak MB", "/ forward", "GFLOP/image", "/ sgemm")
    cells = [
        (
            r.network,
            r.work,
            str(r.batch),
            f"{r.ms_per_image:.2f}",
            "-" if r.memory_mb is None else f"{r.memory_mb:.0f}",
            f"{r.to_forward:.1f}",
            f"{r.gflop:.4f}",
            f"{r.to_sgemm:.2f}",
        )
        for r in found
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in [names, ("---",) * len(names), *cells])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="networks whose name holds this text")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, CPU time, sgemm {sgemm_rate() / GIGA:.0f} GFLOP/s")
    found = []
    for row in rows(options.only):
        found.append(row)
        print(markdown([row]).splitlines()[-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in found], indent=1))
    if options.markdown:
        options.markdown.write_text(markdown(found) + "\n")


if __name__ == "__main__":
    main()
