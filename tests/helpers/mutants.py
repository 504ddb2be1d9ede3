"""Damaged files of every kind that polycert reads: `mutants(seed)` never ends, and is the same for the same seed.

Run as a program, it reads mutants for some seconds under a limit of memory, and prints what went wrong as JSON.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn

import polycert as pc
from polycert.data import datasets as data
from polycert.errors import LONGEST
from polycert.models.model_files import read_weights
from polycert.records.run_folder import Checkpoint, RunFolder, read_metrics
from polycert.report.runs import gather, read_samples
from polycert.runtime import limits
from polycert.runtime.limits import read_arrays
from polycert.training import library, read_recipe
from polycert.training.recipe_files import to_toml
from polycert.verification.vnnlib import read_property

ARCHITECTURE = [
    {"type": "conv2d", "in_channels": 1, "out_channels": 2, "kernel_size": 2, "padding": 1},
    {"type": "batch_norm2d", "num_features": 2},
    {"type": "relu"},
    {"type": "flatten"},
    {"type": "linear", "in_features": 18, "out_features": 3},
]
INPUT_SHAPE = (1, 2, 2)
FIRST = """(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)(declare-const Y_1 Real)
(assert (>= X_0 -1.5))(assert (<= X_0 1e-2))(assert (>= X_1 0))(assert (<= X_1 2))
(assert (or (and (<= Y_0 Y_1) (>= (+ Y_1 (* 0.5 Y_0)) 0.25)) (>= (* 2 Y_0) 1)))"""
SECOND = """(vnnlib-version <2.0>)
(declare-network net (declare-input X float32 [1,2]) (declare-output Y float32 [1,2]))
(assert (>= X[0,0] -1.0)) (assert (<= X[0,0] 1.0)) (assert (>= X[0,1] 0.0)) (assert (<= X[0,1] 2.0))
(assert (or (<= (+ (* 2.0 Y[0,0]) Y[0,1]) 0.1) (>= Y[0,1] 3.0)))"""
RECORD = {"model": "net", "norm": 2, "eps": 0.1, "n": 3, "CTE": 1.5, "counts": {"unstable": [1.0, 2.0, None]}}


class Kind(NamedTuple):
    """A kind of file: its name, how a valid one is written, and how it is read."""

    file: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]


class Mutant(NamedTuple):
    """The content of a damaged file of some kind."""

    kind: Kind
    content: bytes


def _module() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return pc.models.architectures.build(ARCHITECTURE).eval()


def _state() -> dict[str, torch.Tensor]:
    return _module().state_dict()


def _arrays() -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in _state().items()}


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text, encoding="utf-8")


def _bytes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _samples(path: Path) -> None:
    pd.DataFrame({name: range(5) for name in ("index", "label", "prediction")}).to_parquet(path)


def _checkpoint(path: Path) -> None:
    RunFolder(path.parent).write(1, Checkpoint({"best": {"loss": 0.5}}, {"weight": torch.ones(3)}))


def _read_model_npz(path: Path) -> object:
    entry = {"file": path.name, "arch": ARCHITECTURE, "input_shape": INPUT_SHAPE}
    (path.parent / "index.json").write_text(json.dumps({"models": {"net": entry}}))
    return pc.load(path)


def _read_index(path: Path) -> object:
    np.savez(path.parent / "indexed.npz", **_arrays())
    return pc.load(path.parent / "indexed.npz")


def _index_text() -> str:
    entry = {"file": "indexed.npz", "arch": ARCHITECTURE, "input_shape": INPUT_SHAPE}
    return json.dumps({"models": {"net": entry}})


IDX = bytes([0, 0, 8, 3]) + np.array([2, 2, 2], ">u4").tobytes() + bytes(range(8))
KINDS = (
    Kind("net.onnx", lambda path: pc.export(pc.capture(_module(), INPUT_SHAPE), path), pc.load),
    Kind("net.safetensors", lambda path: pc.save(_module(), path, ARCHITECTURE, INPUT_SHAPE), pc.load),
    Kind("net.npz", lambda path: np.savez(path, **_arrays()), _read_model_npz),
    Kind("packed.npz", lambda path: np.savez_compressed(path, x=np.ones((5, 4)), y=np.arange(5)), read_arrays),
    Kind("state.pt", lambda path: torch.save(_state(), path), read_weights),
    Kind("old.pt", lambda path: torch.save(_state(), path, _use_new_zipfile_serialization=False), read_weights),
    Kind("index.json", _text(_index_text()), _read_index),
    Kind("first.vnnlib", _text(FIRST), read_property),
    Kind("second.vnnlib", _text(SECOND), read_property),
    Kind("first.vnnlib.gz", _bytes(gzip.compress(FIRST.encode(), mtime=0)), read_property),
    Kind("recipe.toml", _text(to_toml(library()["mnist-fc1-linf-45ep-c-per"])), lambda path: read_recipe(str(path))),
    Kind("record.json", _text(json.dumps(RECORD)), lambda path: gather([path])),
    Kind("metrics.jsonl", _text('{"epoch": 1, "loss": 0.5}\n{"epoch": 2, "loss": [1, 2]}\n'), read_metrics),
    Kind("state.json", _checkpoint, lambda path: RunFolder(path.parent).read()),
    Kind("a.samples.parquet", _samples, read_samples),
    Kind("images.idx", _bytes(IDX), lambda path: data.parse_idx(limits.read_bytes(path), 3)),
    Kind("images.idx.gz", _bytes(gzip.compress(IDX, mtime=0)), lambda path: data.parse_idx(limits.read_bytes(path), 3)),
)


@cache
def originals() -> dict[Kind, bytes]:
    """A valid small file of each kind."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            kind.write(Path(folder) / kind.file)
            found[kind] = (Path(folder) / kind.file).read_bytes()
    return found


