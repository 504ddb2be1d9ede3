"""The page on extending runs as it stands, and what it adds is held to the laws that hold for every rule."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

import polycert as pc
from polycert.bounding.methods import METHODS
from polycert.models.architectures import build
from polycert.rules import RULES, Rule
from polycert.rules.examples import mlp
from polycert.rules.registry import rules, scratch
from tests.helpers.cases import NORMS, PAIRS, ball, ready
from tests.hunt.oracle import Array, clamp, elementwise
from tests.hunt.relaxations import MADE, SHAPE, Relaxations
from tests.rules import test_invariants as laws

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
Names = dict[str, Any]


@pytest.fixture(scope="module")
def page() -> Iterator[Names]:
    """What the page's code defines, while its rules are known."""
    before = dict(RULES)
    names: Names = {}
    with scratch():
        for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
            exec(compile(block, "docs/extending.md", "exec"), names)
        names["before"] = before
        names["added"] = [found for found in rules() if found not in before.values()]
        yield names
        METHODS.pop("crown-forward")
    assert before == RULES


def test_the_page_adds_what_it_says(page: Names) -> None:
    added: list[Rule] = page["added"]
    assert [rule.family for rule in added] == ["piecewise linear", "moves", "maximum", "bump", "smooth"]
    assert all(rule.examples for rule in added)


def test_what_the_page_adds_is_sound(page: Names) -> None:
    for number, rule in enumerate(page["added"]):
        for case in rule.examples:
            used = {str(call.target) for call in ready(case).net._needed if call.op == "call_function"}
            assert used & set(rule.targets)
            laws.test_pull_is_the_adjoint_of_push(case)
            laws.test_absolute_has_the_matrix_of_absolute_values(case)
            for turn, pair in enumerate(PAIRS):
                norm, dtype = NORMS[(turn + number) % len(NORMS)], (torch.float32, torch.float64)[turn % 2]
                laws.assert_sound(case, dtype, pair, norm, turn % 3 > 0)


def _hardswish(z: Any) -> Any:
    return z * min(max(z + 3, mpmath.mpf(0)), mpmath.mpf(6)) / 6


def _clipped(values: Array) -> Array:
    return clamp(values, -0.5, 0.8)


@pytest.mark.parametrize("name", ["Hardswish", "Sin", "Clip"])
def test_lines_of_new_activations_hold_true_values(page: Names, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the hunt's own judge, on nasty intervals and with any slopes."""
    made = page[name](SHAPE, -0.5, 0.8) if name == "Clip" else page[name](SHAPE)
    truth = {"Hardswish": elementwise(_hardswish), "Sin": elementwise(mpmath.sin), "Clip": _clipped}[name]
    monkeypatch.setitem(MADE, name, lambda _: (made, truth))
    rng, kind = random.Random(5), Relaxations()
    for _ in range(150):
        case = {**kind.generate(rng), "op": name}
        assert kind.check(case) is None, case


@pytest.mark.parametrize("name", ["hardswish", "sin"])
def test_new_activations_go_through_files(page: Names, name: str, tmp_path: Path) -> None:
    (case,) = (case for rule in page["added"] for case in rule.examples if case.name == name)
    module, net, x, _ = ready(case, torch.float32)
    pc.export(net, tmp_path / "net.onnx")
    back = pc.load(tmp_path / "net.onnx")
    assert page[name.title()] in {type(node.op) for node in back.bind().nodes}
    torch.testing.assert_close(back(x), module(x))


def test_a_declared_layer_is_one_of_architectures(page: Names) -> None:
    net = pc.capture(mlp(build([{"type": "hardswish"}])), (5,))
    assert page["Hardswish"] in {type(node.op) for node in net.bind().nodes}


def test_bounds_of_new_activations_have_the_right_gradient(page: Names) -> None:
    for name in ("hardswish", "sin", "clip"):
        (case,) = (case for rule in page["added"] for case in rule.examples if case.name == name)
        module, net, x, _ = ready(case)
        parameters = tuple(module.parameters())

        def value(*_: Tensor, net: pc.Network = net, x: Tensor = x) -> Tensor:
            return pc.bounds(net, x, ball(2), method="crown").lower.sum()

        assert torch.autograd.gradcheck(value, parameters, eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)


def test_pieces_are_what_the_complete_certifier_needs(page: Names) -> None:
    """It decides a clip as it decides the two ReLUs that polycert makes of one."""
    module = mlp(torch.nn.Hardtanh(-0.5, 0.8)).double()
    x = torch.rand(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ask = partial(pc.verify, x=x, y=None, ball=pc.Ball(math.inf, 0.1, 0.0, 1.0), timeout=20)
    mine = ask(pc.capture(module, (5,)))
    with scratch():
        RULES["aten.hardtanh.default"] = page["before"]["aten.hardtanh.default"]
        theirs = ask(pc.capture(module, (5,)))
    assert mine.status == theirs.status
    assert set(mine.status) <= {"robust", "falsified"}
