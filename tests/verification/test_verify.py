"""`pc.verify` and its command: verdicts that survive attacks, workers, and being killed at any moment."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import polycert as pc
from polycert.cli import app
from polycert.exact import Specification
from polycert.exact import verify as public_verify
from polycert.models.architectures import fc1
from polycert.verification import cascade
from polycert.verification import pool as workers_module
from polycert.verification.budget import Budget
from polycert.verification.question import Question, SetQuestion, VerificationSettings
from polycert.verification.snapshot import NetworkSnapshot
from polycert.verification.verdicts import Verdict
from polycert.verification.verify import decisions

ARCHITECTURE = fc1((1, 3, 4), classes=4, hidden=14)
BALL = pc.Ball(math.inf, 0.12, 0.0, 1.0)


@pytest.fixture(scope="module")
def module() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        made = nn.Sequential(nn.Flatten(), nn.Linear(12, 14), nn.ReLU(), nn.Linear(14, 4))
        for parameter in made.parameters():
            parameter.data.mul_(2)
    return made


@pytest.fixture(scope="module")
def net(module: nn.Sequential) -> pc.Network:
    return pc.capture(module, (1, 3, 4))


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.rand(60, 1, 3, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def found(net: pc.Network, x: Tensor) -> pc.Verdicts:
    return pc.verify(net, x, None, BALL, timeout=60)


# --- verdicts ------------------------------------------------------------------------------------------------------


def test_all_stages_are_met_and_all_samples_decided(found: pc.Verdicts) -> None:
    assert set(found.status) == {"robust", "falsified"}
    assert {"crown", "attack", "branch"} <= set(found.stage)
    assert {d.proof for d in found.decisions if d.status == "robust"} == {"rigorous"}
    assert bool((found.evaluations > 0)[[s == "robust" for s in found.status]].all())
    low, high = found.interval()
    assert low == high == 100 * found.status.count("falsified") / 60


def test_what_is_robust_withstands_a_hard_attack(net: pc.Network, x: Tensor, found: pc.Verdicts) -> None:
    hits = pc.attack(net, x, None, BALL, steps=150, restarts=8, seed=7)
    robust = torch.tensor([s == "robust" for s in found.status])
    assert not bool(hits.success[robust].any())
    assert float(hits.margin[robust].min()) > 0
    assert int(hits.success.sum()) > 5


def test_counterexamples_replay(module: nn.Sequential, net: pc.Network, x: Tensor, found: pc.Verdicts) -> None:
    label = net(x).argmax(1)
    double = copy.deepcopy(module).double()
    for k, (status, point) in enumerate(zip(found.status, found.counterexample, strict=True)):
        assert (point is None) == (status == "robust")
        if point is None:
            continue
        assert point.shape == (1, 3, 4)
        assert bool((point >= 0).all() and (point <= 1).all())
        assert float((point - x[k].double()).abs().max()) <= 0.12
        for outputs in (net(point[None].float())[0].detach(), double(point[None])[0].detach()):
            rest = outputs.clone()
            rest[label[k]] = -math.inf
            assert float(outputs[label[k]]) <= float(rest.max())


def test_verdicts_print_without_the_pixels(found: pc.Verdicts) -> None:
    assert "falsified" in repr(found)
    assert "tensor" not in repr(found)


def test_a_wrong_label_is_its_own_counterexample(net: pc.Network, x: Tensor) -> None:
    wrong = (net(x[:3]).argmax(1) + 1) % 4
    verdicts = pc.verify(net, x[:3], wrong, BALL)
    assert verdicts.status == ("falsified",) * 3
    assert verdicts.stage == ("clean",) * 3
    assert torch.stack([p for p in verdicts.counterexample if p is not None]).float().equal(x[:3])


@pytest.mark.parametrize("norm", [1, 2])
def test_other_norms_are_decided(net: pc.Network, x: Tensor, norm: float) -> None:
    eps = {1: 1.0, 2: 0.35}[norm]
    verdicts = pc.verify(net, x[:20], None, pc.Ball(norm, eps, 0.0, 1.0), timeout=60)
    hits = pc.attack(net, x[:20], None, pc.Ball(norm, eps, 0.0, 1.0), steps=100, restarts=5)
    assert "unknown" not in verdicts.status
    assert len(set(verdicts.status)) == 2
    for status, broken in zip(verdicts.status, hits.success.tolist(), strict=True):
        assert status == "falsified" or not broken


def test_a_model_is_taken_at_its_word_when_asked(x: Tensor) -> None:
    """A snapshot: the parameters' gradients and values are left alone."""
    made = nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.ReLU(), nn.Linear(3, 2))
    before = [p.detach().clone() for p in made.parameters()]
    pc.verify(made, x[:2], None, BALL)
    for parameter, value in zip(made.parameters(), before, strict=True):
        assert parameter.grad is None
        assert parameter.equal(value)


