"""The source of a loss's random numbers, and means over a batch that several processes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from polycert.runtime import keyed_random


class Subsample(NamedTuple):
    """The positions of some samples of a batch, and the weight of each in the mean."""

    positions: Tensor
    weight: float

    def mean(self, values: Tensor) -> Tensor:
        """The mean of one value per sample; 0 if there are none."""
        return values.sum() * self.weight


class Draws(ABC):
    """The random choices of one step. Choices of different `purpose` are independent."""

    @abstractmethod
    def size(self, x: Tensor) -> int:
        """The number of samples of the whole batch, of which `x` is this process's part."""

    @abstractmethod
    def of(self, positions: Tensor) -> Draws:
        """The same draws for some of this process's samples."""

    @abstractmethod
    def uniform(self, x: Tensor, purpose: str) -> Tensor:
        """Independent numbers in [0, 1) of the shape of x."""

    @abstractmethod
    def choose(self, x: Tensor, count: int | None, purpose: str) -> Subsample:
        """`count` samples of the batch, where all sets of that size are equally likely; all samples for None."""


class TorchDraws(Draws):
    """Draws from torch's global generator, for training loops of the caller's own."""

    def size(self, x: Tensor) -> int:
        """The number of samples in `x`: there is one process."""
        return len(x)

    def of(self, positions: Tensor) -> TorchDraws:
        """The same draws: the generator does not depend on the samples."""
        return self

    def uniform(self, x: Tensor, purpose: str) -> Tensor:
        """Independent numbers in [0, 1) of the shape of x."""
        return torch.rand_like(x)

    def choose(self, x: Tensor, count: int | None, purpose: str) -> Subsample:
        """The first samples of a random permutation."""
        if count is None or count >= len(x):
            return Subsample(torch.arange(len(x), device=x.device), 1 / len(x))
        return Subsample(torch.randperm(len(x), device=x.device)[:count], 1 / count)


@dataclass(frozen=True, eq=False)
class KeyedDraws(Draws):
    """Draws that are a function of the seed, the epoch and the sample's index in its data set.

    Several processes may share the batch. Each has its own samples, samples are chosen from all, and the mean of the
    processes' means is the mean over the whole batch.

    Args:
        seed, epoch: the keys of the draws.
        index: the positions of this process's samples in the data set, `[batch]`, all different.
        whole: the positions of all processes' samples; `index` itself for one process.
        processes: how many processes share the batch.
    """

    seed: int
    epoch: int
    index: Tensor
    whole: Tensor
    processes: int = 1

    def size(self, x: Tensor) -> int:
        """The number of samples of all processes together."""
        return len(self.whole)

    def of(self, positions: Tensor) -> KeyedDraws:
        """The draws of some samples: each sample's draws stay the same."""
        return replace(self, index=self.index[positions.to(self.index.device)])

    def uniform(self, x: Tensor, purpose: str) -> Tensor:
        """Independent numbers in [0, 1) of the shape of x, keyed by sample and feature."""
        features = torch.arange(x[0].numel(), device=x.device)
        found = keyed_random.uniform(self.seed, self.epoch, purpose, self.index.to(x.device)[:, None], features)
        return found.reshape(x.shape).to(x.dtype)

    def choose(self, x: Tensor, count: int | None, purpose: str) -> Subsample:
        """This process's samples among those with the `count` smallest keys of the whole batch."""
        total = self.size(x)
        if count is None or count >= total:
            return Subsample(torch.arange(len(x), device=x.device), self.processes / total)
        keys = keyed_random.bits(self.seed, self.epoch, purpose, self.whole)
        among = self.whole[keys.argsort()[:count]]
        chosen = torch.isin(self.index, among).nonzero().squeeze(1)
        return Subsample(chosen.to(x.device), self.processes / count)
