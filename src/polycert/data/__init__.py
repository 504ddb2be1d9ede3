"""Data sets: MNIST, Fashion-MNIST and CIFAR-10, checksummed and cached, and a small embedded MNIST sample."""

from polycert.data.datasets import NAMES, Dataset, Split, cache_folder, fetch, load

__all__ = ["NAMES", "Dataset", "Split", "cache_folder", "fetch", "load"]
