"""Verdicts on disk as they come, taken up again by the next run."""

from __future__ import annotations

import base64
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from polycert.errors import PolycertWarning
from polycert.verification.checksummed_lines import ChecksummedLines, NumberedLine
from polycert.verification.counterexample import Counterexample
from polycert.verification.question import Question
from polycert.verification.verdicts import FALSIFIED, RIGOROUS, ROBUST, SOLVER, UNKNOWN, Verdict

LONGEST_TEXT = 4096  # bytes of a line without its counterexample
NUMBER_TEXT = 11  # bytes of a counterexample's number in base64
NAMED = 5  # lines that a warning names one by one

Count = Annotated[int, Field(ge=0, lt=2**63)]


class JournalEntry(BaseModel):
    """What a line says; the counterexample is its float64 bytes in base64."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    sample: str
    status: Literal["robust", "falsified", "unknown"]
    stage: str
    proof: Literal["rigorous", "solver"] | None
    evaluations: Count
    nodes: Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    counterexample: str | None

    @model_validator(mode="after")
    def _complete(self) -> JournalEntry:
        """A robust sample has a rigorous proof, a falsified one a counterexample; a solver's word leaves it unknown."""
        proofs = {ROBUST: (RIGOROUS,), FALSIFIED: (None,), UNKNOWN: (None, SOLVER)}[self.status]
        if self.proof not in proofs or (self.counterexample is not None) != (self.status == FALSIFIED):
            raise ValueError("proof and counterexample do not fit the status")
        return self


class BadLine(ValueError):
    """A line that is not believed; the message completes "line 7: …"."""


class Journal:
    """A file of decisions about one network and kind of set.

    Attributes:
        known: decisions that were there, by position among the question's samples. Counterexamples have been checked
            again; lines that cannot be believed are named in a warning, and their samples are open.
    """

    def __init__(self, file: ChecksummedLines, question: Question) -> None:
        self.file, self.samples = file, question.sample_fingerprints()
        found = JournalReader(question, self.samples)
        for line in file.lines:
            found.read(line)
        found.warn(file.path)
        self.known = found.known

    def append(self, position: int, decision: Verdict) -> None:
        """One more decision."""
        witness = decision.witness
        self.file.append(
            {
                "sample": self.samples[position],
                "status": decision.status,
                "stage": decision.stage,
                "proof": decision.proof,
                "evaluations": decision.evaluations,
                "nodes": decision.nodes,
                "seconds": decision.seconds,
                "counterexample": None if witness is None else _text(witness.input),
            }
        )


@contextmanager
def open_journal(path: Path, question: Question) -> Iterator[Journal]:
    """A journal, locked as long as the block runs."""
    longest = LONGEST_TEXT + NUMBER_TEXT * math.prod(question.region.x.shape[1:])
    with ChecksummedLines(path, question.fingerprint, longest) as file:
        yield Journal(file, question)


@dataclass(eq=False)
class JournalReader:
    """Makes decisions of lines."""

    question: Question
    samples: list[str]
    decided: dict[str, Verdict] = field(default_factory=dict)  # by sample
    disputed: set[str] = field(default_factory=set)  # samples with contrary verdicts
    bad: dict[int, str] = field(default_factory=dict)  # what is wrong with a line, by its number

    def __post_init__(self) -> None:
        self.place = {sample: position for position, sample in enumerate(self.samples)}

    @property
    def known(self) -> dict[int, Verdict]:
        """Decisions by position."""
        sure = {sample: decision for sample, decision in self.decided.items() if sample not in self.disputed}
        return {k: sure[sample] for k, sample in enumerate(self.samples) if sample in sure}

    def read(self, line: NumberedLine) -> None:
        """Keep what a line decides about a sample of the question, or what is wrong with it."""
        try:
            entry = _entry(line)
            if entry.status != UNKNOWN and entry.sample in self.place:
                self._keep(entry)
        except BadLine as error:
            self.bad[line.number] = str(error)

    def _keep(self, entry: JournalEntry) -> None:
        before = self.decided.get(entry.sample)
        if before is not None and before.status != entry.status:
            self.disputed.add(entry.sample)
            raise BadLine("it contradicts an earlier one")
        witness = None if entry.counterexample is None else self._witness(entry.counterexample, entry.sample)
        self.decided[entry.sample] = Verdict(
            entry.status,
            entry.stage,
            witness,
            entry.proof,
            entry.evaluations,
            entry.nodes,
            entry.seconds,
            resumed=True,
        )

    def _witness(self, text: str, sample: str) -> Counterexample:
        """The counterexample, if it is one."""
        at = self.place[sample]
        check, point = self.question.check(at), _array(text, self.question.region.x[at : at + 1])
        found = check.best(point) or check.exactly(point)
        if found is None:
            raise BadLine("its counterexample is none")
        return found

    def warn(self, path: Path) -> None:
        """Name the lines that were not believed."""
        if not self.bad:
            return
        named = [f"line {number}: {text}" for number, text in list(self.bad.items())[:NAMED]]
        more = [f"and {len(self.bad) - NAMED} more"] if len(self.bad) > NAMED else []
        message = f"{path}: what these lines say is not believed, and decided anew: {'; '.join(named + more)}"
        warnings.warn(message, PolycertWarning, stacklevel=2)


def _entry(line: NumberedLine) -> JournalEntry:
    if line.content is None:
        raise BadLine("its checksum does not fit")
    try:
        return JournalEntry.model_validate_json(line.content)
    except ValidationError:
        raise BadLine("it is no verdict") from None


def _text(point: Tensor) -> str:
    return base64.b64encode(point.numpy().astype("<f8").tobytes()).decode()


def _array(text: str, like: Tensor) -> Tensor:
    """Numbers in the shape of `like`, float64."""
    try:
        values = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8").astype(np.float64)
        return torch.from_numpy(values).reshape(like.shape)
    except (ValueError, RuntimeError):
        raise BadLine("its counterexample is not of the input's shape") from None
