"""Compare two checkouts in one run: time as a ratio, tightness as figures.

Usage: python benchmarks/compare.py OLD NEW [--rounds 3] [--only TEXT]

OLD and NEW are folders of checkouts. Each round measures both, one process after the other, one thread, CPU time; the
table has the least of all rounds. Only the public interface is used, so that old checkouts can be measured too. What a
checkout cannot do shows as a dash. Networks are the released checkpoints where they are found (`$POLYCERT_SHARED`, or
`shared` beside the project), and random ones.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

SHARED = Path(os.environ.get("POLYCERT_SHARED", Path(__file__).resolve().parents[2] / "shared"))
CHECKPOINTS = {
    "FC1": ("relu_linf__mnist_fc1/mnist_fc1_l1_c-per.npz", "mnist", math.inf, 0.1, 200),
    "FC1 l_2": ("relu_l2__mnist_fc1/mnist_fc1_l2_c-per.npz", "mnist", 2.0, 0.3, 100),
    "MNIST CNN": ("relu_linf__mnist_cnn/mnist_cnn_l1_c-per.npz", "mnist", math.inf, 0.1, 60),
    "MNIST CNN MMR+at": ("relu_linf__mnist_cnn/mnist_cnn_l1_mmr+at.npz", "mnist", math.inf, 0.1, 60),
    "CIFAR CNN": ("relu_linf__cifar10_cnn/cifar_cnn_l1_c-perat.npz", "cifar10", math.inf, 2 / 255, 40),
    "tanh FC1": ("tanh_linf__mnist_fc1/tanh_c-per.npz", "mnist", math.inf, 0.1, 60),
}


class Case(NamedTuple):
    """A measurement: what is run, and the tightness that its result has."""

    name: str
    run: Callable[[], Any]
    tightness: Callable[[Any], float]


def main() -> None:
    """Measure two checkouts in turn and print the table; or, as a child, measure what can be imported."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", nargs="?")
    parser.add_argument("new", nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="measure the cases whose name contains this text")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.only)
        return
    if options.old is None or options.new is None:
        parser.error("give two checkouts")
    found: list[dict[str, tuple[float, float]]] = [{}, {}]
    for _ in range(options.rounds):
        for best, checkout in zip(found, (options.old, options.new), strict=True):
            for name, (seconds, tightness) in child(Path(checkout), options.only).items():
                best[name] = (min(seconds, best.get(name, (math.inf, 0.0))[0]), tightness)
    print("| work | old ms | new ms | new / old | tightness old | new |\n|---|---|---|---|---|---|")
    for name in dict.fromkeys([*found[0], *found[1]]):
        print(row(name, *(part.get(name) for part in found)))


def row(name: str, old: tuple[float, float] | None, new: tuple[float, float] | None) -> str:
    """Return a line of the table."""
    ratio = f"{new[0] / old[0]:.2f}" if old and new else "–"
    times = [f"{1000 * part[0]:.1f}" if part else "–" for part in (old, new)]
    tight = [f"{part[1]:.5g}" if part else "–" for part in (old, new)]
    return f"| {name} | {times[0]} | {times[1]} | {ratio} | {tight[0]} | {tight[1]} |"


