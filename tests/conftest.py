"""Shared fixtures: where other people's checkpoints are, one thread for repeatable timing, short ascents."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from polycert.bounding import alpha_crown


def find_shared() -> Path | None:
    """The folder with the released checkpoints: `$POLYCERT_SHARED`, or `shared` beside the project."""
    given = os.environ.get("POLYCERT_SHARED")
    for candidate in [Path(given)] if given else [Path(__file__).parents[2] / "shared"]:
        if (candidate / "zoo" / "index.json").is_file():
            return candidate
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cases of the registry that take long run with the slow tests."""
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            case = item.callspec.params.get("case")
            if getattr(case, "slow", False):
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def shared() -> Path:
    folder = find_shared()
    if folder is None:
        pytest.skip("the released checkpoints are not here (set POLYCERT_SHARED)")
    return folder


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One thread: results repeat, and two test runs share a machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slopes are sound after any number of steps: the laws of `alpha-crown` need only a few."""
    monkeypatch.setattr(alpha_crown, "STEPS", 2)