def test_time_is_limited(net: pc.Network, x: Tensor) -> None:
    verdicts = pc.verify(net, x, None, BALL, total=1e-9)
    assert set(verdicts.status) == {"unknown"}
    assert set(verdicts.stage) == {"total time"}


@pytest.mark.parametrize("total", [math.inf, 1e6], ids=["each on its own", "a limit for all"])
def test_where_all_share_a_limit_the_easy_ones_come_first(
    net: pc.Network, x: Tensor, monkeypatch: pytest.MonkeyPatch, total: float
) -> None:
    """A sample that needs 10 seconds is left to a later round, and what was spent on it adds up."""
    tried: list[tuple[int, float]] = []

    def search(batch: cascade.OpenSets, k: int, most: float) -> Verdict:
        place, timeout = int(batch.open[k]), batch.question.settings.timeout
        tried.append((int(batch.question.index[place]), timeout))
        hard = tried[-1][0] in (0, 2)
        status = "robust" if not hard or (tried[-1][0] == 0 and timeout > 10) else "unknown"
        return Verdict(status, "branch", proof="rigorous", evaluations=1, nodes=2, seconds=timeout)

    monkeypatch.setattr(cascade, "STAGES", ())
    monkeypatch.setattr(cascade, "_search", search)
    verdicts = pc.verify(net, x[:4], None, BALL, timeout=20, total=total)
    assert verdicts.status == ("robust", "robust", "unknown", "robust")
    if math.isinf(total):
        assert tried == [(k, 20) for k in range(4)]
    else:
        assert tried == [*((k, 4) for k in range(4)), (0, 16), (2, 16), (2, 20)]
        assert [verdict.decision.nodes for verdict in verdicts.verdicts] == [4, 2, 6, 2]


