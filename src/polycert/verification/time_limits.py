"""Rounds of growing time limits: where all samples share one limit, the easy ones are decided before the hard ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from polycert.verification.budget import Budget
from polycert.verification.cascade import OUT_OF_TIME
from polycert.verification.pool import Answers, answers
from polycert.verification.question import Question
from polycert.verification.status import UNKNOWN, Verdict

# Most samples are decided within seconds or not within a minute. Each round begins anew, which costs a third at most.
FIRST_SECONDS, GROWTH = 4.0, 4.0


def in_rounds(question: Question, positions: Tensor, *, batch: int, workers: int, seconds: float) -> Answers:
    """`answers` with short limits first; what the last round leaves open comes last."""
    budget, left = Budget(seconds), positions
    undecided: dict[int, Verdict] = {}
    for timeout in _timeouts(question.settings.timeout, seconds):
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
