"""Make `src/polycert/data/assets/mnist_sample.npz`: the first 200 train and 50 test images of each MNIST class."""

from pathlib import Path

import numpy as np
import torch

from polycert import data

PER_CLASS: dict[data.Split, int] = {"train": 200, "test": 50}
TARGET = Path(__file__).parents[1] / "src" / "polycert" / "data" / "assets" / "mnist_sample.npz"


def first_of_each_class(labels: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of the first `count` images of every class, in the original order."""
    firsts = [torch.nonzero(labels == label)[:count, 0] for label in range(10)]
    return torch.cat(firsts).sort().values


def main() -> None:
    """Write the sample, with the same bytes every time."""
    arrays: dict[str, np.ndarray] = {}
    for split, count in PER_CLASS.items():
        full = data.load("mnist", split)
        chosen = first_of_each_class(full.y, count)
        arrays[f"x_{split}"] = (full.x[chosen, 0] * 255).round().to(torch.uint8).numpy()
        arrays[f"y_{split}"] = full.y[chosen].to(torch.uint8).numpy()
    TARGET.parent.mkdir(exist_ok=True)
    np.savez_compressed(TARGET, **arrays)
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
