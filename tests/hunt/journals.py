"""Journals and slices on disk: damaged, edited, mixed up, cut off by kill -9, written by two processes at once.

What is taken from a file must be what a run without one finds; whole lines are not lost, changed ones are not believed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import polycert as pc
from polycert.evaluation.measurements import Measurements, measure
from polycert.evaluation.settings import EvaluationSettings, make_question
from polycert.evaluation.store import MeasurementStore
from polycert.models import architectures
from tests.hunt.kind import claimed, note

SAMPLES = 6
SHAPE = (1, 3, 4)
BALL = pc.Ball(float("inf"), 0.3, 0.0, 1.0)
ARCHITECTURE = architectures.fc1(SHAPE, classes=3, hidden=8)
REFUSALS = ("is no journal of verify", "holds results about another network")
IN_USE = "another process is writing"
COMMAND_SECONDS = 8.0  # that the command takes from its start to its end, at most


class Journals:
    """Files that `verify` and `evaluate` take up again."""

    name = "journals"
    seconds = 60.0

    def generate(self, rng: random.Random) -> Any:
        """What is done to a file."""
        what = rng.choices(tuple(WAYS), (30, 6, 2, 3, 6, 0.15))[0]
        if what == "damage":
            return {"what": what, "changes": [_drawn(rng) for _ in range(rng.choice((1, 1, 2, 3, 5)))]}
        if what in ("kill", "command"):
            count = rng.choice((1, 2, 4)) if what == "kill" else 1
            return {"what": what, "delays": [round(rng.random(), 4) for _ in range(count)]}
        if what == "parts":
            return {"what": what, "change": rng.choice(PART_CHANGES), "place": rng.random(), "byte": rng.randrange(256)}
        return {"what": what, "delay": round(rng.random(), 4)}

    def check(self, case: Any) -> str | None:
        """In a folder of its own."""
        note(case["what"])
        with tempfile.TemporaryDirectory() as folder:
            return WAYS[case["what"]](case, Path(folder))

    def shrink(self, case: Any) -> Iterator[Any]:
        """Fewer changes, fewer kills."""
        for name in ("changes", "delays"):
            held = case.get(name, [])
            if len(held) > 1:
                yield from ({**case, name: held[:k] + held[k + 1 :]} for k in range(len(held)))


# --- what is asked -------------------------------------------------------------------------------------------------


@cache
def module(changed: bool = False) -> nn.Sequential:
    """A small network; `changed` in one weight, in its last digit."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        made = architectures.build(ARCHITECTURE).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2)
        if changed:
            weight = next(iter(made.parameters()))
            weight.view(-1)[7] = torch.nextafter(weight.view(-1)[7], torch.tensor(9.0))
    return made


@cache
def network(changed: bool = False) -> pc.Network:
    """The same, captured."""
    return pc.capture(module(changed), SHAPE)


@cache
def samples() -> Tensor:
    """Inputs of which some are robust."""
    return torch.rand(SAMPLES, *SHAPE, generator=torch.Generator().manual_seed(2))


def run(path: Path | None, *, net: pc.Network | None = None, ball: pc.Ball = BALL) -> pc.Verdicts:
    """`verify`, sample by sample."""
    return pc.verify(net or network(), samples(), None, ball, timeout=30, batch_size=1, journal=path)


@cache
def truth() -> tuple[str, ...]:
    """Verdicts of a run without a journal."""
    return run(None).status


