"""Measure certification as ratios within one run: one thread, CPU time, the best of several repetitions.

Usage: python benchmarks/certify.py [--samples 400] [--repeat 5]

Networks: the released checkpoints where they are found (`$POLYCERT_SHARED`, or `shared` beside the project), else
random networks of the same shapes. It prints:

- FC1: certification against its own final dense product (the coefficients of all margins, at the same batch size);
- PEC against plain CROWN (margins without distances), on FC1 and the CNN;
- rigorous against fast, on FC1 and the CNN.
"""

import argparse
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

import polycert as pc
from polycert.bounding.chunking import batch_size_for
from polycert.certification.certify import Certifier
from polycert.models.architectures import build, cnn, fc1

SHAPE = (1, 28, 28)
CHECKPOINTS = {
    "FC1": ("relu_linf__mnist_fc1/mnist_fc1_l1_c-per.npz", fc1),
    "CNN": ("relu_linf__mnist_cnn/mnist_cnn_l1_c-per.npz", cnn),
}


def network(name: str) -> pc.Network:
    """Return a released checkpoint, or a random network of its shape."""
    file, architecture = CHECKPOINTS[name]
    folder = Path(os.environ.get("POLYCERT_SHARED", Path(__file__).parents[2] / "shared"))
    if (folder / "zoo" / file).is_file():
        return pc.load(folder / "zoo" / file)
    torch.manual_seed(0)
    return pc.capture(build(architecture(SHAPE)), SHAPE)


def seconds(work: Callable[[], object], repeat: int) -> float:
    """Return the CPU time of the fastest repetition, after one to warm up."""
    work()
    best = math.inf
    for _ in range(repeat):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best


def margins_only(net: pc.Network, x: torch.Tensor, y: torch.Tensor, ball: pc.Ball, batch: int) -> torch.Tensor:
    """Compute plain CROWN without distances; returns the lower bound of each sample's worst margin, `[n]`."""
    certifier = Certifier(net, "crown", "parallel", rigorous=False)
    region = ball.at(x)
    found = []
    with torch.no_grad():
        for begin in range(0, len(x), batch):
            part = slice(begin, begin + batch)
            certifier.graph.forward(x[part]).argmax(1)
            found.append(certifier.envelope(certifier.graph, region[part], y[part]).margins().amin(1))
    return torch.cat(found)


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sample = pc.data.load("mnist-sample", "test")
    count = min(options.samples, len(sample))
    x, y, ball = sample.x[:count], sample.y[:count], pc.Ball(eps=0.1, low=0.0, high=1.0)
    print(f"torch {torch.__version__}, one thread, {count} images, best of {options.repeat}, CPU time")
    print(f"{'':<6}{'ms/image':>10}{'PEC / CROWN':>14}{'rigorous / fast':>17}{'fast / final product':>22}")
    for name in CHECKPOINTS:
        net = network(name)
        batch = batch_size_for(net.bind())
        fast = seconds(lambda: pc.certify(net, x, y, ball, rigorous=False), options.repeat)  # noqa: B023
        crown = seconds(lambda: margins_only(net, x, y, ball, batch), options.repeat)  # noqa: B023
        rigorous = seconds(lambda: pc.certify(net, x, y, ball), options.repeat)  # noqa: B023
        ratio = ""
        if name == "FC1":
            rows, weight = torch.randn(batch * 9, 1024), torch.randn(1024, 784)
            product = seconds(lambda: [rows @ weight for _ in range(count // batch)], options.repeat)  # noqa: B023
            ratio = f"{fast / product:.2f}"
        print(f"{name:<6}{1e3 * fast / count:>10.2f}{fast / crown:>14.3f}{rigorous / fast:>17.2f}{ratio:>22}")


if __name__ == "__main__":
    main()
