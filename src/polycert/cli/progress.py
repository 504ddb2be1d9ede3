"""Long work in slices, so that Ctrl-C keeps what is finished."""

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
    """Results of the slices that were finished, in order, and the time they took."""

    parts: list[Result]
    total: int
    seconds: float

    @property
    def count(self) -> int:
        """Samples that are finished."""
        return sum(len(part) for part in self.parts)

    @property
    def interrupted(self) -> bool:
        """Whether some are not."""
        return self.count < self.total


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress]:
    """A bar on stderr, if that is a terminal; it leaves no trace. Its task has a field `note` for a few words."""
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
    return lambda done, _: bar.update(bar.task_ids[0], completed=begin + done)


def in_slices(
    job: CheckedSamples,
    bar: Progress,
    verb: str,
    ask: Callable[[Tensor, Tensor | None, Tensor, Advance], Result],
    team: Processes = ALONE,
) -> FinishedSlices[Result]:
    """Call `ask(x, y, index, progress)` on slice after slice.

    Slices are whole batches, so that the records are those of one call, and grow while they take little time. Of
    several processes each has a run of whole batches; the first one gets the results of all, the others none.
    """
    total = len(job.x)
    mine = team.share(-(-total // job.batch))
    begin, end = mine.start * job.batch, min(mine.stop * job.batch, total)
    bar.update(bar.task_ids[0], description=verb, total=end - begin)
    parts: list[Result] = []
    first, size, clock = begin, job.batch * job.threads, time.perf_counter()
    try:
        while begin < end:
            here, started = slice(begin, min(begin + size, end)), time.perf_counter()
            labels = None if job.y is None else job.y[here]
            parts.append(ask(job.x[here], labels, job.index[here], _advance(bar, begin - first)))
            begin = here.stop
            if time.perf_counter() - started < SLICE_SECONDS / 2 and 2 * size <= LARGEST_SLICE:
                size *= 2
    except KeyboardInterrupt:
        if not parts:
            raise
    return FinishedSlices(team.gather(parts), total, time.perf_counter() - clock)
