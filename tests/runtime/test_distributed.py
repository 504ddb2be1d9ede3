"""Two processes give what one gives: the same model after training, the same records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import polycert as pc
from polycert.models.architectures import build, fc1
from polycert.runtime.execution import Processes, own_device
from polycert.training import make_recipe, prepare, train
from polycert.training.recipe_files import to_toml

SHAPE = (1, 28, 28)
RECIPE = {
    "dataset": "mnist-sample",
    "architecture": "fc1",
    "method": "c-per+at",
    "target": 0.1,
    "eps": 0.05,
    "alpha": 0.15,
    "gamma": 0.5,
    "epochs": 4,
    "batch": 75,
    "subsample": 7,
    "validation": 1600,
    "certified": 10,
    "attack_steps": 2,
    "clip": 1.0,
    "average": 0.9,
}


def twice(*arguments: str) -> subprocess.CompletedProcess[str]:
    """polycert under torchrun, two processes of one thread."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29531"]
    environment = {**os.environ, "PYTHONPATH": str(Path(pc.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, "-m", "--", "polycert", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_shares_in_order_are_everything() -> None:
    for count in (1, 2, 3, 7):
        for blocks in (0, 1, 5, 23):
            shares = [Processes(rank, count).share(blocks) for rank in range(count)]
            assert [k for share in shares for k in share] == list(range(blocks))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_each_process_takes_its_own_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_device("cuda") == torch.device("cuda")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert own_device("cuda") == torch.device("cuda:1")
    assert own_device("cuda:0") == torch.device("cuda:0")
    assert own_device("cpu") == torch.device("cpu")


@pytest.mark.slow
def test_two_processes_train_the_model_of_one(tmp_path: Path) -> None:
    """20 steps of uneven shares (38 and 37 samples) and a sub-sample of the whole batch."""
    (tmp_path / "recipe.toml").write_text(to_toml(RECIPE), encoding="utf-8")
    done = twice("train", str(tmp_path / "recipe.toml"), "--run-dir", str(tmp_path / "two"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("4 epochs in") == 1
    run = prepare(make_recipe(RECIPE), tmp_path / "one")
    start = {key: value.clone() for key, value in run.module.state_dict().items()}
    assert run.samples.steps(run.recipe) * 4 == 20
    train(run)
    two = load_file(tmp_path / "two" / "checkpoint-4.safetensors")
    for key, value in run.module.state_dict().items():
        moved = float((value - start[key]).abs().max())
        assert float((two[f"model.{key}"] - value).abs().max()) < 2e-3 * moved
    rows = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert rows[0] == pytest.approx(rows[1], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["certify", "--eps", "0.02"],
        ["radius", "--upper", "0.1"],
        ["attack", "--eps", "0.1"],
        ["verify", "--eps", "0.02"],
    ],
)
def test_two_processes_write_the_records_of_one(tmp_path: Path, command: list[str]) -> None:
    torch.manual_seed(0)
    architecture = fc1(SHAPE, hidden=30)
    pc.save(build(architecture), tmp_path / "net.safetensors", architecture, SHAPE)
    common = [str(tmp_path / "net.safetensors"), "--dataset", "mnist-sample", "--limit", "75", "--batch-size", "10"]
    done = twice(*command, *common, "--out", str(tmp_path / "two.csv"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("clean error") == 1
    environment = {**os.environ, "PYTHONPATH": str(Path(pc.__file__).parents[1])}
    alone = [sys.executable, "-m", "polycert", *command, *common, "--out", str(tmp_path / "one.csv")]
    subprocess.run(alone, env=environment, check=True, capture_output=True)
    one, two = (
        pd.read_csv(tmp_path / name).drop(columns="seconds", errors="ignore") for name in ("one.csv", "two.csv")
    )
    pd.testing.assert_frame_equal(one, two)
    assert len(one) == 75


@pytest.mark.slow
def test_two_processes_share_the_trials(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(to_toml(RECIPE), encoding="utf-8")
    folder = tmp_path / "runs"
    grid = ["--log", "gamma=0.01:1:3", "--epochs", "1", "--run-dir", str(folder)]
    done = twice("tune", str(tmp_path / "recipe.toml"), *grid)
    assert done.returncode == 0, done.stderr
    assert sum(line.strip().startswith("--set") for line in done.stdout.splitlines()) == 3
    assert all((path / "model.safetensors").is_file() for path in folder.iterdir())
    assert done.stderr.count("3 trials of 1 epochs") == 1
