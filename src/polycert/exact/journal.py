"""Results on disk as they come: one line a sample, readable after the process was killed at any moment."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polycert.errors import PolycertError
from polycert.exact.outcome import UNKNOWN, Decision
from polycert.exact.question import Question
from polycert.exact.witness import Witness

FIRST = b'{"question": '
SYNC_SECONDS = 1.0  # results reach the system at once, the disk itself at least so often


class Journal:
    """A file of decisions about one network and kind of set; a line that was not finished is dropped."""

    def __init__(self, path: Path, question: Question) -> None:
        self.path, self.shape = path, tuple(question.region.x.shape[1:])
        self.samples = question.sample_fingerprints()
        header = {"question": question.fingerprint}
        lines, complete = _read(path)
        if lines and lines[0] != header:
            raise PolycertError(
                f"{path} holds results about another network, norm or box: remove it, or write to another file"
            )
        self.known = self._known(lines[1:])
        self.file = path.open("ab")
        self.file.truncate(complete)
        self.synced = time.monotonic()
        if not lines:
            self._write(header)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._sync()
        self.file.close()

    def _known(self, lines: list[dict[str, Any]]) -> dict[int, Decision]:
        """Decisions by position; later lines win, undecided samples are open again."""
        place: dict[str, list[int]] = {}
        for position, sample in enumerate(self.samples):
            place.setdefault(sample, []).append(position)
        found = {position: self._decision(line) for line in lines for position in place.get(line["sample"], ())}
        return {position: decision for position, decision in found.items() if decision.status != UNKNOWN}

    def append(self, position: int, decision: Decision) -> None:
        """One more decision."""
        witness = decision.witness
        line: dict[str, Any] = {
            "sample": self.samples[position],
            "status": decision.status,
            "stage": decision.stage,
            "proof": decision.proof,
            "evaluations": decision.evaluations,
            "nodes": decision.nodes,
            "seconds": decision.seconds,
        }
        if witness is not None:
            line["witness"] = {
                "margin": witness.margin,
                "own_margin": witness.own_margin,
                "input": base64.b64encode(witness.input.numpy().astype("<f8").tobytes()).decode(),
            }
        self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line).encode() + b"\n")
        self.file.flush()
        if time.monotonic() - self.synced > SYNC_SECONDS:
            self._sync()

    def _sync(self) -> None:
        os.fsync(self.file.fileno())
        self.synced = time.monotonic()

    def _decision(self, line: dict[str, Any]) -> Decision:
        found = line.get("witness")
        witness = None if found is None else Witness(self._array(found["input"]), found["margin"], found["own_margin"])
        numbers = (line[name] for name in ("evaluations", "nodes", "seconds"))
        return Decision(line["status"], line["stage"], witness, line["proof"], *numbers)

    def _array(self, text: str) -> Tensor:
        values = np.frombuffer(base64.b64decode(text), dtype="<f8").astype(np.float64)
        return torch.from_numpy(values.reshape(self.shape))


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The complete lines of a file, and how many bytes they take."""
    content = path.read_bytes() if path.exists() else b""
    complete = content.rfind(b"\n") + 1
    try:
        if not content.startswith(FIRST[: len(content)]):
            raise ValueError("it begins otherwise")
        return [json.loads(line) for line in content[:complete].splitlines()], complete
    except ValueError as error:
        raise PolycertError(f"{path} is no journal of verify ({error}): remove it, or write to another file") from None
