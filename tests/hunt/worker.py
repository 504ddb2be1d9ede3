"""Cases are tried in a process of their own: one that dies, or never ends, is noticed and replaced."""

from __future__ import annotations

import multiprocessing as mp
import os
import resource
import time
import warnings
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.hunt.kind import Kind
from tests.hunt.outcome import CRASH, HANG, Outcome, try_case

MEMORY = 6 * 2**30  # address space that a worker may take on top of what it starts with
CASES = 3000  # after so many a fresh worker, so that nothing piles up
PATIENCE = 6  # times a kind's seconds by the clock on the wall, should the machine be busy


class Worker:
    """A process that tries one case at a time."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Any = None
        self._tried = 0

    def run(self, kind: Kind, case: Any) -> Outcome:
        """What comes of a case; a hang is more than `kind.seconds` of computing."""
        if self._process is None or self._tried >= CASES:
            self._start()
        self._tried += 1
        begin, computed = time.monotonic(), self._computed()
        try:
            self._pipe.send((kind, case))
            while not self._pipe.poll(0.5):
                if not self._process.is_alive():
                    raise EOFError
                waited = time.monotonic() - begin
                if self._computed() - computed > kind.seconds or waited > PATIENCE * kind.seconds:
                    self.close()
                    return Outcome(HANG, f"no answer within {kind.seconds} seconds", Counter())
            outcome: Outcome = self._pipe.recv()
            return outcome
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            self.close()
            return Outcome(CRASH, f"the interpreter died with exit status {code}", Counter())

    def close(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process = None

    def _start(self) -> None:
        self.close()
        context = mp.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=False)
        self._process.start()
        theirs.close()
        self._pipe.recv()  # it has imported all it needs: the clock of the first case starts here
        self._tried = 0

    def _computed(self) -> float:
        """Seconds of processor time that the worker has taken, where the system tells."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _serve(pipe: Connection) -> None:
    import torch

    import tests.hunt.kinds  # noqa: F401 (so that the first case does not pay for it)

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    _bound_memory()
    pipe.send("ready")
    while True:
        try:
            kind, case = pipe.recv()
        except EOFError:
            return
        pipe.send(try_case(kind, case))


def _bound_memory() -> None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
