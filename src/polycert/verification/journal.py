"""Journals: verdicts are written to disk as they come, and the next run takes them up again.

`ChecksummedLines` is the file. Each of its lines has a checksum, and lines that were written stay whole when the
process is killed at any moment. `Journal` says what the lines mean.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from polycert import __version__
from polycert.errors import PolycertError, PolycertWarning
from polycert.graph.fingerprint import fingerprint
from polycert.records.files import check_place
from polycert.runtime.execution import lock
from polycert.verification.counterexample import Counterexample
from polycert.verification.question import Question
from polycert.verification.verdicts import FALSIFIED, RIGOROUS, ROBUST, SOLVER, UNKNOWN, Verdict

FORMAT = 2
SYNC_SECONDS = 1.0  # lines reach the system at once, and the disk itself after so many seconds
LONGEST_HEADER = 4096  # bytes
FIRST = b'{"question": '
SEAL = re.compile(rb'(.*), "seal": "([0-9a-f]{64})"}\n', re.DOTALL)
LONGEST_TEXT = 4096  # bytes of a line without its counterexample
NUMBER_TEXT = 11  # bytes of a counterexample's number in base64
NAMED = 5  # lines that a warning names one by one

Count = Annotated[int, Field(ge=0, lt=2**63)]


class NumberedLine(NamedTuple):
    """A line of a file with its number, counted from 1."""

    number: int
    content: bytes | None  # a JSON object; None if the line is not as it was written


class ChecksummedLines:
    """A locked file of JSON objects, one in each line, under a header that says what they are about.

    A line's seal is a checksum of its text and of what the file is about. It does not fit a line that was changed or
    that comes from another file. It guards against accidents, not against those who compute a seal.

    Attributes:
        lines: the lines that were in the file when it was opened; a last line that was not finished is removed.
    """

    def __init__(self, path: Path, about: str, longest: int) -> None:
        """Open and lock a file; `longest` is the number of bytes that a line's content may have."""
        self.path, self.about = path, fingerprint(FORMAT, about)
        self.longest = longest + len(self._sealed({"": ""}))
        self.header = _json({"question": self.about, "format": FORMAT, "polycert": __version__}) + b"\n"
        self.file = check_place(path).open("a+b")
        try:
            lock(self.file, path)
            self.file.seek(0)
            begun = self._begun()
            self.lines = tuple(self._read())
            if not begun:
                self._write(self.header)
        except BaseException:
            self.file.close()
            raise
        self.synced = time.monotonic()

    def __enter__(self) -> ChecksummedLines:
        return self

    def __exit__(self, *_: object) -> None:
        self._sync()
        self.file.close()

    def append(self, content: dict[str, Any]) -> None:
        """Write one more line."""
        self._write(self._sealed(content))
        if time.monotonic() - self.synced > SYNC_SECONDS:
            self._sync()

    def _begun(self) -> bool:
        """Whether a whole header is there; a file with another header is refused."""
        found = self.file.readline(LONGEST_HEADER)
        if found == self.header:
            return True
        if self.header.startswith(found):  # nothing, or killed at its first line
            self.file.truncate(0)
            return False
        remedy = "remove it, or write to another file"
        if not found.startswith(FIRST) or not found.endswith(b"}\n"):
            raise PolycertError(f"{self.path} is no journal of verify: {remedy}")
        raise PolycertError(
            f"{self.path} holds results about another network, norm or box, or of another version of polycert: {remedy}"
        )

    def _read(self) -> Iterator[NumberedLine]:
        """Yield all lines after the header, and cut the file after the last whole line."""
        number, end = 1, self.file.tell()
        while (text := self.file.readline(self.longest)).endswith(b"\n") or self._skip(text):
            number, end = number + 1, self.file.tell()
            yield NumberedLine(number, self._unsealed(text))
        self.file.truncate(end)

    def _skip(self, text: bytes) -> bool:
        """Read on to the end of a line that is too long, and return whether the line has an end."""
        while text and not text.endswith(b"\n"):
            text = self.file.readline(self.longest)
        return bool(text)

    def _sealed(self, content: dict[str, Any]) -> bytes:
        """Return the line of a JSON object, with its seal."""
        text = _json(content)
        return text[:-1] + b', "seal": "' + fingerprint(self.about, text).encode() + b'"}\n'

    def _unsealed(self, text: bytes) -> bytes | None:
        """Return the JSON object of a line without its seal, or None if the seal does not fit."""
        found = SEAL.fullmatch(text)
        if found is None:
            return None
        content = found[1] + b"}"
        return content if fingerprint(self.about, content).encode() == found[2] else None

    def _write(self, line: bytes) -> None:
        """Hand a line to the operating system."""
        self.file.write(line)
        self.file.flush()

    def _sync(self) -> None:
        """Make sure that all lines are on the disk."""
        os.fsync(self.file.fileno())
        self.synced = time.monotonic()


def _json(content: dict[str, Any]) -> bytes:
    """Return a JSON object as text."""
    return json.dumps(content, allow_nan=False).encode()