def test_the_total_time_ends_in_the_middle_of_a_batch(
    net: pc.Network, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each search is as long as it may be; one batch holds all samples."""
    given: list[float] = []

    def slow(batch: cascade.OpenSets, k: int, most: float) -> Verdict:
        given.append(most)
        time.sleep(0.2)
        return Verdict("unknown", "branch")

    monkeypatch.setattr(cascade, "STAGES", ())
    monkeypatch.setattr(cascade, "_search", slow)
    verdicts = pc.verify(net, x[:8], None, BALL, total=0.5, batch_size=8)
    assert 1 <= len(given) <= 3
    assert given[0] <= 0.5
    assert all(later < first for first, later in itertools.pairwise(given))
    assert verdicts.stage.count("branch") == len(given)
    assert verdicts.stage.count("total time") == 8 - len(given)
    assert verdicts.interval() == (0.0, 100.0)
    with pytest.raises(pc.PolycertError, match="above 0"):
        pc.verify(net, x, None, BALL, timeout=0)


def test_unknown_solvers_are_refused_at_once(net: pc.Network, x: Tensor) -> None:
    with pytest.raises(pc.PolycertError, match="choose one of highs, scip"):
        pc.verify(net, x, None, BALL, solver="gurobi")


def test_two_processes_decide_the_same(net: pc.Network, x: Tensor, found: pc.Verdicts) -> None:
    seen: list[tuple[int, int]] = []
    both = pc.verify(net, x, None, BALL, timeout=60, workers=2, batch_size=8, progress=lambda a, b: seen.append((a, b)))
    assert both.status == found.status
    assert seen == [(k + 1, 60) for k in range(60)]


# --- journals ------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Counts the samples that go through the cascade."""
    counts: list[int] = []
    real = workers_module.cascade

    def counting(question: Question, total: Budget) -> object:
        counts.append(len(question))
        return real(question, total)

    monkeypatch.setattr(workers_module, "cascade", counting)
    return counts


def test_a_journal_is_taken_up(
    net: pc.Network, x: Tensor, found: pc.Verdicts, tmp_path: Path, asked: list[int]
) -> None:
    path = tmp_path / "journal"
    pc.verify(net, x[:25], None, BALL, journal=path)
    again = pc.verify(net, x, None, BALL, journal=path)
    assert sum(asked) == 60
    assert again.status == found.status
    for a, b in zip(again.counterexample, found.counterexample, strict=True):
        assert (a is None) == (b is None)
    pc.verify(net, x, None, BALL, journal=path)
    assert sum(asked) == 60


def test_undecided_samples_are_tried_again(net: pc.Network, x: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = pc.verify(net, x[:5], None, BALL, journal=path, total=1e-9)
    assert set(first.status) == {"unknown"}
    assert "unknown" not in pc.verify(net, x[:5], None, BALL, journal=path).status


def test_a_line_cut_anywhere_costs_that_line_only(
    net: pc.Network, x: Tensor, found: pc.Verdicts, tmp_path: Path, asked: list[int]
) -> None:
    path = tmp_path / "journal"
    pc.verify(net, x[:6], None, BALL, journal=path)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    begin = len(whole) - len(lines[-1])
    for cut in (5, len(lines[0]) - 1, len(lines[0]), begin + 1, begin + len(lines[-1]) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        kept = max(whole[:cut].count(b"\n") - 1, 0)
        asked.clear()
        assert pc.verify(net, x[:6], None, BALL, journal=path).status == found.status[:6]
        assert sum(asked) == 6 - kept
        assert len(path.read_bytes().splitlines()) == 7


def test_a_counterexample_of_exact_arithmetic_is_taken_up(tmp_path: Path) -> None:
    """At the corner the margin is 0; in float64 it is above 0, in the search as in the next run."""
    layer, tiny = torch.nn.Linear(2, 2).double(), 2.0**-30
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-1 - tiny, 1 + 2 * tiny], [0.0, 0.0]], dtype=torch.float64))
        layer.bias.copy_(torch.tensor([tiny * tiny, 0.0]))
    sample = torch.tensor([[0.75 + tiny, 1.25]], dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask = partial(pc.verify, layer, sample, torch.tensor([0]), pc.Ball(eps=0.25), journal=tmp_path / "journal")
        runs = [ask(), ask()]
    assert [run.status for run in runs] == [("falsified",)] * 2
    assert [run.decisions[0].resumed for run in runs] == [False, True]


def test_another_questions_journal_is_refused_and_left_alone(net: pc.Network, x: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    pc.verify(net, x[:2], None, BALL, journal=path)
    before = path.read_bytes()
    for other in (pc.Ball(2, 0.12, 0.0, 1.0), pc.Ball(math.inf, 0.12, 0.0, 2.0)):
        with pytest.raises(pc.PolycertError, match="another network, norm or box"):
            pc.verify(net, x[:2], None, other, journal=path)
    made = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(pc.PolycertError, match="another network"):
        pc.verify(made, x[:2], None, BALL, journal=path)
    assert path.read_bytes() == before
    path.write_text("my notes")
    with pytest.raises(pc.PolycertError, match="no journal"):
        pc.verify(net, x[:2], None, BALL, journal=path)
    assert path.read_text() == "my notes"


def test_another_radius_or_label_is_another_sample(net: pc.Network, x: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    small = pc.verify(net, x[:8], None, BALL.with_eps(1e-4), journal=path)
    assert set(small.status) == {"robust"}
    wide = pc.verify(net, x[:8], None, BALL.with_eps(0.9), journal=path)
    assert set(wide.status) == {"falsified"}
    assert pc.verify(net, x[:8], None, BALL.with_eps(1e-4), journal=path).status == small.status


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, module: nn.Sequential, x: Tensor) -> Path:
    folder = tmp_path_factory.mktemp("files")
    pc.save(module, folder / "net.safetensors", ARCHITECTURE, (1, 3, 4))
    np.savez(folder / "samples.npz", x=x.numpy())
    many = torch.rand(400, 1, 3, 4, generator=torch.Generator().manual_seed(1))
    np.savez(folder / "many.npz", x=many.numpy())
    return folder


def arguments(files: Path, samples: str, *more: object) -> list[str]:
    base = ["verify", files / "net.safetensors", "--inputs", files / samples, "--eps", 0.12, "--low", 0, "--high", 1]
    return [str(a) for a in (*base, "--workers", 1, *more)]


def test_the_command_writes_records_and_counterexamples(files: Path, tmp_path: Path, found: pc.Verdicts) -> None:
    out = tmp_path / "records.csv"
    result = CliRunner().invoke(app, arguments(files, "samples.npz", "--out", out))
    assert result.exit_code == 0, result.output
    low, high = found.interval()
    assert f"[{low:.2f}, {high:.2f}] %" in result.stdout
    frame = pd.read_csv(out)
    assert tuple(frame["status"]) == found.status
    arrays = np.load(tmp_path / "records.counterexamples.npz")
    assert arrays["index"].tolist() == [k for k, s in enumerate(found.status) if s == "falsified"]
    assert arrays["x"].shape == (len(arrays["index"]), 1, 3, 4)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "records.counterexamples.npz",
        "records.csv",
        "records.csv.journal",
    ]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--timeout", 0), "--timeout and --total must be above 0"),
        (("--solver", "cplex"), "unknown solver 'cplex'"),
        (("--out", "records.txt"), "must end in"),
    ],
)
def test_bad_usage_is_refused(files: Path, more: tuple[object, ...], words: str) -> None:
    result = CliRunner().invoke(app, arguments(files, "samples.npz", *more))
    assert result.exit_code == 2
    assert words in result.stderr


