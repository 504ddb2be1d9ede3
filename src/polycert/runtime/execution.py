"""Threads, processes, file locks, and the settings of torch's arithmetic that proofs need.

torch releases the interpreter's lock while it computes, so threads can share one network. The caller should then set
torch's own threads to one.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from polycert.errors import PolycertError, PolycertWarning, reason

Result = TypeVar("Result")
Item = TypeVar("Item")
Progress = Callable[[int, int], None]  # samples done, samples in all


def over_batches(
    work: Callable[[slice], Result], total: int, batch: int, threads: int = 1, progress: Progress | None = None
) -> list[Result]:
    """The results of `work` on slices of at most `batch` of the `total` samples, in order."""
    batches = [slice(begin, min(begin + batch, total)) for begin in range(0, total, batch)]
    results: list[Result] = []
    for here, result in zip(batches, _mapped(work, batches, threads), strict=True):
        results.append(result)
        if progress is not None:
            progress(here.stop, total)
    return results


def _mapped(work: Callable[[slice], Result], batches: list[slice], threads: int) -> Iterator[Result]:
    """Yield the results in order. If the caller stops early, batches that have not started are cancelled."""
    if threads == 1:
        yield from map(work, batches)
        return
    pool = ThreadPoolExecutor(threads)
    try:
        yield from pool.map(work, batches)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class Processes:
    """The rank of this process among `count` processes that share the work."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that prints and writes files."""
        return self.rank == 0

    def wrap(self, objective: nn.Module) -> nn.Module:
        """The objective with its gradients averaged over the processes. Call the result, not its submodules."""
        return objective if self.count == 1 else DistributedDataParallel(objective)

    def share(self, blocks: int) -> range:
        """The consecutive blocks of work that are this process's share."""
        return range(self.rank * blocks // self.count, (self.rank + 1) * blocks // self.count)

    def gather(self, items: list[Item]) -> list[Item]:
        """The items of all processes in order of rank, on the first process; an empty list on the others."""
        if self.count == 1:
            return items
        lists: list[list[Item]] | None = [[] for _ in range(self.count)] if self.first else None
        dist.gather_object(items, lists)
        return [item for part in lists or [] for item in part]

    def mean(self, value: Tensor) -> Tensor:
        """The mean of `value` over the processes."""
        if self.count > 1:
            value = value.clone()
            dist.all_reduce(value)
            value /= self.count
        return value


def own_device(name: str) -> torch.device:
    """The device of that name. If `cuda` has no number, each process takes the GPU of its local rank."""
    device = torch.device(name)
    local = os.environ.get("LOCAL_RANK")
    return torch.device(device.type, int(local)) if device.type == "cuda" and device.index is None and local else device


def checked_device(device: torch.device | str, dtype: torch.dtype = torch.float32) -> torch.device:
    """As `own_device`; raises `PolycertError` if the device cannot compute in `dtype`."""
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
    """Join the process group if `torchrun` started this process; else there is one process."""
    if not dist.is_available() or not dist.is_torchelastic_launched():
        yield Processes()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # The processes that finish early wait in `gather` for the slowest one.
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(days=30))
    try:
        yield Processes(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


LOCK_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)  # which of them, depends on the system

if sys.platform == "win32":
    import msvcrt

    LOCKED_BYTE = 2**30  # beyond the content: other processes cannot read a locked byte

    def _lock_or_fail(file: BinaryIO) -> None:
        file.seek(LOCKED_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock_or_fail(file: BinaryIO) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock(file: BinaryIO, path: Path) -> None:
    """Lock an open file until it is closed; raises `PolycertError` if another process holds the lock."""
    try:
        _lock_or_fail(file)
    except OSError as error:
        if error.errno in LOCK_TAKEN:
            raise _in_use(path) from None
        # Some network drives have no locks. The lines' checksums still show what two writers have mixed up.
        warnings.warn(
            f"{path} cannot be locked ({reason(error)}): make sure that no second process writes to it",
            PolycertWarning,
            stacklevel=2,
        )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Create an empty lock file, hold its lock during the block, and remove it afterwards."""
    with path.open("ab") as file:
        lock(file, path)
        if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise _in_use(path)  # the process that held the lock has just removed the file
        try:
            yield
        finally:
            if sys.platform != "win32":  # Windows cannot remove an open file
                path.unlink(missing_ok=True)


def _in_use(path: Path) -> PolycertError:
    return PolycertError(f"another process is writing to {path}: wait until it has ended, or write to another file")


class _NoContext:
    """Replaces autograd's context `ctx` where gradients are off: it saves nothing."""

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        """Discard the tensors: there will be no backward pass."""


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """The function's value. Where gradients are off, `forward` is called directly: `function.apply` costs more."""
    if torch.is_grad_enabled():
        return function.apply(*arguments)
    return function.forward(_NoContext(), *arguments)


class _NnpackSwitch:
    """torch's NNPACK flag, which all threads share: off while any thread needs it off, then restored."""

    def __init__(self) -> None:
        self._lock, self._users, self._before = threading.Lock(), 0, (True,)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Keep the flag off during the block, even if another thread leaves its own block meanwhile."""
        with self._lock:
            if self._users == 0:
                self._before = torch.backends.nnpack.set_flags(False)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    torch.backends.nnpack.set_flags(*self._before)


_NNPACK = _NnpackSwitch()  # the flag is global in torch, so its switch is as well


@contextmanager
def plain_products(device: torch.device) -> Iterator[None]:
    """Turn off fast transforms (Winograd) and autocast, which the error model of `sets.interval` does not cover."""
    autocast = torch.is_autocast_enabled(device.type)
    with _NNPACK.off(), torch.autocast(device.type, enabled=False) if autocast else nullcontext():
        yield


def flushes() -> bool:
    """Whether this thread flushes subnormal numbers to 0."""
    return bool(torch.full((1,), 1e-310, dtype=torch.float64).mul_(2) == 0)


def full_precision(device: torch.device) -> bool:
    """Whether float32 products are computed in float32: on a CPU, without TF32, bfloat16 or the like."""
    backends = torch.backends.mkldnn
    modes = [getattr(getattr(backends, name, None), "fp32_precision", "none") for name in ("matmul", "conv")]
    if device.type != "cpu" or any(mode not in ("none", "ieee") for mode in modes):
        return False
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # torch raises if the settings of its libraries differ
        return False
