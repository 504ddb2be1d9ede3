"""Exit statuses of exceptions, 2 for bad usage, 1 for failure, 130 for Ctrl-C, and the sentence printed for each."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

from polycert.errors import PolycertError, PolycertWarning

FAILURE, BAD_USAGE, INTERRUPTED = 1, 2, 130
NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
)  # in messages of torch, by device and system


class BadUsage(PolycertError):
    """The command line itself is wrong."""


@contextmanager
def usage() -> Iterator[None]:
    """Turn an error of the library in this block into an error of the command line."""
    try:
        yield
    except PolycertError as error:
        raise BadUsage(str(error)) from error


def guard(run: Callable[[], None], *, debug: bool) -> None:
    """Run a command; an exception ends it with one sentence instead of a traceback."""
    try:
        with nullcontext() if debug else _hushed():
            run()
    except BadUsage as error:
        _fail(str(error), BAD_USAGE, debug)
    except PolycertError as error:
        _fail(str(error), FAILURE, debug)
    except KeyboardInterrupt:
        _fail("interrupted before anything was finished", INTERRUPTED, debug)
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise  # typer ends quietly on these
    except Exception as error:
        _fail(_explain(error), FAILURE, debug)


@contextmanager
def _hushed() -> Iterator[None]:
    """Silence the warnings and logs of other libraries, and print each warning of polycert as one line.

    Without this, torch logs a traceback for every model that it cannot trace.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", PolycertWarning)
            warnings.showwarning = lambda message, *_, **__: tell(f"warning: {message}", style="yellow")
            yield
    finally:
        logging.disable(before)


def tell(message: str, style: str = "") -> None:
    """Print one line on stderr, however long."""
    Console(stderr=True, highlight=False).print(Text(" ".join(message.split()), style=style), soft_wrap=True)


def _fail(message: str, status: int, debug: bool) -> NoReturn:
    """Print an error and end the command with its status."""
    if debug:
        Console(stderr=True, highlight=False).print(Text(traceback.format_exc()), soft_wrap=True)
    tell(f"error: {message}", style="red")
    raise typer.Exit(status)


def _explain(error: Exception) -> str:
    """Return a sentence about an exception that is no `PolycertError`."""
    text = str(error).strip()
    if isinstance(error, MemoryError) or any(words in text.lower() for words in NO_MEMORY):
        return "out of memory: try a smaller --batch-size or --memory"
    if isinstance(error, OSError):
        return f"{error.strerror or text}{f': {error.filename}' if error.filename else ''}"
    first = text.splitlines()[0] if text else "no message"
    return f"unexpected {type(error).__name__}: {first} (--debug shows where)"
