"""Where the random numbers of a loss come from, and what a mean over a batch is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.runtime import keyed_random


class Subsample(NamedTuple):
    """Some samples of a batch: their positions, and what each weighs in the mean."""

    positions: Tensor
    weight: float

    def mean(self, values: Tensor) -> Tensor:
        """The mean of one value per sample of the part; 0 for an empty part."""
        return values.sum() * self.weight


class Draws(ABC):
    """The random choices of one step. `purpose` keeps choices apart that must not depend on each other."""

    @abstractmethod
    def size(self, x: Tensor) -> int:
        """How many samples the whole batch has, x being a process's part of it."""

    @abstractmethod
    def of(self, positions: Tensor) -> Draws:
        """The same draws for some of the samples at hand."""

    @abstractmethod
    def uniform(self, x: Tensor, purpose: str) -> Tensor:
        """Independent numbers in [0, 1) of the shape of x."""

    @abstractmethod
    def choose(self, x: Tensor, count: int | None, purpose: str) -> Subsample:
        """`count` samples of the batch, each set of that size equally likely; all of them for None."""


class TorchDraws(Draws):
    """From torch's global generator: for a training loop of your own."""

    def size(self, x: Tensor) -> int:
        """One process has it all."""
        return len(x)

    def of(self, positions: Tensor) -> TorchDraws:
        """The generator knows no samples."""
        return self

    def uniform(self, x: Tensor, purpose: str) -> Tensor:
        """Independent numbers in [0, 1) of the shape of x."""
        return torch.rand_like(x)

    def choose(self, x: Tensor, count: int | None, purpose: str) -> Subsample:
        """A random permutation's first samples."""
        if count is None or count >= len(x):
            return Subsample(torch.arange(len(x), device=x.device), 1 / len(x))
        return Subsample(torch.randperm(len(x), device=x.device)[:count], 1 / count)


@dataclass(frozen=True, eq=False)
class KeyedDraws(Draws):
    """A function of seed, epoch and a sample's index in its data set, and of nothing else.

    The batch may be spread over processes: each sees its own samples, the choice is among all, and the mean of the
    processes' means is the mean over the whole batch.

    Args:
        seed, epoch: what the draws belong to.
        index: positions in the data set of the samples at hand, `[batch]`, no two equal.
        whole: the same of all processes' samples; `index` itself for one process.
        processes: how many processes share the batch.
    """

    seed: int
    epoch: int
    index: Tensor
    whole: Tensor
    processes: int = 1

    def size(self, x: Tensor) -> int:
        """Of all processes together."""
        return len(self.whole)

    def of(self, positions: Tensor) -> KeyedDraws:
        """Each sample keeps its own."""
        return replace(self, index=self.index[positions.to(self.index.device)])

    def uniform(self, x: Tensor, purpose: str) -> Tensor:
        """One number for each sample and feature."""
        features = torch.arange(x[0].numel(), device=x.device)
        found = keyed_random.uniform(self.seed, self.epoch, purpose, self.index.to(x.device)[:, None], features)
        return found.reshape(x.shape).to(x.dtype)

    def choose(self, x: Tensor, count: int | None, purpose: str) -> Subsample:
        """The samples with the smallest keys of the whole batch."""
        total = self.size(x)
        if count is None or count >= total:
            return Subsample(torch.arange(len(x), device=x.device), self.processes / total)
        keys = keyed_random.bits(self.seed, self.epoch, purpose, self.whole)
        among = self.whole[keys.argsort()[:count]]
        chosen = torch.isin(self.index, among).nonzero().squeeze(1)
        return Subsample(chosen.to(x.device), self.processes / count)