def test_the_attack_command(files: Path, net: pc.Network, x: Tensor, tmp_path: Path) -> None:
    out = tmp_path / "hits.json"
    words = ["attack", files / "net.safetensors", "--inputs", files / "samples.npz", "--eps", 0.12, "--low", 0]
    more = ["--high", 1, "--steps", 30, "--restarts", 2, "--out", out]
    result = CliRunner().invoke(app, [str(a) for a in (*words, *more)])
    assert result.exit_code == 0, result.output
    expected = pc.attack(net, x, None, BALL, steps=30, restarts=2)
    rows = json.loads(out.read_text())
    assert [row["success"] for row in rows] == expected.success.tolist()
    points = np.load(tmp_path / "hits.counterexamples.npz")
    assert len(points["x"]) == int(expected.success.sum())


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_killed_at_any_moment_and_taken_up_again(files: Path, tmp_path: Path, kills: int) -> None:
    """Kill -9 again and again while results come in: nothing decided is lost, redone or changed."""
    out = tmp_path / "records.csv"
    journal = tmp_path / "records.csv.journal"
    command = [sys.executable, "-m", "polycert", *arguments(files, "many.npz", "--out", out, "--batch-size", 4)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    lines = 0
    for _ in range(kills):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        wanted = lines + 23
        while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < wanted):
            time.sleep(0.005)
        before = journal.read_bytes() if journal.exists() else b""
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        after = journal.read_bytes()
        assert after.startswith(before)
        lines = after.count(b"\n")
        assert wanted <= lines < 401
        assert not out.exists()
    kept = after[: after.rfind(b"\n") + 1]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert journal.read_bytes().startswith(kept)
    assert journal.read_bytes().count(b"\n") == 401  # a header, and every sample once
    whole = public_verify(pc.load(files / "net.safetensors"), np.load(files / "many.npz")["x"], None, BALL, timeout=60)
    assert tuple(pd.read_csv(out)["status"]) == whole.status


# --- one verifier: what samples and properties share --------------------------------------------------------------


def test_a_smooth_network_with_few_inputs_is_decided_by_halving_its_input() -> None:
    """Bounds alone leave samples open that splitting on the input decides; a grid is the judge."""
    torch.manual_seed(3)
    layers = (nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 12), nn.Sigmoid(), nn.Linear(12, 2))
    module = nn.Sequential(*layers).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(8)
    x = torch.rand(24, 2, dtype=torch.float64)
    ball = pc.Ball(eps=0.2, low=0.0, high=1.0)
    found = pc.verify(module, x, None, ball, timeout=20)
    assert "unknown" not in found.status
    assert any(v.decision.stage == "input" and v.decision.status == "robust" for v in found.verdicts)
    axis = torch.linspace(-0.2, 0.2, 41, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        label = module(x).argmax(1)
        for point, own, status in zip(x, label, found.status, strict=True):
            reached = module((point + grid).clamp(0, 1)).argmax(1)
            assert status == "falsified" or bool((reached == own).all())


def test_sets_with_specifications_of_several_sizes_are_one_batch() -> None:
    """Rows and clauses that only pad a batch prove nothing and stand in the way of nothing."""
    net = NetworkSnapshot.of(pc.capture(nn.Sequential(nn.Linear(2, 2, bias=False)), (2,)))
    with torch.no_grad():
        weight = net.double.forward(torch.eye(2, dtype=torch.float64)).T
    region = pc.Ball(eps=0.5).at(torch.zeros(3, 2, dtype=torch.float64))
    reach = weight.abs().sum(1) * 0.5
    rows = torch.eye(2, dtype=torch.float64)
    safe = Specification(rows[:1], reach[:1] * 1.01, torch.tensor([0]))
    both = Specification(rows, reach * 1.01, torch.tensor([0, 1]))
    broken = Specification(rows, torch.stack([reach[0] * 1.01, reach[1] * 0.5]), torch.tensor([0, 1]))
    question = SetQuestion(net, region, VerificationSettings(timeout=20), (safe, both, broken))
    found = dict(decisions(question, batch=3, workers=1, total=math.inf))
    assert [found[k].status for k in range(3)] == ["robust", "robust", "falsified"]