@cache
def journals() -> dict[str, bytes]:
    """Whole journals: of the question, of another network, radius and norm."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        asked: dict[str, dict[str, Any]] = {
            "own": {},
            "network": {"net": network(changed=True)},
            "radius": {"ball": BALL.with_eps(0.01)},
            "norm": {"ball": pc.Ball(2, 0.3, 0.0, 1.0)},
        }
        for name, options in asked.items():
            path = Path(folder) / name
            run(path, **options)
            found[name] = path.read_bytes()
    found["version"] = found["own"].replace(b'"polycert": "', b'"polycert": "9', 1)
    return found


# --- damage --------------------------------------------------------------------------------------------------------

Lines = list[bytes]


def _drawn(rng: random.Random) -> list[Any]:
    return [rng.choice(tuple(CHANGES)), rng.randrange(10**6), rng.randrange(10**6)]


def _edit(lines: Lines, a: int, b: int) -> None:
    """Another verdict, or another sample's verdict, in the text of a line."""
    pairs = (
        (b'"robust"', b'"falsified"'),
        (b'"falsified"', b'"robust"'),
        (b'"rigorous"', b'"solver"'),
        (b"null", b'"rigorous"'),
        (b'"stage": "', b'"stage": "x'),
        (b'"nodes": ', b'"nodes": 1'),
        (b'"seal": "', b'"seal": "0'),
    )
    old, new = pairs[b % len(pairs)]
    k = a % len(lines)
    lines[k] = lines[k].replace(old, new)


def _move_sample(lines: Lines, a: int, b: int) -> None:
    """The verdict of one sample under the name of another."""
    first, second = a % len(lines), b % len(lines)
    lines[first] = lines[first][:90].replace(lines[first][12:76], lines[second][12:76]) + lines[first][90:]


