"""One process or several: started by `torchrun`, they share each batch or the samples and join what they find."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from polycert.errors import PolycertError, reason

Item = TypeVar("Item")


@dataclass(frozen=True)
class Processes:
    """This process's place among all."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this one writes and speaks."""
        return self.rank == 0

    def wrap(self, objective: nn.Module) -> nn.Module:
        """Gradients of the objective averaged over the processes; the objective is all that is called."""
        return objective if self.count == 1 else DistributedDataParallel(objective)

    def share(self, blocks: int) -> range:
        """This process's run of so many blocks of work; the processes' shares in order are all of it."""
        return range(self.rank * blocks // self.count, (self.rank + 1) * blocks // self.count)

    def gather(self, items: list[Item]) -> list[Item]:
        """The first process gets all processes' items, in order; the others none."""
        if self.count == 1:
            return items
        found: list[list[Item]] | None = [[] for _ in range(self.count)] if self.first else None
        dist.gather_object(items, found)
        return [item for part in found or [] for item in part]

    def mean(self, value: Tensor) -> Tensor:
        """A number averaged over the processes."""
        if self.count > 1:
            value = value.clone()
            dist.all_reduce(value)
            value /= self.count
        return value


def own_device(name: str) -> torch.device:
    """A device by name; without a number, each of several processes takes its own."""
    device = torch.device(name)
    local = os.environ.get("LOCAL_RANK")
    return torch.device(device.type, int(local)) if device.type == "cuda" and device.index is None and local else device


def checked_device(device: torch.device | str, dtype: torch.dtype = torch.float32) -> torch.device:
    """As `own_device`, if it can do arithmetic in `dtype`; else a clear error."""
    try:
        found = own_device(str(device))
        torch.zeros(1, dtype=dtype, device=found).add(1).item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        kind = str(dtype).removeprefix("torch.")
        raise PolycertError(
            f"the device {str(device)!r} cannot be used for {kind} arithmetic: {reason(error)}"
        ) from None
    return found


@contextmanager
def processes(device: torch.device) -> Iterator[Processes]:
    """Join the others if `torchrun` started this process, else be alone."""
    if not dist.is_available() or not dist.is_torchelastic_launched():
        yield Processes()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # One process may have long work left while the others wait for it to gather.
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(days=30))
    try:
        yield Processes(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
