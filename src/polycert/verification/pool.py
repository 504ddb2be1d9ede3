"""Decide the samples of a question, in this process or in a pool of several, in rounds of growing time limits.

The rounds make sure that easy samples are decided before the hard ones where all samples share one limit.
"""

from __future__ import annotations

import math
import multiprocessing
import pickle
import queue
import signal
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from typing import Any

import torch
from torch import Tensor

from polycert.errors import PolycertError
from polycert.verification.budget import Budget
from polycert.verification.cascade import OUT_OF_TIME, cascade
from polycert.verification.question import Question
from polycert.verification.verdicts import UNKNOWN, NumberedVerdicts, Verdict

WAIT_SECONDS = 0.5  # between two checks that all processes are alive
PARTS = 8  # parts of a question for each process


def in_one_round(
    question: Question, positions: Tensor, *, batch: int, workers: int, seconds: float
) -> NumberedVerdicts:
    """Decide some samples, in any order.

    Args:
        question: the question.
        positions: the samples to decide.
        batch: how many samples go through the cheap stages together, at most.
        workers: the number of processes; 1 works in this one.
        seconds: a limit for all samples together; samples that are not begun by then are `unknown`.
    """
    # The costs of samples differ by orders of magnitude: several parts for each process even them out.
    share = batch if workers <= 1 else -(-len(positions) // (PARTS * workers))
    parts = list(positions.split(max(min(batch, share), 1)))
    budget = Budget(seconds)
    if workers <= 1 or len(parts) <= 1:
        yield from _here(question, parts, budget)
    else:
        with Pool(question, min(workers, len(parts))) as pool:
            yield from pool.verdicts(parts, budget)


def _here(question: Question, parts: Sequence[Tensor], budget: Budget) -> NumberedVerdicts:
    """Decide one part after another in this process."""
    for part in parts:
        if budget.over:
            yield from _out_of_time(part)
            continue
        for position, verdict in cascade(question.part(part), budget):
            yield int(part[position]), verdict


def _out_of_time(part: Tensor) -> NumberedVerdicts:
    """Yield the verdict that the time was up for every sample of a part."""
    for position in part.tolist():
        yield position, OUT_OF_TIME


class Pool:
    """Worker processes that take parts of a question from one queue and put verdicts into another."""

    def __init__(self, question: Question, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.tasks: Any = context.Queue()
        self.results: Any = context.Queue()
        payload = pickle.dumps(question)
        self.processes: list[SpawnProcess] = [
            context.Process(target=_work, args=(payload, self.tasks, self.results), daemon=True) for _ in range(count)
        ]

    def __enter__(self) -> Pool:
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join()
        for channel in (self.tasks, self.results):
            channel.cancel_join_thread()
            channel.close()

    def verdicts(self, parts: Sequence[Tensor], budget: Budget) -> NumberedVerdicts:
        """Hand out one part after another, and yield verdicts as they come."""
        waiting = list(reversed(parts))
        running = 0
        for _ in self.processes:
            running += self._hand_out(waiting, budget)
        while running:
            message = self._next()
            if isinstance(message, str):
                raise PolycertError(f"a worker process failed: {message}")
            if message is None:
                running -= 1
                running += self._hand_out(waiting, budget)
            else:
                yield message
        for part in reversed(waiting):
            yield from _out_of_time(part)

    def _hand_out(self, waiting: list[Tensor], budget: Budget) -> int:
        """Hand out the next part, and return how many parts were handed out: 0 or 1."""
        if not waiting or budget.over:
            return 0
        self.tasks.put((waiting.pop().tolist(), budget.left))
        return 1

    def _next(self) -> Any:
        """Return the next message; a process that is gone is an error."""
        while True:
            try:
                return pickle.loads(self.results.get(timeout=WAIT_SECONDS))
            except queue.Empty:
                dead = [p.exitcode for p in self.processes if not p.is_alive()]
                if dead:
                    raise PolycertError(
                        f"a worker process ended with exit code {dead[0]}, perhaps for lack of memory: "
                        "use fewer workers or less memory"
                    ) from None


def _work(payload: bytes, tasks: Any, results: Any) -> None:
    """Run a worker: it takes parts and sends back verdicts, None after each part, and a text if it fails."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends its workers
    torch.set_num_threads(1)
    question: Question = pickle.loads(payload)
    try:
        while True:
            positions, seconds = tasks.get()
            part = torch.tensor(positions)
            for position, verdict in _here(question, [part], Budget(seconds)):
                results.put(pickle.dumps((position, verdict)))
            results.put(pickle.dumps(None))
    except Exception:
        results.put(pickle.dumps(traceback.format_exc(limit=-3)))


# Most samples are decided within seconds, or not within a minute. Each round begins anew, which costs a third at most.
FIRST_SECONDS, GROWTH = 4.0, 4.0


def in_rounds(question: Question, positions: Tensor, *, batch: int, workers: int, seconds: float) -> NumberedVerdicts:
    """Decide some samples in rounds, the shortest limit first; samples that the last round leaves open come last.

    The arguments are those of `in_one_round`.
    """
    budget, left = Budget(seconds), positions
    undecided: dict[int, Verdict] = {}
    for timeout in _timeouts(question.settings.timeout, seconds if len(positions) > 1 else math.inf):
        asked = replace(question, settings=replace(question.settings, timeout=timeout))
        for position, verdict in in_one_round(asked, left, batch=batch, workers=workers, seconds=budget.left):
            whole = _added(undecided.pop(position, None), verdict)
            if whole.status == UNKNOWN:
                undecided[position] = whole
            else:
                yield position, whole
        left = torch.tensor(sorted(undecided), dtype=torch.long)
        if not undecided or budget.over:
            break
    yield from undecided.items()


def _timeouts(most: float, seconds: float) -> Iterator[float]:
    """Yield the limits of the rounds; the last is `most`, and it is the only one if `seconds` is without end."""
    timeout = most if math.isinf(seconds) else FIRST_SECONDS
    while timeout < most:
        yield timeout
        timeout *= GROWTH
    yield most


def _added(before: Verdict | None, verdict: Verdict) -> Verdict:
    """Return a verdict with the effort of earlier rounds added to its own."""
    if before is None:
        return verdict
    if verdict.stage == OUT_OF_TIME.stage:
        return before
    return replace(
        verdict,
        evaluations=before.evaluations + verdict.evaluations,
        nodes=before.nodes + verdict.nodes,
        seconds=before.seconds + verdict.seconds,
    )
