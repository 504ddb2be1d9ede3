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
from polycert.verification.question import Question
from polycert.verification.question import VerificationSettings as Effort
from polycert.verification.verdicts import FALSIFIED, ROBUST, UNKNOWN
from polycert.verification.verify import ask, decisions


@dataclass(frozen=True, kw_only=True)
class ExactSettings:
    """How much exact verdicts may cost.

    Attributes:
        seconds: for all samples of a process together; timeout: for each sample's search.
        limit: how many samples are decided, from the first on; None for all.
        workers: processes of one thread each.
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
    hits: np.ndarray,
    exact: ExactSettings,
    journal: Path | None,
    stage: Stage,
) -> ExactVerdicts:
    """`robust`, `falsified` or `unknown` for each sample of the question, `[n]`.

    Rigorous bounds decide most; counterexamples of attacks are replayed in the exact set; the rest is searched.
    """
    sure = columns["proved"] & question.settings.rigorous
    status = np.where(sure, ROBUST, UNKNOWN).astype(object)
    left = torch.from_numpy(np.flatnonzero(~sure))
    if len(left) == 0:
        return ExactVerdicts(status)
    effort = Effort(timeout=exact.timeout, seed=question.settings.seed)
    asked = ask(question.network, question.x[left], question.y[left], question.ball, effort, question.index[left])
    fallen = _replayed(asked, columns["attacked"][left], hits[left])
    status[left[fallen]] = FALSIFIED
    rest = (~fallen).nonzero().squeeze(1)
    if len(rest) == 0:
        return ExactVerdicts(status)
    resumed = 0
    with closing(
        decisions(asked.part(rest), batch=question.batch, workers=exact.workers, total=exact.seconds, journal=journal)
    ) as verdicts:
        for done, (position, decision) in enumerate(verdicts, start=1):
            status[left[rest[position]]] = decision.status
            resumed += decision.resumed
            stage("exact verdicts", done, len(rest))
    return ExactVerdicts(status, resumed)


def _replayed(question: Question, attacked: np.ndarray, hits: np.ndarray) -> torch.Tensor:
    """Which counterexamples hold in the exact set and in float64, `[n]`; a wrong prediction is left to the search."""
    fallen = torch.zeros(len(question), dtype=torch.bool)
    for k in np.flatnonzero(attacked).tolist():
        fallen[k] = question.check(k)(torch.from_numpy(hits[k : k + 1])) is not None
    return fallen