def mutants(seed: int) -> Iterator[Mutant]:
    """Damaged files, one of each kind in turn, without end."""
    chance = random.Random(seed)
    while True:
        for kind, content in originals().items():
            yield Mutant(kind, damaged(content, chance))


def damaged(content: bytes, chance: random.Random) -> bytes:
    """One to four changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        content = chance.choice(CHANGES)(content, chance)
    return content


def readable() -> tuple[Kind, ...]:
    """The kinds whose readers are installed."""
    return KINDS if _has_second() else tuple(kind for kind in KINDS if kind.file != "second.vnnlib")


def _flip(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + bytes([chance.randrange(256)]) + content[place + 1 :]


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _move(content: bytes, chance: random.Random) -> bytes:
    """A piece of the file put in the place of another."""
    begin, place = (chance.randrange(len(content) + 1) for _ in range(2))
    size, gone = (chance.choice((0, 1, 4, 8, 30, 200)) for _ in range(2))
    return content[:place] + content[begin : begin + size] + content[place + gone :]


def _extreme(content: bytes, chance: random.Random) -> bytes:
    """A binary number made extreme: sizes, offsets, varints."""
    place = chance.randrange(len(content) + 1)
    value = chance.choice((b"\0", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x40"))
    width = chance.choice((1, 2, 4, 8))
    value = chance.choice((value, (value * width)[:width], value.rjust(width, b"\0"), value.ljust(width, b"\0")))
    return content[:place] + value + content[place + len(value) :]


def _number(content: bytes, chance: random.Random) -> bytes:
    """A number written in digits, made extreme; in a header of fixed length what follows it gives way."""
    found = list(re.finditer(rb"\d+", content))
    if not found:
        return content
    match, text = chance.choice(found), chance.choice(NUMBERS)
    behind = match.end() + (max(0, len(text) - len(match[0])) if chance.random() < 0.5 else 0)
    return content[: match.start()] + text + content[behind:]


def _nest(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + chance.choice((b"[", b"(", b'{"a":', b"a.", b"(and ")) * 3000 + content[place:]


def _unpacked(content: bytes, chance: random.Random) -> bytes:
    """What an archive or a packed file holds is damaged, and packed again."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        return _rezipped(content, chance)
    try:
        return gzip.compress(chance.choice(CHANGES[:-1])(gzip.decompress(content), chance), mtime=0)
    except (OSError, EOFError, ValueError, gzip.zlib.error):
        return _flip(content, chance)


def _rezipped(content: bytes, chance: random.Random) -> bytes:
    made = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w", chance.choice((0, 8))) as new:
            chosen = chance.randrange(len(old.infolist()))
            for number, member in enumerate(old.infolist()):
                held = old.read(member)
                new.writestr(member.filename, chance.choice(CHANGES[:-1])(held, chance) if number == chosen else held)
    except Exception:  # the archive itself was damaged before
        return _flip(content, chance)
    return made.getvalue()


NUMBERS = (
    b"-1",
    b"0",
    b"-7",
    b"99999",
    b"999999999",
    b"9" * 19,
    b"9" * 400,
    b"9" * 5000,
    b"1e999",
    b"1e999999999",
    b"0.5",
)
CHANGES = (_flip, _cut, _move, _extreme, _number, _number, _nest, _unpacked)


def refusal(mutant: Mutant, folder: Path) -> str | None:
    """Why a reader refuses a mutant, in its own words; None if it reads it. Other errors than ours come through."""
    path = folder / mutant.kind.file
    path.write_bytes(mutant.content)
    try:
        mutant.kind.read(path)
    except pc.PolycertError as error:
        return str(error)
    return None


def _late(*_: object) -> None:
    raise TimeoutError("took too long")


def _bound_memory(more: int) -> None:
    """What the process has now, and so many bytes more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def hunt(seed: int, seconds: float, *, memory: int = 2**30, patience: int = 5) -> dict[str, Any]:
    """Read mutants for so long: how many of each kind were read and refused, and what went wrong."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kept = readable()
    refused: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    signal.signal(signal.SIGALRM, _late)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _checkpoint(folder / "state.json")
        for kind, content in originals().items():
            if kind in kept:
                assert refusal(Mutant(kind, content), folder) is None, kind.file
        _bound_memory(memory)
        end = time.monotonic() + seconds
        for number, mutant in enumerate(mutants(seed)):
            if time.monotonic() > end:
                break
            if mutant.kind not in kept:
                continue
            signal.alarm(patience)
            try:
                why = refusal(mutant, folder)
                refused[mutant.kind.file] += why is not None
                if why is not None and (len(why) > LONGEST + 1 or "\n" in why):
                    wrong.append(f"{number} {mutant.kind.file}: no sentence: {why[:300]!r}")
            except BaseException as error:  # panics of other languages are no Exceptions
                wrong.append(f"{number} {mutant.kind.file}: {type(error).__name__}: {str(error)[:300]}")
            signal.alarm(0)
            seen[mutant.kind.file] += 1
    return {"seen": seen, "refused": refused, "wrong": wrong}


def _has_second() -> bool:
    try:
        import vnnlib  # noqa: F401
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    found = hunt(int(sys.argv[1]), float(sys.argv[2]))
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # what torch does at its end may need more memory than is left
