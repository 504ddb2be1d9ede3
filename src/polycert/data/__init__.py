"""Data sets: MNIST, Fashion-MNIST and CIFAR-10, checksummed and cached, and a small embedded MNIST sample."""

from polycert.data.datasets import (
    NAMES,
    SAMPLE,
    SETS,
    Arrays,
    Dataset,
    RawSet,
    Split,
    cache_folder,
    fetch,
    load,
    parse_cifar,
    parse_idx,
    parse_idx_pair,
)

__all__ = [
    "NAMES",
    "SAMPLE",
    "SETS",
    "Arrays",
    "Dataset",
    "RawSet",
    "Split",
    "cache_folder",
    "fetch",
    "load",
    "parse_cifar",
    "parse_idx",
    "parse_idx_pair",
]