def _foreign(lines: Lines, a: int, b: int) -> None:
    source = journals()[("network", "radius", "norm", "version")[b % 4]].splitlines(keepends=True)
    lines.insert(1 + a % len(lines), source[1 + (b // 4) % (len(source) - 1)])


def _foreign_header(lines: Lines, a: int, b: int) -> None:
    lines[0] = journals()[("network", "norm", "version")[b % 3]].splitlines(keepends=True)[0]


def _garbage(lines: Lines, a: int, b: int) -> None:
    words = (
        b"\n",
        b"garbage\n",
        b"\0" * 500 + b"\n",
        b"{}\n",
        b"[1]\n",
        b'{"seal": "%s"}\n' % (b"0" * 64),
        b"x" * 99_999,
    )
    lines.insert(1 + a % len(lines), words[b % len(words)])


def _cut(lines: Lines, a: int, b: int) -> None:
    whole = b"".join(lines)
    lines[:] = whole[: a % (len(whole) + 1)].splitlines(keepends=True) or [b""]


def _flip(lines: Lines, a: int, b: int) -> None:
    whole = bytearray(b"".join(lines))
    if whole:
        whole[a % len(whole)] = b % 256
    lines[:] = bytes(whole).split(b"\n")
    lines[:] = [line + b"\n" for line in lines[:-1]] + [lines[-1]]


def _swap(lines: Lines, a: int, b: int) -> None:
    k, j = a % len(lines), b % len(lines)
    lines[k], lines[j] = lines[j], lines[k]


def _splice(lines: Lines, a: int, b: int) -> None:
    """The beginning of a line with the end of another."""
    k, j = a % len(lines), b % len(lines)
    lines[k] = lines[k][: b % (len(lines[k]) + 1)] + lines[j][b % (len(lines[j]) + 1) :]


CHANGES: dict[str, Callable[[Lines, int, int], object]] = {
    "cut": _cut,
    "flip": _flip,
    "swap": _swap,
    "repeat": lambda lines, a, b: lines.insert(b % (len(lines) + 1), lines[a % len(lines)]),
    "drop": lambda lines, a, b: lines.pop(a % len(lines)) if len(lines) > 1 else None,
    "edit": _edit,
    "sample": _move_sample,
    "splice": _splice,
    "foreign": _foreign,
    "header": _foreign_header,
    "garbage": _garbage,
}


def _damage(case: Any, folder: Path) -> str | None:
    lines = journals()["own"].splitlines(keepends=True)
    for name, a, b in case["changes"]:
        CHANGES[name](lines, a, b)
    path = folder / "journal"
    path.write_bytes(b"".join(lines))
    return _resumed(path)


def _resumed(path: Path) -> str | None:
    """Take a file up again: whole lines are taken over, nothing else is, and all verdicts are right."""
    own = journals()["own"].splitlines(keepends=True)
    before = path.read_bytes() if path.exists() else b""
    header, *rest = [line + b"\n" for line in before.split(b"\n")[:-1]] or [b""]
    whole = set(rest) if header == own[0] else set()
    try:
        found = run(path)
    except pc.PolycertError as error:
        if not own[0].startswith(before) and header != own[0] and any(words in str(error) for words in REFUSALS):
            return None if path.read_bytes() == before else "a file was refused, and yet changed"
        return f"refused: {error}"
    if found.status != truth():
        return f"with the journal the verdicts are {found.status}, without it {truth()}"
    for k, decision in enumerate(found.decisions):
        held = any(_names()[k] in line for line in whole if line in own or line in _written)
        if decision.resumed != held:
            said = "is lost" if held else "was changed, and is believed"
            return f"what the journal says about sample {k} {said}"
        if held:
            claimed()
    again = run(path)
    if again.status != truth() or not all(decision.resumed for decision in again.decisions):
        return "a second run does not find all verdicts that the first one has written"
    return None


_written: set[bytes] = set()  # lines that runs of this process were seen to write


@cache
def _names() -> list[bytes]:
    from polycert.verification.question import VerificationSettings as Effort
    from polycert.verification.verify import ask

    asked = ask(network(), samples(), None, BALL, Effort())
    return [name.encode() for name in asked.sample_fingerprints()]


# --- processes -----------------------------------------------------------------------------------------------------


def _child(work: Callable[[], object]) -> int:
    """A copy of this process that does some work; its exit status is 3 after a sentence, 4 after anything else."""
    process = os.fork()
    if process:
        return process
    try:
        work()
        os._exit(0)
    except pc.PolycertError as error:
        os._exit(3 if IN_USE in str(error) else 4)
    except BaseException:
        os._exit(4)


def _end(process: int) -> int:
    """Its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@cache
def _duration() -> float:
    truth()
    begin = time.monotonic()
    run(None)
    return time.monotonic() - begin


def _remember(path: Path) -> None:
    content = path.read_bytes() if path.exists() else b""
    _written.update(line + b"\n" for line in content.split(b"\n")[:-1])


def _kill(case: Any, folder: Path) -> str | None:
    """Killed at random moments, again and again; each time nothing that was on disk is gone."""
    path = folder / "journal"
    longest = 1.3 * _duration()
    journals(), _names()
    for delay in case["delays"]:
        _remember(path)
        process = _child(lambda: run(path))
        time.sleep(delay * longest)
        before = path.read_bytes() if path.exists() else b""
        os.kill(process, signal.SIGKILL)
        if _end(process) == 4:
            return "a run that takes up a killed one fails"
        if not (path.read_bytes() if path.exists() else b"").startswith(before[: before.rfind(b"\n") + 1]):
            return "a line that was on disk is gone"
    _remember(path)
    return _resumed(path)


def _two(case: Any, folder: Path) -> str | None:
    """Two processes at once: each is right, or says that the other is at work."""
    path = folder / "journal"
    journals(), _names(), _duration()
    first = _child(lambda: _right(path))
    time.sleep(case["delay"] * _duration())
    second = _child(lambda: _right(path))
    ends = sorted((_end(first), _end(second)))
    if ends not in ([0, 0], [0, 3]):
        return f"of two processes at once, the exit statuses are {ends}"
    claimed()
    _remember(path)
    return _resumed(path)


def _right(path: Path) -> None:
    if run(path).status != truth():
        raise ValueError("other verdicts")


def _held(case: Any, folder: Path) -> str | None:
    """A second process gets a sentence, and changes nothing, while the first one is at work."""
    path = folder / "journal"
    journals(), _names()
    begun, sure = os.pipe()

    def slow() -> None:
        def stop(done: int, total: int) -> None:
            if done == 1 + int(case["delay"] * (SAMPLES - 1)):
                os.write(sure, b"x")
                time.sleep(60)

        pc.verify(network(), samples(), None, BALL, timeout=30, batch_size=1, journal=path, progress=stop)

    process = _child(slow)
    try:
        os.read(begun, 1)
        before = path.read_bytes()
        try:
            run(path)
            wrong = "a second process works on a journal that another one is writing"
        except pc.PolycertError as error:
            wrong = "" if IN_USE in str(error) else f"a second process is told: {error}"
        wrong = wrong or ("" if path.read_bytes() == before else "a second process changes the journal")
    finally:
        os.kill(process, signal.SIGKILL)
        _end(process)
        os.close(begun)
        os.close(sure)
    _remember(path)
    return wrong or _resumed(path)


def _command(case: Any, folder: Path) -> str | None:
    """`polycert verify` itself, killed at a random moment."""
    pc.save(module(), folder / "net.safetensors", ARCHITECTURE, SHAPE)
    np.savez(folder / "samples.npz", x=samples().numpy())
    words = ["verify", "net.safetensors", "--inputs", "samples.npz", "--eps", "0.3", "--low", "0", "--high", "1"]
    more = ["--workers", "1", "--batch-size", "1", "--out", "records.csv"]
    begin = [sys.executable, "-m", "polycert", *words, *more]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    process = subprocess.Popen(begin, **quiet)  # type: ignore[call-overload]
    time.sleep(case["delays"][0] * COMMAND_SECONDS)
    process.kill()
    process.wait()
    path = folder / "records.csv.journal"
    _remember(path)
    return _resumed(path)


# --- slices of evaluate --------------------------------------------------------------------------------------------

PART_CHANGES = ("cut", "flip", "network", "samples", "empty", "nothing")


def _task(changed: bool = False, first: int = 0) -> Any:
    x = samples()[first : first + 4]
    settings = EvaluationSettings(upper=0.3, steps=2, restarts=1, tolerance=0.05)
    return make_question(network(changed), x, network()(x).argmax(1), BALL, settings)


def _stage(text: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""


@cache
def _measured() -> Measurements:
    return measure(_task(), _stage)


def _parts(case: Any, folder: Path) -> str | None:
    """A slice that is not as it was written is measured again."""
    store = MeasurementStore(folder / "row.parts")
    store.measured(_task(), _stage)
    (path,) = (folder / "row.parts").iterdir()
    before = path.read_bytes()
    change, place = case["change"], int(case["place"] * len(before))
    if change in ("network", "samples"):
        other = MeasurementStore(folder / "other.parts")
        other.measured(_task(changed=change == "network", first=2 * (change == "samples")), _stage)
        (foreign,) = (folder / "other.parts").iterdir()
        if foreign.name == path.name:
            return f"slices of another {change} have the same name"
        shutil.copy(foreign, path)
    else:
        flipped = before[:place] + bytes([case["byte"]]) + before[place + 1 :]
        path.write_bytes({"cut": before[:place], "flip": flipped, "empty": b"", "nothing": before}[change])
    found = store.measured(_task(), _stage)
    if path.read_bytes() == before and change == "nothing":
        claimed()
        if not found.resumed:
            return "a whole slice is measured again"
    for name, values in _measured().columns.items():
        if not np.array_equal(values, found.columns[name], equal_nan=values.dtype.kind == "f"):
            return f"a damaged slice is believed: its {name} is not what is measured"
    return None


WAYS: dict[str, Callable[[Any, Path], str | None]] = {
    "damage": _damage,
    "kill": _kill,
    "two": _two,
    "held": _held,
    "parts": _parts,
    "command": _command,
}

KINDS = (Journals(),)
