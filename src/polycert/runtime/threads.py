"""Independent batches, on one thread or several, with results in order.

Torch lets go of the interpreter while it computes, so threads share one copy of the network; each then works best with
torch's own threads set to one, which is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
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
