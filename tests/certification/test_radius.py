"""The search for the largest certified radius."""

import math
import re
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import polycert as pc
from polycert.certification.certify import BatchVerdict, Certifier, verdict_of
from polycert.certification.radius import STRATEGIES, RadiusSearch
from polycert.cli import app
from polycert.models.architectures import build
from polycert.sets.ball import Region

TOLERANCE = 1e-3
Problem = tuple[pc.Network, Tensor, Tensor]


@pytest.fixture(scope="module")
def problem() -> Problem:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = nn.Sequential(
            nn.Flatten(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 4)
        )
        x = torch.rand(40, 1, 4, 4)
    net = pc.capture(module, (1, 4, 4))
    return net, x, net(x).argmax(1)


def search(problem: Problem, **options: object) -> pc.Radii:
    settings = {"upper": 0.5, "low": 0.0, "high": 1.0, "tolerance": TOLERANCE, **options}
    return pc.largest_radius(*problem, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_radii_are_certified_and_survive_an_attack(problem: Problem, strategy: str, norm: float) -> None:
    found = search(problem, strategy=strategy, norm=norm, upper=0.5 if norm != 1 else 2.0)
    net, x, y = problem
    again = pc.certify(net, x, y, pc.Ball(norm, found.radius, 0.0, 1.0))
    attacked = pc.attack(net, x, y, pc.Ball(norm, found.radius, 0.0, 1.0), steps=20, restarts=1)
    assert not bool(attacked.success.any())
    if strategy == "bisection":  # its radii are those of whole balls; the others' may be parts of larger ones
        assert bool(again.certified.all())
    else:
        assert float(again.radius.min() / found.radius.min()) > 0.9
    assert bool((found.failed - found.radius <= TOLERANCE).all())
    assert bool((found.radius <= found.failed).all())


def test_strategies_agree_and_the_default_needs_fewest(problem: Problem) -> None:
    found = {name: search(problem, strategy=name) for name in STRATEGIES}
    for name in ("envelope", "root"):
        apart = (found[name].radius - found["bisection"].radius).abs() > 2 * TOLERANCE
        assert int(apart.sum()) <= 1
    cost = {name: float(radii.evaluations.float().mean()) for name, radii in found.items()}
    assert cost["bisection"] == math.ceil(math.log2(0.5 / TOLERANCE))
    assert cost["root"] < cost["envelope"] <= cost["bisection"]


def test_a_misclassified_sample_is_done_at_once(problem: Problem) -> None:
    net, x, y = problem
    found = pc.largest_radius(net, x[:3], (y[:3] + 1) % 4, upper=0.5)
    assert found.radius.tolist() == [0.0, 0.0, 0.0]
    assert found.evaluations.tolist() == [0, 0, 0]


def test_a_batch_is_its_samples_one_by_one(problem: Problem) -> None:
    net, x, y = problem
    whole = search(problem)
    for k in (0, 7, 13):
        alone = search((net, x[k : k + 1], y[k : k + 1]))
        assert float(alone.radius[0]) == pytest.approx(float(whole.radius[k]), rel=1e-3)


def test_a_constant_classifier_reaches_the_upper_end() -> None:
    module = nn.Linear(3, 2)
    with torch.no_grad():
        module.weight.zero_()
        module.bias.copy_(torch.tensor([1.0, 0.0]))
    found = pc.largest_radius(module, torch.rand(2, 3), None, upper=0.7)
    assert bool((found.radius > 0.7 - 1e-4).all())


@pytest.mark.parametrize(
    ("options", "words"),
    [({"strategy": "newton"}, "strategy"), ({"upper": 0.0}, "upper"), ({"tolerance": 1.0}, "tolerance")],
)
def test_bad_settings(problem: Problem, options: dict[str, object], words: str) -> None:
    with pytest.raises(pc.PolycertError, match=words):
        search(problem, **options)


@pytest.mark.parametrize("name", ["c-per", "kw"])
def test_evaluations_on_a_released_checkpoint(shared: Path, name: str) -> None:
    """The paper's T_Lin and T_PEC on FC1, on correctly classified samples, and the default's cost."""
    net = pc.load(shared / "zoo" / "relu_linf__mnist_fc1" / f"mnist_fc1_l1_{name}.npz")
    sample = pc.data.load("mnist-sample", "test")
    settings = {"upper": 0.4, "low": 0.0, "high": 1.0, "tolerance": 1e-4, "rigorous": False}
    found = {s: pc.largest_radius(net, sample.x[:200], sample.y[:200], strategy=s, **settings) for s in STRATEGIES}
    right = found["root"].prediction == found["root"].label
    mean = {s: float(radii.evaluations[right].float().mean()) for s, radii in found.items()}
    assert mean["bisection"] == 12
    assert mean["envelope"] == pytest.approx({"c-per": 9.34, "kw": 8.48}[name], abs=0.3)
    assert mean["root"] <= 5.5
    apart = (found["root"].radius - found["bisection"].radius).abs() > 2e-4
    assert int(apart.sum()) <= 1


def test_margins_that_fall_off_a_cliff_cost_little_more(shared: Path) -> None:
    """Bounds of a deeper network are good up to some eps and useless right after it; halving needs 12."""
    net = pc.load(shared / "zoo" / "relu_linf__mnist_cnn" / "mnist_cnn_l1_c-per.npz")
    sample = pc.data.load("mnist-sample", "test")
    settings = {"upper": 0.4, "low": 0.0, "high": 1.0, "tolerance": 1e-4, "rigorous": False}
    x, y = sample.x[:20], sample.y[:20]
    found, halved = (pc.largest_radius(net, x, y, strategy=s, **settings) for s in ("root", "bisection"))
    assert float(found.evaluations.float().mean()) <= 8.5
    assert float((found.radius - halved.radius).abs().max()) <= 2e-4


@pytest.mark.parametrize("boxed", [True, False])
@pytest.mark.parametrize("norm", [1, 1.5, 2, math.inf])
def test_the_distance_beyond_the_ball_is_the_smallest_of_all(problem: Problem, norm: float, boxed: bool) -> None:
    net, x, y = problem
    sides = {"low": -0.5, "high": 1.5} if boxed else {}
    for eps in (0.01, 0.1, 1.0):
        env = pc.envelope(net, x, y, pc.Ball(norm, eps, **sides))
        found = verdict_of(env, beyond_eps=True).distance
        every = env.distances().amin(1)
        torch.testing.assert_close(found.to(every.dtype), every)
    assert torch.isfinite(verdict_of(pc.envelope(net, x, y, pc.Ball(norm, 1e-3)), beyond_eps=True).distance).all()


def test_proved_up_to_upper_means_proved(tmp_path: Path) -> None:
    """A coarse search may end without having tried the upper end: then nothing was proved there."""
    path, inputs = tmp_path / "net.safetensors", tmp_path / "x.npz"
    architecture = [{"type": "linear", "in_features": 2, "out_features": 2}]
    module = build(architecture)
    module[0].weight.data, module[0].bias.data = torch.eye(2), torch.zeros(2)
    pc.save(module, path, architecture, (2,))
    np.savez(inputs, x=np.array([[0.3, 0.0], [0.15, 0.0]], dtype=np.float32), y=np.array([0, 0]))
    for strategy in ("root", "bisection", "envelope"):
        for tolerance in (0.06, 1e-4):
            options = ["--upper", "0.1", "--tolerance", str(tolerance), "--strategy", strategy]
            out = tmp_path / "out.csv"
            done = CliRunner().invoke(app, ["radius", str(path), "--inputs", str(inputs), *options, "--out", str(out)])
            proved = int((pd.read_csv(out)["radius"] >= 0.1).sum())
            assert re.search(rf"proved up to --upper\s+{proved}\b", done.output)


class Believer(Certifier):
    """A certifier without error terms that calls every ball certified."""

    def decide(self, region: Region, label: Tensor, **options: object) -> tuple[BatchVerdict, Tensor]:
        verdict, in_double = super().decide(region, label, **options)  # type: ignore[arg-type]
        return verdict._replace(certified=torch.ones_like(verdict.certified)), in_double


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_radii_are_proved_whatever_the_guesses_say(
    problem: Problem, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guesses that are all wrong cost evaluations, never a false radius."""
    honest = search(problem, strategy=strategy)
    assert bool((honest.proofs[honest.radius > 0] == 1).all())
    wrong = cached_property(lambda search: Believer(search.certifier.net, "crown", "parallel", rigorous=False))
    wrong.__set_name__(RadiusSearch, "guesser")
    monkeypatch.setattr(RadiusSearch, "guesser", wrong)
    found = search(problem, strategy=strategy)
    assert bool((found.proofs > 1).any())
    assert bool((found.failed - found.radius <= TOLERANCE).all())
    net, x, y = problem
    assert not bool(pc.attack(net, x, y, pc.Ball(math.inf, found.radius, 0.0, 1.0), steps=20, restarts=1).success.any())
    torch.testing.assert_close(found.radius, honest.radius, rtol=0, atol=3 * TOLERANCE)


class Overflowing(Certifier):
    """A certifier whose margins overflow."""

    def decide(self, region: Region, label: Tensor, **options: object) -> tuple[BatchVerdict, Tensor]:
        verdict, in_double = super().decide(region, label, **options)  # type: ignore[arg-type]
        nothing, none = torch.zeros_like(verdict.radius), torch.zeros_like(verdict.certified)
        nowhere = torch.full_like(nothing, -torch.inf)
        return verdict._replace(radius=nothing, certified=none, margin=nowhere, distance=nothing), in_double


def test_guesses_that_overflow_leave_the_search_to_proofs(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = search(problem)
    guesser = cached_property(lambda search: Overflowing(search.certifier.net, "crown", "parallel", rigorous=False))
    guesser.__set_name__(RadiusSearch, "guesser")
    monkeypatch.setattr(RadiusSearch, "guesser", guesser)
    found = search(problem)
    assert bool((found.proofs[honest.radius > 0] > 1).all())
    torch.testing.assert_close(found.radius, honest.radius, rtol=0, atol=3 * TOLERANCE)
