"""How work runs on the machine: threads, processes and the locks between them, and what torch is told about arithmetic.

Torch lets go of the interpreter while it computes, so threads share one copy of the network; each then works best with
torch's own threads set to one, which is the caller's choice.
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
    """`work` on slices of `batch` of all samples."""
    parts = [slice(begin, min(begin + batch, total)) for begin in range(0, total, batch)]
    found: list[Result] = []
    for part, result in zip(parts, _mapped(work, parts, threads), strict=True):
        found.append(result)
        if progress is not None:
            progress(part.stop, total)
    return found


def _mapped(work: Callable[[slice], Result], parts: list[slice], threads: int) -> Iterator[Result]:
    """Results in order; parts that are not begun when the caller stops are dropped."""
    if threads == 1:
        yield from map(work, parts)
        return
    pool = ThreadPoolExecutor(threads)
    try:
        yield from pool.map(work, parts)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


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


HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)  # by system

if sys.platform == "win32":
    import msvcrt

    FAR = 2**30  # a locked byte cannot be read by others

    def _take(file: BinaryIO) -> None:
        file.seek(FAR)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _take(file: BinaryIO) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock(file: BinaryIO, path: Path) -> None:
    """Lock an open file until it is closed, or refuse if another has locked it."""
    try:
        _take(file)
    except OSError as error:
        if error.errno in HELD:
            raise _in_use(path) from None
        # Some network drives have no locks; checksums still tell which lines two writers have mixed up.
        warnings.warn(
            f"{path} cannot be locked ({reason(error)}): make sure that no second process writes to it",
            PolycertWarning,
            stacklevel=2,
        )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """An empty file that is there, and locked, as long as the block runs."""
    with path.open("ab") as file:
        lock(file, path)
        if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise _in_use(path)  # its owner was just removing it
        try:
            yield
        finally:
            if sys.platform != "win32":  # which removes no open file
                path.unlink(missing_ok=True)


def _in_use(path: Path) -> PolycertError:
    return PolycertError(f"another process is writing to {path}: wait until it has ended, or write to another file")


class _NoContext:
    """Stands for autograd's notebook where nothing has to be remembered: forwards use no more of it than this."""

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        """Not needed."""


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """`function.apply`, or its forward alone where gradients are off: autograd's part costs as much as a product."""
    if torch.is_grad_enabled():
        return function.apply(*arguments)
    return function.forward(_NoContext(), *arguments)


class _Switch:
    """A switch of torch's that all threads share: off while at least one of them wants it so, then as it was."""

    def __init__(self) -> None:
        self._lock, self._users, self._before = threading.Lock(), 0, (True,)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Off for the time of the block, whoever else enters or leaves."""
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


_FAST_TRANSFORMS = _Switch()


@contextmanager
def plain_products(device: torch.device) -> Iterator[None]:
    """Products as plain sums in the type of their operands: the error model knows no fast transforms, no autocast."""
    mixed = torch.is_autocast_enabled(device.type)
    with _FAST_TRANSFORMS.off(), torch.autocast(device.type, enabled=False) if mixed else nullcontext():
        yield


def flushes() -> bool:
    """Whether the processor takes numbers below the smallest normal one for 0 in this thread."""
    return bool(torch.full((1,), 1e-310, dtype=torch.float64).mul_(2) == 0)


def full_precision(device: torch.device) -> bool:
    """Whether float32 products are computed in float32: on a processor, with no faster mode switched on."""
    backends = torch.backends.mkldnn
    modes = [getattr(getattr(backends, name, None), "fp32_precision", "none") for name in ("matmul", "conv")]
    if device.type != "cpu" or any(mode not in ("none", "ieee") for mode in modes):
        return False
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # mixed settings have no common name
        return False