def child(checkout: Path, only: str) -> dict[str, tuple[float, float]]:
    """Measure one checkout in a process of its own."""
    environment = os.environ | {
        "PYTHONPATH": str(checkout.resolve() / "src"),
        "POLYCERT_SHARED": str(SHARED),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", "--only", only]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return {name: (seconds, tightness) for name, seconds, tightness in map(json.loads, done.stdout.splitlines())}


def measure(only: str) -> None:
    """Print one line for each case: its name, CPU seconds and tightness."""
    import torch

    torch.set_num_threads(1)
    for case in cases():
        if only not in case.name:
            continue
        try:
            result = case.run()
        except Exception as error:
            print(f"{case.name}: {error}", file=sys.stderr)
            continue
        seconds = math.inf
        for _ in range(2):
            begin = time.process_time()
            result = case.run()
            seconds = min(seconds, time.process_time() - begin)
        print(json.dumps([case.name, seconds, case.tightness(result)]), flush=True)


def cases() -> Iterator[Case]:
    """Yield all cases; networks that are not at hand are left out."""
    import polycert as pc

    for name, (file, data, norm, eps, count) in CHECKPOINTS.items():
        if not (SHARED / "zoo" / file).is_file():
            continue
        samples = pc.data.load(data, "test")
        net, x, y = pc.load(SHARED / "zoo" / file), samples.x[:count], samples.y[:count]
        yield from of_network(name, net, x, y, pc.Ball(norm, eps, 0.0, 1.0))
    yield from of_sigmoid()
    yield from of_random()


def of_network(name: str, net: Any, x: Any, y: Any, ball: Any) -> Iterator[Case]:
    """Yield what is measured of a released network."""
    import polycert as pc

    def certify(**options: Any) -> Callable[[], Any]:
        return lambda: pc.certify(net, x, y, ball, **options)

    yield Case(f"{name}, crown parallel, rigorous", certify(), mean_radius)
    yield Case(f"{name}, crown parallel", certify(rigorous=False), mean_margin)
    yield Case(f"{name}, crown adaptive", certify(rigorous=False, relaxation="adaptive"), mean_margin)
    for method, relaxation in (("ibp", "parallel"), ("crown-ibp", "adaptive"), ("forward", "parallel")):
        yield Case(f"{name}, {method}", certify(rigorous=False, method=method, relaxation=relaxation), mean_margin)
    few = min(len(x), 20)
    yield Case(
        f"{name}, alpha-crown, {few} samples",
        lambda: pc.certify(net, x[:few], y[:few], ball, method="alpha-crown", relaxation="adaptive", rigorous=False),
        mean_margin,
    )
    upper = 4 * float(ball.eps)
    yield Case(
        f"{name}, largest radius",
        lambda: pc.largest_radius(net, x, y, norm=ball.norm, upper=upper, low=0.0, high=1.0),
        mean_radius,
    )
    yield Case(f"{name}, verify", lambda: pc.verify(net, x, y, ball, timeout=5), decided)
    loss = pc.losses.PER(method="crown", alpha=0.15, gamma=0.1, terms=4)
    yield Case(f"{name}, step of PER", lambda: loss(net, x, y, ball).backward(), lambda _: math.nan)


def of_sigmoid() -> Iterator[Case]:
    """Yield the bounds of a public sigmoid network with six layers of 200 units."""
    import polycert as pc

    file = SHARED / "vnn" / "eran_2021" / "onnx" / "ffnnSIGMOID__Point_6x200.onnx"
    if not file.is_file():
        return
    digits = pc.data.load("mnist", "test")
    net, ball = pc.load(file), pc.Ball(math.inf, 0.012, 0.0, 1.0)
    x, y = digits.x[:6].reshape(6, *net.input_shape), digits.y[:6]
    for relaxation in ("parallel", "adaptive"):

        def run(relaxation: str = relaxation) -> Any:
            return pc.certify(net, x, y, ball, relaxation=relaxation, rigorous=False)

        yield Case(f"sigmoid 6×200, crown {relaxation}", run, mean_margin)


def of_random() -> Iterator[Case]:
    """Yield networks of other kinds with random weights: pooling, attention, recurrent cells, many layers."""
    import torch
    from torch import nn

    import polycert as pc

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.last = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.cell(x)[0][:, -1])

    def pooled() -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 8), (8, 16), (16, 16)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 16, 10))

    def deep(width: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten(), nn.Linear(784, width), nn.ReLU()]
        for _ in range(6):
            layers += [nn.Linear(width, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(width, 10))

    def encoder() -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        return nn.Sequential(layer, nn.Flatten(), nn.Linear(32, 3))

    kinds: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
        "max pooling": (pooled, (3, 32, 32), 1e-3),
        "8 layers of 256": (lambda: deep(256), (1, 28, 28), 5e-3),
        "LSTM": (Last, (6, 4), 0.02),
        "transformer encoder": (encoder, (4, 8), 1e-3),
    }
    for name, (build, shape, eps) in kinds.items():
        torch.manual_seed(0)
        net, x = captured(build().eval(), shape), torch.rand(4, *shape)
        if net is None:
            continue
        ball = pc.Ball(math.inf, eps)
        for method, relaxation in (
            ("ibp", "parallel"),
            ("crown-ibp", "adaptive"),
            ("crown", "parallel"),
            ("crown", "adaptive"),
        ):

            def run(
                net: Any = net, x: Any = x, ball: Any = ball, method: str = method, relaxation: str = relaxation
            ) -> Any:
                with torch.no_grad():
                    return pc.bounds(net, x, ball, method=method, relaxation=relaxation)

            yield Case(f"{name}, {method} {relaxation}", run, mean_width)


def captured(module: Any, shape: tuple[int, ...]) -> Any:
    """Capture a module; None if the checkout has no rule for one of its ops."""
    import polycert as pc

    try:
        return pc.capture(module, shape)
    except pc.PolycertError as error:
        print(error, file=sys.stderr)
        return None


def mean_margin(certs: Any) -> float:
    """Return the mean of the worst margins."""
    return float(certs.margin.mean())


def mean_radius(found: Any) -> float:
    """Return the mean radius."""
    return float(found.radius.mean())


def mean_width(bounds: Any) -> float:
    """Return the mean width of the bounds."""
    return float((bounds.upper - bounds.lower).mean())


def decided(verdicts: Any) -> float:
    """Return how many samples are decided."""
    return float(sum(status != "unknown" for status in verdicts.status))


if __name__ == "__main__":
    main()
