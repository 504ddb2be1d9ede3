"""A progress bar, and samples taken in slices, so that Ctrl-C keeps what is finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import Tensor

from polycert.cli.samples import CheckedSamples
from polycert.runtime.execution import Processes

Result = TypeVar("Result", bound=Sized)
Advance = Callable[[int, int], None]
SLICE_SECONDS = 2.0
LARGEST_SLICE = 2000
ALONE = Processes()


@dataclass(frozen=True)
class FinishedSlices(Generic[Result]):
    """The results of the finished slices in order, the number of all samples, and the time taken."""

    parts: list[Result]
    total: int
    seconds: float

    @property
    def count(self) -> int:
        """The number of finished samples."""
        return sum(len(part) for part in self.parts)


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress]:
    """Yield a bar on stderr, shown if that is a terminal, and removed at the end.

    Its task has a field `note` for a few words.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, transient=True)
    bar.add_task("loading", total=None, note="")
    with nullcontext() if quiet or not console.is_terminal else bar:
        yield bar


def _advance(bar: Progress, begin: int) -> Advance:
    """Return a function that moves the bar, for a slice that starts at `begin`."""
    return lambda done, _: bar.update(bar.task_ids[0], completed=begin + done)


def in_slices(
    samples: CheckedSamples,
    bar: Progress,
    verb: str,
    ask: Callable[[Tensor, Tensor | None, Tensor, Advance], Result],
    team: Processes = ALONE,
) -> FinishedSlices[Result]:
    """Call `ask(x, y, index, progress)` on slice after slice; returns the results of those that were finished.

    Slices are whole batches, so that the records are those of one call. They grow while they take little time. Each of
    several processes works on a run of whole batches; the first process gets all results, the others get none.
    """
    total = len(samples.x)
    mine = team.share(-(-total // samples.batch))
    begin, end = mine.start * samples.batch, min(mine.stop * samples.batch, total)
    bar.update(bar.task_ids[0], description=verb, total=end - begin)
    parts: list[Result] = []
    first, size, clock = begin, samples.batch * samples.threads, time.perf_counter()
    try:
        while begin < end:
            here, started = slice(begin, min(begin + size, end)), time.perf_counter()
            labels = None if samples.y is None else samples.y[here]
            parts.append(ask(samples.x[here], labels, samples.index[here], _advance(bar, begin - first)))
            begin = here.stop
            if time.perf_counter() - started < SLICE_SECONDS / 2 and 2 * size <= LARGEST_SLICE:
                size *= 2
    except KeyboardInterrupt:
        if not parts:
            raise
    return FinishedSlices(team.gather(parts), total, time.perf_counter() - clock)
