"""Records say how they came about: in every frame, from Python and from the command line alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import polycert as pc
from polycert.cli.app import app
from polycert.graph.fingerprint import network_digest
from polycert.models.architectures import build
from polycert.records.certificates import Certificates, Radii
from polycert.records.provenance import Provenance, box_text

ARCHITECTURE = [
    {"type": "linear", "in_features": 3, "out_features": 8},
    {"type": "relu"},
    {"type": "linear", "in_features": 8, "out_features": 3},
]
BALL = pc.Ball(2.0, 0.05, 0.0, 1.0)
ORIGIN = {"norm": "2", "box": "[0, 1]", "version": pc.__version__}
Ask = Callable[[pc.Network, np.ndarray, np.ndarray], Provenance]
# Each command with its options, the same in Python, and what its records say besides `ORIGIN`.
KINDS: dict[str, tuple[tuple[str, ...], Ask, dict[str, object]]] = {
    "certify": (
        ("--eps", "0.05", "--relaxation", "adaptive"),
        lambda net, x, y: pc.certify(net, x, y, BALL, relaxation="adaptive"),
        {"method": "crown", "relaxation": "adaptive", "rigorous": True},
    ),
    "radius": (
        ("--upper", "0.4", "--tolerance", "1e-3", "--fast"),
        lambda net, x, y: pc.largest_radius(
            net, x, y, norm=2.0, upper=0.4, low=0.0, high=1.0, tolerance=1e-3, rigorous=False
        ),
        {"method": "crown", "rigorous": False, "strategy": "root", "upper": 0.4, "tolerance": 1e-3},
    ),
    "attack": (
        ("--eps", "0.05", "--steps", "3", "--restarts", "2", "--seed", "5"),
        lambda net, x, y: pc.attack(net, x, y, BALL, steps=3, restarts=2, seed=5),
        {"steps": 3, "restarts": 2, "seed": 5},
    ),
    "verify": (
        ("--eps", "0.05", "--workers", "1", "--timeout", "30"),
        lambda net, x, y: pc.verify(net, x, y, BALL, timeout=30),
        {"timeout": 30.0, "solver": "highs"},
    ),
}


@pytest.fixture
def samples(tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    torch.manual_seed(0)
    pc.save(build(ARCHITECTURE), tmp_path / "net.safetensors", ARCHITECTURE, (3,))
    rng = np.random.default_rng(0)
    x, y = rng.random((6, 3), dtype=np.float32), rng.integers(0, 3, 6)
    np.savez(tmp_path / "samples.npz", x=x, y=y)
    return x, y


@pytest.mark.parametrize("name", KINDS)
def test_saving_and_the_command_line_write_the_same(
    name: str, samples: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    options, ask, asked = KINDS[name]
    model = tmp_path / "net.safetensors"
    ask(pc.load(model), *samples).save(tmp_path / "saved.json")
    command = [name, str(model), "--inputs", str(tmp_path / "samples.npz"), "--low", "0", "--high", "1", "--norm", "2"]
    done = CliRunner().invoke(app, [*command, *options, "--out", str(tmp_path / "out.json")])
    assert done.exit_code == 0, done.output
    saved, out = (json.loads((tmp_path / file).read_text()) for file in ("saved.json", "out.json"))
    for row in (*saved, *out):
        row.pop("seconds", None)
    assert [list(row) for row in out] == [list(row) for row in saved]
    assert out == saved
    assert saved[0] == {**saved[0], **ORIGIN, **asked, "network": network_digest(pc.load(model))}


def test_bounds_say_how_they_came_about() -> None:
    net = nn.Linear(3, 2)
    found = pc.bounds(net, torch.rand(2, 3), replace(BALL, low=None), rigorous=True)
    lower, upper = found
    frame = found.to_frame()
    assert list(zip(frame["index"], frame["output"], strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert frame["lower"].tolist() == lower.flatten().tolist()
    assert frame["upper"].tolist() == upper.flatten().tolist()
    assert set(frame["box"]) == {"[-inf, 1]"}
    assert frame["network"][0] == network_digest(pc.capture(net, (3,)))
    assert pc.bounds(net, torch.rand(2, 3), BALL).network is None  # a step of a training, perhaps


def test_an_evaluation_says_how_it_came_about(samples: tuple[np.ndarray, np.ndarray]) -> None:
    net = pc.capture(build(ARCHITECTURE), (3,))
    found = pc.evaluate(net, *samples, BALL)
    assert found.record == {**found.record, **ORIGIN, "network": network_digest(net), "rigorous": True}
    for name in (*ORIGIN, "network", "eps"):
        assert set(found.to_frame()[name]) == {found.record[name]}


@pytest.mark.parametrize("kind", [Certificates, Radii])
def test_nothing_cannot_be_joined(kind: type[Certificates] | type[Radii]) -> None:
    with pytest.raises(pc.PolycertError, match="no samples"):
        kind.join([])


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.0, 1.0, "[0, 1]"),
        (None, None, "[-inf, inf]"),
        (0.1, torch.tensor([1.0, 1.0]), "[0.1, 1]"),
        (np.array([0.0, 0.5]), 1 / 3, "[per feature, 0.3333333333333333]"),
    ],
)
def test_a_box_is_told_with_all_digits(low: pc.Ball, high: pc.Ball, text: str) -> None:
    assert box_text(low, high) == text  # type: ignore[arg-type]


def _in_place(module: nn.Linear) -> None:
    with torch.no_grad():
        module.weight[0, 0] += 1


def _by_data(module: nn.Linear) -> None:
    module.weight.data[0, 0] += 1


def _swapped(module: nn.Linear) -> None:
    with torch.no_grad():
        module.weight.copy_(module.weight.flip(0))


def _another(module: nn.Linear) -> None:
    module.weight = nn.Parameter(module.weight.detach().flip(0))


@pytest.mark.parametrize("change", [_in_place, _by_data, _swapped, _another])
def test_the_digest_is_that_of_the_weights_as_they_are(change: Callable[[nn.Linear], None]) -> None:
    module = nn.Linear(3, 2)
    net, before = pc.capture(module, (3,)), module.weight.detach().clone()
    first = network_digest(net)
    assert network_digest(net) == first == network_digest(pc.capture(module, (3,)))
    change(module)
    second = network_digest(net)
    assert second == network_digest(pc.capture(module, (3,))) != first
    module.weight.data.copy_(before)
    assert network_digest(net) == first


def test_an_expanded_weight_of_one_number_has_a_digest() -> None:
    module = nn.Linear(1, 1)
    module.weight = nn.Parameter(torch.tensor(0.5).expand(1, 1))
    assert pc.bounds(module, torch.rand(2, 1), BALL, rigorous=True).network == network_digest(pc.capture(module, (1,)))
