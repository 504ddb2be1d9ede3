"""Questions answered sample by sample, in this process or in several, in rounds of growing time limits.

Where all samples share one limit, the easy ones are decided before the hard ones.
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
from polycert.verification.verdicts import UNKNOWN, Verdict

Answers = Iterator[tuple[int, Verdict]]
WAIT_SECONDS = 0.5
PARTS = 8  # for each process


def answers(question: Question, positions: Tensor, *, batch: int, workers: int, seconds: float) -> Answers:
    """Decide some samples, in any order: pairs of position and decision.

    Args:
        batch: samples that go through the cheap stages together, at most.
        workers: processes; 1 is this one.
        seconds: for all samples together; what is not begun by then is `unknown`.
    """
    # Samples differ in what they cost by orders of magnitude: several parts for each process.
    share = batch if workers <= 1 else -(-len(positions) // (PARTS * workers))
    parts = list(positions.split(max(min(batch, share), 1)))
    budget = Budget(seconds)
    if workers <= 1 or len(parts) <= 1:
        yield from _here(question, parts, budget)
    else:
        with Pool(question, min(workers, len(parts))) as pool:
            yield from pool.answers(parts, budget)


def _here(question: Question, parts: Sequence[Tensor], budget: Budget) -> Answers:
    for part in parts:
        if budget.over:
            yield from _out_of_time(part)
            continue
        for position, decision in cascade(question.part(part), budget):
            yield int(part[position]), decision


def _out_of_time(part: Tensor) -> Answers:
    for position in part.tolist():
        yield position, OUT_OF_TIME


class Pool:
    """Processes that take parts of a question from one queue and put decisions into another."""

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

    def answers(self, parts: Sequence[Tensor], budget: Budget) -> Answers:
        """Hand out one part after another, and pass on decisions as they come."""
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
        if not waiting or budget.over:
            return 0
        self.tasks.put((waiting.pop().tolist(), budget.left))
        return 1

    def _next(self) -> Any:
        """The next message, or an error if a process is gone."""
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
    """A worker's life: parts in, decisions out; None says that a part is finished, a text that it failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    torch.set_num_threads(1)
    question: Question = pickle.loads(payload)
    try:
        while True:
            positions, seconds = tasks.get()
            part = torch.tensor(positions)
            for position, decision in _here(question, [part], Budget(seconds)):
                results.put(pickle.dumps((position, decision)))
            results.put(pickle.dumps(None))
    except Exception:
        results.put(pickle.dumps(traceback.format_exc(limit=-3)))


# Most samples are decided within seconds or not within a minute. Each round begins anew, which costs a third at most.
FIRST_SECONDS, GROWTH = 4.0, 4.0


def in_rounds(question: Question, positions: Tensor, *, batch: int, workers: int, seconds: float) -> Answers:
    """`answers` with short limits first; what the last round leaves open comes last."""
    budget, left = Budget(seconds), positions
    undecided: dict[int, Verdict] = {}
    for timeout in _timeouts(question.settings.timeout, seconds if len(positions) > 1 else math.inf):
        asked = replace(question, settings=replace(question.settings, timeout=timeout))
        for position, decision in answers(asked, left, batch=batch, workers=workers, seconds=budget.left):
            whole = _added(undecided.pop(position, None), decision)
            if whole.status == UNKNOWN:
                undecided[position] = whole
            else:
                yield position, whole
        left = torch.tensor(sorted(undecided), dtype=torch.long)
        if not undecided or budget.over:
            break
    yield from undecided.items()


def _timeouts(most: float, seconds: float) -> Iterator[float]:
    """Limits of the rounds, the last being what was asked for: a single one if there is time for all."""
    timeout = most if math.isinf(seconds) else FIRST_SECONDS
    while timeout < most:
        yield timeout
        timeout *= GROWTH
    yield most


def _added(before: Verdict | None, decision: Verdict) -> Verdict:
    """A decision with what earlier rounds have spent on the sample."""
    if before is None:
        return decision
    if decision.stage == OUT_OF_TIME.stage:
        return before
    return replace(
        decision,
        evaluations=before.evaluations + decision.evaluations,
        nodes=before.nodes + decision.nodes,
        seconds=before.seconds + decision.seconds,
    )
