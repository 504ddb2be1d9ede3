"""Weights to begin a run with: a published model's, or a file's."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from polycert import zoo
from polycert.errors import PolycertError
from polycert.loading import load_module


def begin_with(module: nn.Module, start: str) -> None:
    """Copy the weights of a model of the same architecture into the module.

    Args:
        module: what is going to be trained.
        start: a name in the zoo, or a file that `load_module` reads.
    """
    given = load_module(_file(start)).module.state_dict()
    wanted = module.state_dict()
    if {key: value.shape for key, value in given.items()} != {key: value.shape for key, value in wanted.items()}:
        raise PolycertError(
            f"recipe: key 'start': the weights of {start!r} do not fit the architecture: start from a model of the same"
        )
    module.load_state_dict(given)


def _file(start: str) -> str | Path:
    if Path(start).is_file():
        return start
    if start not in zoo.names():
        raise PolycertError(
            f"recipe: key 'start': {start!r} is neither a file nor a model of the zoo: polycert zoo lists those"
        )
    found = zoo.entry(start)
    found.verify()
    return found.path()
