"""Exact verdicts for what bounds leave open."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from polycert.errors import PolycertError
from polycert.evaluation.settings import EvaluationQuestion, Stage
from polycert.verification.question import Question, VerificationSettings
from polycert.verification.verdicts import FALSIFIED, ROBUST, UNKNOWN
from polycert.verification.verify import ask, decisions


@dataclass(frozen=True, kw_only=True)
class ExactSettings:
    """How much exact verdicts may cost.

    Attributes:
        seconds: the time for all samples of a process together; timeout: the seconds for each sample's search.
        limit: how many samples are decided, from the first on; None for all.
        workers: the number of processes, of one thread each.
    """

    seconds: float = math.inf
    timeout: float = 60.0
    limit: int | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        if not self.seconds > 0 or not self.timeout > 0:
            raise PolycertError(f"exact verdicts need seconds above 0, got {self.seconds} and {self.timeout}")
        if self.limit is not None and self.limit < 1:
            raise PolycertError(f"the limit of exact verdicts must be at least 1, got {self.limit}")


class ExactVerdicts(NamedTuple):
    """Verdicts `[n]`, and how many of them were taken over from a journal."""

    status: np.ndarray
    resumed: int = 0


def exact_verdicts(
    question: EvaluationQuestion,
    columns: dict[str, np.ndarray],
    counterexamples: np.ndarray,
    exact: ExactSettings,
    journal: Path | None,
    stage: Stage,
) -> ExactVerdicts:
    """Return `robust`, `falsified` or `unknown` for each sample of the question, `[n]`.

    Samples that rigorous bounds prove are robust. Counterexamples of attacks are checked in the exact set. All other
    samples are decided by `verify`.
    """
    proved = columns["proved"] & question.settings.rigorous
    status = np.where(proved, ROBUST, UNKNOWN).astype(object)
    left = torch.from_numpy(np.flatnonzero(~proved))
    if len(left) == 0:
        return ExactVerdicts(status)
    settings = VerificationSettings(timeout=exact.timeout, seed=question.settings.seed)
    asked = ask(question.network, question.x[left], question.y[left], question.ball, settings, question.index[left])
    falsified = _confirmed(asked, columns["attacked"][left], counterexamples[left])
    status[left[falsified]] = FALSIFIED
    rest = (~falsified).nonzero().squeeze(1)
    if len(rest) == 0:
        return ExactVerdicts(status)
    resumed = 0
    with closing(
        decisions(asked.part(rest), batch=question.batch, workers=exact.workers, total=exact.seconds, journal=journal)
    ) as verdicts:
        for done, (position, verdict) in enumerate(verdicts, start=1):
            status[left[rest[position]]] = verdict.status
            resumed += verdict.resumed
            stage("exact verdicts", done, len(rest))
    return ExactVerdicts(status, resumed)


def _confirmed(question: Question, attacked: np.ndarray, counterexamples: np.ndarray) -> torch.Tensor:
    """Return which counterexamples of attacks hold in the exact set and in float64, `[n]`."""
    falsified = torch.zeros(len(question), dtype=torch.bool)
    for k in np.flatnonzero(attacked).tolist():
        falsified[k] = question.check(k)(torch.from_numpy(counterexamples[k : k + 1])) is not None
    return falsified