class JournalEntry(BaseModel):
    """What a line says about one sample; the counterexample is written as its float64 bytes in base64."""

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
        """Refuse an entry whose proof or counterexample does not fit its status."""
        proofs = {ROBUST: (RIGOROUS,), FALSIFIED: (None,), UNKNOWN: (None, SOLVER)}[self.status]
        if self.proof not in proofs or (self.counterexample is not None) != (self.status == FALSIFIED):
            raise ValueError("proof and counterexample do not fit the status")
        return self


class BadLine(ValueError):
    """A line cannot be believed; the message completes "line 7: …"."""


class Journal:
    """A file of verdicts about one network and kind of set.

    Attributes:
        known: the verdicts that were in the file, by position among the question's samples. Counterexamples have been
            checked again. A warning names the lines that cannot be believed, and their samples are open.
    """

    def __init__(self, file: ChecksummedLines, question: Question) -> None:
        self.file, self.samples = file, question.sample_fingerprints()
        found = JournalReader(question, self.samples)
        for line in file.lines:
            found.read(line)
        found.warn(file.path)
        self.known = found.known

    def append(self, position: int, verdict: Verdict) -> None:
        """Write the verdict on the sample at a position."""
        counterexample = verdict.counterexample
        self.file.append(
            {
                "sample": self.samples[position],
                "status": verdict.status,
                "stage": verdict.stage,
                "proof": verdict.proof,
                "evaluations": verdict.evaluations,
                "nodes": verdict.nodes,
                "seconds": verdict.seconds,
                "counterexample": None if counterexample is None else _text(counterexample.input),
            }
        )


@contextmanager
def open_journal(path: Path, question: Question) -> Iterator[Journal]:
    """Open a journal, which stays locked as long as the block runs."""
    longest = LONGEST_TEXT + NUMBER_TEXT * math.prod(question.region.x.shape[1:])
    with ChecksummedLines(path, question.fingerprint, longest) as file:
        yield Journal(file, question)


@dataclass(eq=False)
class JournalReader:
    """Reads verdicts from lines, and collects the lines that cannot be believed."""

    question: Question
    samples: list[str]  # fingerprints, in the question's order
    decided: dict[str, Verdict] = field(default_factory=dict)  # by the sample's fingerprint
    disputed: set[str] = field(default_factory=set)  # samples with contrary verdicts
    bad: dict[int, str] = field(default_factory=dict)  # what is wrong with a line, by its number

    def __post_init__(self) -> None:
        self.place = {sample: position for position, sample in enumerate(self.samples)}

    @property
    def known(self) -> dict[int, Verdict]:
        """Return the undisputed verdicts, by position."""
        sure = {sample: verdict for sample, verdict in self.decided.items() if sample not in self.disputed}
        return {k: sure[sample] for k, sample in enumerate(self.samples) if sample in sure}

    def read(self, line: NumberedLine) -> None:
        """Keep the verdict of a line if it is about a sample of the question, or what is wrong with the line."""
        try:
            entry = _entry(line)
            if entry.status != UNKNOWN and entry.sample in self.place:
                self._keep(entry)
        except BadLine as error:
            self.bad[line.number] = str(error)

    def _keep(self, entry: JournalEntry) -> None:
        """Keep the verdict of an entry; a contrary verdict before makes the sample disputed."""
        before = self.decided.get(entry.sample)
        if before is not None and before.status != entry.status:
            self.disputed.add(entry.sample)
            raise BadLine("it contradicts an earlier one")
        text = entry.counterexample
        counterexample = None if text is None else self._counterexample(text, entry.sample)
        self.decided[entry.sample] = Verdict(
            entry.status,
            entry.stage,
            counterexample,
            entry.proof,
            entry.evaluations,
            entry.nodes,
            entry.seconds,
            resumed=True,
        )

    def _counterexample(self, text: str, sample: str) -> Counterexample:
        """Return the counterexample that a line holds, after it has been checked again."""
        at = self.place[sample]
        check, point = self.question.check(at), _array(text, self.question.region.x[at : at + 1])
        found = check.best(point) or check.exactly(point)
        if found is None:
            raise BadLine("its counterexample is none")
        return found

    def warn(self, path: Path) -> None:
        """Warn of the lines that are not believed."""
        if not self.bad:
            return
        named = [f"line {number}: {text}" for number, text in list(self.bad.items())[:NAMED]]
        more = [f"and {len(self.bad) - NAMED} more"] if len(self.bad) > NAMED else []
        message = f"{path}: what these lines say is not believed, and decided anew: {'; '.join(named + more)}"
        warnings.warn(message, PolycertWarning, stacklevel=2)


def _entry(line: NumberedLine) -> JournalEntry:
    """Return what a line says; a line that was changed or says something else is a `BadLine`."""
    if line.content is None:
        raise BadLine("its checksum does not fit")
    try:
        return JournalEntry.model_validate_json(line.content)
    except ValidationError:
        raise BadLine("it is no verdict") from None


def _text(point: Tensor) -> str:
    """Return the float64 bytes of a point in base64."""
    return base64.b64encode(point.numpy().astype("<f8").tobytes()).decode()


def _array(text: str, like: Tensor) -> Tensor:
    """Return the numbers that `_text` wrote, float64 in the shape of `like`."""
    try:
        values = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8").astype(np.float64)
        return torch.from_numpy(values).reshape(like.shape)
    except (ValueError, RuntimeError):
        raise BadLine("its counterexample is not of the input's shape") from None
