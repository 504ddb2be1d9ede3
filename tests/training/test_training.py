"""Training as a user meets it: recipes that fail early, runs that resume bit for bit, an honest stream of draws."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import polycert as pc
from polycert import zoo
from polycert.cli import app
from polycert.models.architectures import build, fc1
from polycert.models.model_files import load_module
from polycert.training import Run, library, make_recipe, prepare, read_recipe, recipe_files, train
from polycert.training.batches import TrainingSet, augmentation, split
from polycert.training.initial_weights import revive_dead_units
from polycert.training.loop import validate
from polycert.training.recipe_files import to_toml, with_overrides

SMALL: dict[str, Any] = {
    "dataset": "mnist-sample",
    "architecture": "fc1",
    "method": "c-per",
    "target": 0.1,
    "eps": {"kind": "smooth", "first": 0.0, "last": 0.1, "begin": 0, "end": 2},
    "epochs": 3,
    "batch": 100,
    "validation": 1500,
    "certified": 20,
    "alpha": 0.15,
    "gamma": 0.5,
    "subsample": 10,
    "clip": 1.0,
    "average": 0.9,
    "average_from": 1,
}

MMR = {"method": "mmr", "weight": 1, "gamma_boundary": 1, "gamma_decision": 1, "boundary_share": 0.1}


def changed(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in (SMALL | values).items() if value is not None}


def write(folder: Path, **values: Any) -> Path:
    path = folder / "small.toml"
    path.write_text(to_toml(changed(**values)), encoding="utf-8")
    return path


def trained(folder: Path, **values: Any) -> Run:
    run = prepare(make_recipe(changed(**values)), folder)
    train(run)
    return run


def test_the_minimum_of_a_recipe_is_that_of_its_balls() -> None:
    assert make_recipe(changed(norm=2)).ball().minimum == "open"
    either = make_recipe(changed(norm=2, minimum="either"))
    assert either.ball().minimum == either.ball(1.0).minimum == "either"


# Bad recipes fail before any training


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gama": 1.0}, ["unknown key 'gama'", "did you mean 'gamma'", "alpha"]),
        ({"method": "mmr", "activation": "tanh"}, ["weight"]),
        (
            MMR | {"activation": "tanh", "alpha": None, "gamma": None},
            ["activation", "relu", "'tanh'"],
        ),
        ({"alpha": 0}, ["alpha", "above 0", "got 0"]),
        ({"alpha": {"kind": "linear", "first": 0.1, "last": -0.1, "end": 3}}, ["alpha", "above 0", "-0.1"]),
        ({"subsample": 101}, ["subsample", "at most 100", "got 101"]),
        ({"method": "c-pre"}, ["method", "c-per", "'c-pre'"]),
        ({"method": "ibp"}, ["kappa", "'ibp' needs it"]),
        ({"kappa": 0.5}, ["kappa", "'c-per' does not use it", "c-ibp"]),
        ({"eps": {"kind": "quadratic"}}, ["eps", "smooth", "quadratic"]),
        ({"eps": {"kind": "smooth", "first": 0, "last": 1, "begin": 3, "end": 1}}, ["eps", "begin", "before end"]),
        ({"eps": {"kind": "smooth", "first": 0, "last": 1, "end": 1, "ned": 2}}, ["eps", "ned"]),
        ({"eps": {"kind": "points", "epochs": [0, 1], "values": [1]}}, ["eps", "one value for each epoch", "1 and 2"]),
        ({"eps": {"kind": "points", "epochs": [0, 2, 1], "values": [1, 1, 1]}}, ["eps", "must grow", "0, 2, 1"]),
        ({"eps": {"kind": "points", "epochs": [], "values": []}}, ["eps", "at least 1"]),
        ({"eps": -0.1}, ["eps", "at least 0", "-0.1"]),
        ({"dataset": "mnits"}, ["dataset", "mnist-sample"]),
        ({"norm": 0.5}, ["norm", "from 1"]),
        ({"minimum": "both"}, ["minimum", "'either'", "'both'"]),
        ({"epochs": 0}, ["epochs", "1"]),
        ({"warm_up": 3}, ["warm_up", "below epochs (3)"]),
        ({"target": None}, ["target", "missing"]),
        ({"select": "best", "certified": 0}, ["select", "validation"]),
        ({"lr": "fast"}, ["lr", "constant", "'fast'"]),
        ({"revive": 0.3, "start": "some.npz", "activation": "tanh"}, ["revive", "ReLU", "'tanh'"]),
        ({"shift": 17, "augment": "shift"}, ["shift", "16", "17"]),
        ({"revive": 0.3}, ["revive", "goes with start", "got 0.3"]),
        ({"shift": 2}, ["shift", "augment", "got 2"]),
        ({"select": "best", "eps": 0.05}, ["select", "reaches the target 0.1", "got 0.05"]),
        ({"eps": {"kind": "doubling", "first": 1e-3, "every": 1e-9}}, ["eps", "at least 0", "got inf"]),
        ({"subsample": {"kind": "linear", "first": 1, "last": 300, "end": 3}}, ["subsample", "at most 100", "got 300"]),
    ],
)
def test_a_bad_recipe_names_the_key_and_what_is_allowed(
    values: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    done = CliRunner().invoke(app, ["train", str(write(tmp_path, **values)), "--run-dir", str(run_dir)])
    assert done.exit_code == 2
    text = " ".join(done.output.split())
    for word in words:
        assert word in text
    assert "{'dataset'" not in text  # the recipe itself is not repeated
    assert not run_dir.exists()


def test_infinite_weights_are_refused() -> None:
    for key in ("l1", "stability", "clip"):
        with pytest.raises(pc.PolycertError, match=f"'{key}'.*finite"):
            make_recipe(changed(**{key: math.inf}))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["give a recipe"]),
        (["--resume", "--run-dir", "nothing"], ["no recipe file", "nothing"]),
        (["nothing-like-it", "--run-dir", "x"], ["no recipe", "--list"]),
        (["nothing.toml", "--run-dir", "x"], ["no recipe file"]),
        (["mnist-fc1-linf-c-per"], ["--run-dir"]),
        (["mnist-fc1-linf-c-per", "--set", "epochs", "--run-dir", "x"], ["key=value"]),
        (["mnist-fc1-linf-c-per", "--set", "gamma.last=3", "--run-dir", "x"], ["no table"]),
        (["mnist-fc1-linf-c-per", "--data-dir", "/nowhere", "--run-dir", "x"], ["no folder"]),
    ],
)
def test_bad_usage_of_train(arguments: list[str], words: list[str]) -> None:
    done = CliRunner().invoke(app, ["train", *arguments])
    assert done.exit_code == 2
    for word in words:
        assert word in " ".join(done.output.split())


def test_too_large_a_batch_or_validation_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pc.PolycertError, match=r"'batch': must be at most 500"):
        prepare(make_recipe(changed(batch=501)), tmp_path)
    with pytest.raises(pc.PolycertError, match=r"'validation': must be below 2000"):
        prepare(make_recipe(changed(validation=2000)), tmp_path)


# Schedules


def at(schedule: Any, *times: float) -> list[float]:
    recipe = make_recipe(changed(eps=schedule))
    return [recipe.eps.at(time) for time in times]


def test_schedules() -> None:
    ramp = {"first": 0.2, "last": 0.6, "begin": 1, "end": 3}
    assert at(0.3, 0, 1.5) == [0.3, 0.3]
    assert at("2/255", 0) == [2 / 255]
    assert at({"kind": "linear", **ramp}, 0, 1.5, 2, 9) == pytest.approx([0.2, 0.3, 0.4, 0.6])
    assert at({"kind": "smooth", **ramp}, 0, 1.5, 2, 9) == pytest.approx([0.2, 0.2 + 0.4 * 0.15625, 0.4, 0.6])
    assert at({"kind": "cosine", **ramp}, 0, 1.5, 2, 9) == pytest.approx(
        [0.2, 0.2 + 0.2 * (1 - math.cos(math.pi / 4)), 0.4, 0.6]
    )
    doubling = {"kind": "doubling", "first": 0.0064, "every": 20}
    assert at(doubling, 0, 19.99, 20, 99) == pytest.approx([0.0064, 0.0064, 0.0128, 0.1024])
    assert make_recipe(changed(eps=doubling)).eps.value_range(40) == pytest.approx((0.0064, 0.0128))
    assert at({**doubling, "most": 0.03}, 99) == [0.03]
    step = {"kind": "step", "first": 1.0, "epochs": [2, 4], "factor": 0.5}
    assert at(step, 1.9, 2, 3.9, 4) == [1, 0.5, 0.5, 0.25]
    points = {"kind": "points", "epochs": [1, 2, 6], "values": [0.2, "2/5", 0.1]}
    assert at(points, 0, 1, 1.5, 2, 4, 9) == pytest.approx([0.2, 0.2, 0.3, 0.4, 0.25, 0.1])
    made = make_recipe(changed(eps=points)).eps
    assert made.value_range(4) == pytest.approx((0.2, 0.4))  # the largest value is neither first nor last
    assert made.stretched(2).at(4) == 0.4


def test_points_of_a_schedule_reach_the_largest_value_that_is_checked() -> None:
    peak = {"kind": "points", "epochs": [0, 1, 2], "values": [1, 300, 1]}
    with pytest.raises(pc.PolycertError, match=r"subsample.*at most 100.*got 300"):
        make_recipe(changed(subsample=peak))


def test_a_schedule_moves_what_the_loss_gets() -> None:
    ramp = {"kind": "linear", "first": 1, "last": 3, "end": 2}
    recipe = make_recipe(changed(alpha=ramp, gamma=ramp, subsample={**ramp, "first": 10, "last": 30}))
    losses = [recipe.loss(time) for time in (0, 1, 5)]
    assert [(loss.alpha, loss.gamma, loss.subsample) for loss in losses] == [(1, 1, 10), (2, 2, 20), (3, 3, 30)]
    ibp = changed(method="c-ibp", alpha=None, gamma=None, kappa=0.5, beta={**ramp, "first": 1, "last": 0})
    assert [make_recipe(ibp).loss(time).beta for time in (0, 1, 2)] == [1, 0.5, 0]
    warm = make_recipe(changed(warm_up=1))
    assert [type(warm.loss(time)).__name__ for time in (0.99, 1)] == ["AT", "PER"]
    mixed = make_recipe(changed(l1=1e-4, stability=1e-3)).loss(1)
    assert [type(loss).__name__ for loss in mixed.losses] == ["PER", "L1", "Stability"]
    slow = make_recipe(changed(lr=0.01, lr_warm_up=1.0))
    assert [round(slow.learning_rate(time), 4) for time in (0, 0.5, 1, 2)] == [0, 0.005, 0.01, 0.01]


def test_every_step_gets_the_loss_the_ball_and_the_learning_rate_of_its_time(tmp_path: Path) -> None:
    ramp = {"kind": "linear", "first": 1, "last": 2, "end": 3}
    lr = {"kind": "linear", "first": 1e-3, "last": 0, "end": 3}
    run = prepare(make_recipe(changed(warm_up=1, gamma=ramp, lr=lr, average=None, average_from=None)), tmp_path)
    steps, seen, whole = run.samples.steps(run.recipe), [], run.objective

    def watched(loss: nn.Module, x: torch.Tensor, y: torch.Tensor, ball: pc.Ball, draws: Any) -> torch.Tensor:
        seen.append((loss, ball.eps, run.optimiser.param_groups[0]["lr"]))
        value: torch.Tensor = whole(loss, x, y, ball, draws)
        return value

    run.objective = watched  # type: ignore[assignment]
    train(run)
    times = [k / steps for k in range(3 * steps)]
    assert [eps for _, eps, _ in seen] == pytest.approx([run.recipe.eps.at(time) for time in times])
    assert [rate for *_, rate in seen] == pytest.approx([1e-3 * (1 - time / 3) for time in times])
    kinds = [type(loss).__name__ for loss, *_ in seen]
    assert kinds == ["AT"] * steps + ["PER"] * 2 * steps
    assert [loss.gamma for loss, *_ in seen[steps:]] == pytest.approx([1 + time / 3 for time in times[steps:]])


# Recipes that come with the library


def test_the_library_has_a_valid_recipe_for_every_row_of_the_tables() -> None:
    found = {name: make_recipe(values) for name, values in library().items() if values["about"].startswith("Table")}
    nets = {(r.dataset, r.architecture, r.activation, r.norm, r.target, r.method) for r in found.values()}
    assert len(nets) == len(found) == 11 * 3 * 2 + 8 * 2 * 2 + 3 * 4
    c_per = found["mnist-fc1-linf-c-per"]
    assert (c_per.alpha.at(0), c_per.gamma.at(0), c_per.terms, c_per.epochs) == (0.15, 0.1, 4, 100)
    assert [round(c_per.eps.at(time), 4) for time in (0, 50, 99)] == [0.0064, 0.0256, 0.1024]
    assert found["cifar10-cnn-l2-i-per+at"].gamma.at(0) == 1.0
    assert found["cifar10-cnn-linf-c-per"].gamma.at(0) == 0.0003
    assert found["cifar10-cnn-linf-plain"].augment == "flip-crop"
    assert found["mnist-e-linf-0.3-c-per+at"].eps.at(0) == 0.3


def test_a_name_has_the_epochs_of_its_recipe() -> None:
    named = {name: re.search(r"-(\d+)ep(-all)?-", name) for name in library()}
    found = {name: match for name, match in named.items() if match}
    assert len(found) > 30
    for name, match in found.items():
        recipe = make_recipe(library()[name])
        assert (recipe.epochs, recipe.validation == 0) == (int(match[1]), bool(match[2])), name
        assert name.endswith(f"-{recipe.method}")


def test_an_installed_wheel_has_one_recipe_per_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe_files, "_checkout", lambda: tmp_path)
    found = {name: make_recipe(values) for name, values in library().items()}
    assert len({(r.dataset, r.architecture, r.norm, r.target) for r in found.values()}) == len(found) == 6
    shown = CliRunner().invoke(app, ["train", "mnist-fc1-linf-kw", "--show"])
    assert shown.exit_code == 2
    assert "there is no recipe 'mnist-fc1-linf-kw'" in shown.output


def test_stored_records_name_recipes_that_there_are() -> None:
    """What a record says that it was trained by can be typed again."""
    root = Path(__file__).parents[2]
    folders = (root / "paper" / "results", zoo.registry.home())
    texts = [path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.json")]
    named = {name for text in texts for name in re.findall(r'polycert train ((?:mnist|cifar10)-[^\s",]+)', text)}
    assert len(named) > 20
    assert named <= set(library())


def test_every_recipe_of_the_library_is_written_as_it_is_read(tmp_path: Path) -> None:
    """A run's folder holds its recipe, schedules without an end included."""
    file = tmp_path / "recipe.toml"
    for values in library().values():
        recipe = make_recipe(values)
        file.write_text(to_toml(recipe.plain()), encoding="utf-8")
        assert read_recipe(str(file), ()) == recipe


def test_list_and_show() -> None:
    done = CliRunner().invoke(app, ["train", "--list"])
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.output.splitlines()] == list(library())
    assert "Table 1, MNIST FC1, l_inf" in done.output
    shown = CliRunner().invoke(app, ["train", "mnist-cnn-l2-c-per", "--show", "--set", "eps.last=1", "--seed", "4"])
    assert shown.exit_code == 2  # its eps is a number, which has no parts
    shown = CliRunner().invoke(app, ["train", "mnist-cnn-l2-kw", "--show", "--set", "eps.last=0.4", "--seed", "4"])
    assert shown.exit_code == 0
    assert "seed = 4\n" in shown.output
    assert "last = 0.4" in shown.output


def test_a_recipe_survives_a_file_and_inherits(tmp_path: Path) -> None:
    first = make_recipe(changed(lr={"kind": "step", "first": 0.1, "epochs": [1, 2]}))
    path = tmp_path / "a.toml"
    path.write_text(to_toml(first.plain()), encoding="utf-8")
    assert read_recipe(str(path)) == first
    (tmp_path / "b.toml").write_text('base = "a.toml"\ngamma = 3.0\n', encoding="utf-8")
    assert read_recipe(str(tmp_path / "b.toml")) == make_recipe({**first.plain(), "gamma": 3.0})
    (tmp_path / "c.toml").write_text('base = "mnist-fc1-linf-c-per"\nepochs = 7\n', encoding="utf-8")
    assert read_recipe(str(tmp_path / "c.toml"), ["seed=3"]).epochs == 7
    path.write_text('base = "a.toml"\n', encoding="utf-8")
    with pytest.raises(pc.PolycertError, match="its own base"):
        read_recipe(str(path))
    path.write_text("gamma = = 3\n", encoding="utf-8")
    with pytest.raises(pc.PolycertError, match="not TOML"):
        read_recipe(str(path))


def test_overrides_are_toml_values() -> None:
    values = with_overrides({"a": 1, "b": {"c": 2}}, ["a=0.5", "b.c=[1, 2]", "d=c-per", 'e="x"', "f={kind='linear'}"])
    assert values == {"a": 0.5, "b": {"c": [1, 2]}, "d": "c-per", "e": "x", "f": {"kind": "linear"}}


# Draws


def test_the_order_of_an_epoch_and_a_process_s_share() -> None:
    recipe = make_recipe(SMALL)
    samples = TrainingSet.load(recipe)
    orders = [torch.cat([batch.draws.index for batch in samples.epoch(recipe, epoch)]) for epoch in (0, 1)]
    assert [sorted(order.tolist()) for order in orders] == [samples.training.tolist()] * 2
    assert not torch.equal(*orders)
    shares = [[batch.draws.index for batch in samples.epoch(recipe, 0, rank, 3)] for rank in range(3)]
    for k, batch in enumerate(samples.epoch(recipe, 0)):
        together = torch.cat([shares[rank][k] for rank in range(3)])
        assert sorted(together.tolist()) == sorted(batch.draws.index.tolist())
        assert torch.equal(batch.y, samples.y[batch.draws.index])


def test_validation_counts_what_certify_does_not_prove() -> None:
    digits = pc.data.load("mnist-sample", "train")
    x, y, ball = digits.x[:60], digits.y[:60], pc.Ball(eps=0.005, low=0.0, high=1.0)
    torch.manual_seed(0)
    net = pc.capture(build(fc1((1, 28, 28), hidden=16)), (1, 28, 28))
    certs = pc.certify(net, x[:40], None, ball, rigorous=False)
    label = torch.where(torch.arange(60) % 3 == 0, y, net(x).argmax(1))  # some right, some wrong
    by = [pc.certify(net, x[:40], label[:40], ball, method=name, rigorous=False).certified for name in ("ibp", "crown")]
    found = validate(net, x, label, ball, 40, batch_size=7)
    assert found["validation_CRE"] == pytest.approx(100 * float((~(by[0] | by[1])).double().mean()))
    assert found["validation_CTE"] == pytest.approx(100 * float((net(x).argmax(1) != label).double().mean()))
    assert 0 < int(certs.certified.sum()) < 40


def test_validation_counts_what_intervals_alone_prove() -> None:
    """relu(x) + 1/4 over [-1, 1] is at least 1/4 by intervals, and at least -1/4 by a line of slope 1/2."""
    module = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2))
    for layer, weight, bias in ((module[0], [[1.0]], [0.0]), (module[2], [[1.0], [0.0]], [0.25, 0.0])):
        layer.weight.data, layer.bias.data = torch.tensor(weight), torch.tensor(bias)
    net, x, y, ball = pc.capture(module, (1,)), torch.zeros(1, 1), torch.zeros(1, dtype=torch.long), pc.Ball(eps=1.0)
    assert not pc.certify(net, x, y, ball, rigorous=False).certified.any()
    assert validate(net, x, y, ball, 1, batch_size=1)["validation_CRE"] == 0


def test_validation_samples_are_held_out_whatever_the_seed() -> None:
    training, validation = split(2000, 500)
    assert sorted([*training.tolist(), *validation.tolist()]) == list(range(2000))
    samples = TrainingSet.load(make_recipe(changed(seed=8, validation=500)))
    assert torch.equal(samples.validation, validation)


@pytest.mark.parametrize(
    ("name", "shift", "most", "mirrors"),
    [("flip-crop", None, 4, 2), ("flip-shift", None, 1, 2), ("shift", None, 1, 1), ("flip-shift", 2, 2, 2)],
)
def test_flips_and_shifts_are_uniform_and_belong_to_the_sample(
    name: str, shift: int | None, most: int, mirrors: int
) -> None:
    change = augmentation(name, shift)
    x = torch.rand(3, 3, 8, 8)
    index = torch.tensor([5, 900, 17])
    whole = change(x, 0, 2, index)
    assert torch.equal(change(x[[2, 0]], 0, 2, index[[2, 0]]), whole[[2, 0]])
    seen = {_shift_of(x[:1], change(x[:1], 0, epoch, index[:1])) for epoch in range(400)}
    assert 0.85 * mirrors * (2 * most + 1) ** 2 < len(seen) <= mirrors * (2 * most + 1) ** 2
    assert all(abs(down - 4) <= most and abs(right - 4) <= most for _, down, right in seen)


def _shift_of(x: torch.Tensor, moved: torch.Tensor) -> tuple[bool, int, int]:
    """Which flip and shift made an image: exactly one does."""
    found = []
    for mirrored in (False, True):
        padded = nn.functional.pad(x.flip(3) if mirrored else x, (4,) * 4)
        for down in range(9):
            for right in range(9):
                if torch.equal(padded[:, :, down : down + 8, right : right + 8], moved):
                    found.append((mirrored, down, right))
    assert len(found) == 1
    return found[0]


# Runs


def test_a_run_learns_and_leaves_its_files(tmp_path: Path) -> None:
    recipe = changed(method="plain", alpha=None, gamma=None, subsample=None, validation=500, epochs=4)
    run = prepare(make_recipe(recipe), tmp_path / "run")
    row = train(run)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [r["epoch"] for r in rows] == [1, 2, 3, 4]
    assert rows[-1] == row
    assert row["validation_CTE"] < 15 < rows[0]["validation_CTE"] + 15
    assert row["loss"] < rows[0]["loss"]
    net = pc.load(tmp_path / "run" / "model.safetensors")
    x, y = run.samples.x[run.samples.validation], run.samples.y[run.samples.validation]
    wrong = 100 * float((net(x).argmax(1) != y).double().mean())
    assert wrong == pytest.approx(row["validation_CTE"])
    certs = pc.certify(net, x[:20], y[:20], run.recipe.ball(), rigorous=False)
    assert certs.summary()["CRE"] == pytest.approx(row["validation_CRE"])
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == [
        *("checkpoint-4.safetensors", "metrics.jsonl", "model.safetensors", "recipe.toml", "state.json"),
    ]


def test_a_run_begins_with_the_weights_that_it_is_told_to(tmp_path: Path) -> None:
    first = trained(tmp_path / "first", epochs=1)
    for start in (str(first.folder.model), "mnist-fc1-linf-45ep-c-per"):
        begun = prepare(make_recipe(changed(start=start)), tmp_path / "second")
        begun.begin()
        given = load_module(start if start.endswith("safetensors") else zoo.entry(start).path()).module
        for module in (begun.module, begun.averaged):
            assert all(torch.equal(p, q) for p, q in zip(module.parameters(), given.parameters(), strict=True))


def test_a_start_that_has_learnt_what_is_held_out_is_refused(tmp_path: Path) -> None:
    first = trained(tmp_path / "first", epochs=1, validation=1000)
    more = prepare(make_recipe(changed(start=str(first.folder.model), validation=1001)), tmp_path / "second")
    with pytest.raises(pc.PolycertError, match=r"held out 1000 samples .* set that to 1000 at most"):
        more.begin()
    prepare(make_recipe(changed(start=str(first.folder.model), validation=1000)), tmp_path / "third").begin()
    other = trained(tmp_path / "other", epochs=1, activation="sigmoid")
    with pytest.raises(pc.PolycertError, match="another architecture"):
        prepare(make_recipe(changed(start=str(other.folder.model))), tmp_path / "fourth").begin()


def test_a_unit_that_is_off_says_nothing_of_the_others() -> None:
    """It may have the widest range of all, and theirs still count."""
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[3000.0, 3000.0], [1.0, -1.0], [30.0, -31.0]]))
        module[0].bias.copy_(torch.tensor([-9000.0, 0.1, 0.1]))
        module[2].weight.fill_(1.0)
    x = torch.rand(50, 2, dtype=torch.float64)
    before = module(x)
    assert revive_dead_units(module, x, pc.Ball(float("inf"), 0.01), 0.3, seed=0) == 1
    torch.testing.assert_close(module(x), before)


def test_a_run_that_is_resumed_needs_its_start_no_more(tmp_path: Path) -> None:
    first = trained(tmp_path / "first", epochs=1)
    recipe = make_recipe(changed(start=str(first.folder.model), revive=0.3, epochs=2, average_from=1))
    whole = prepare(recipe, tmp_path / "whole")
    row = train(whole)

    def stop(moment: Any) -> None:
        if moment.metrics is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(prepare(recipe, tmp_path / "broken"), report=stop)
    first.folder.model.unlink()
    assert train(prepare(recipe, tmp_path / "broken"), resume=True)["loss"] == row["loss"]


def test_idle_units_become_copies_that_change_nothing() -> None:
    torch.manual_seed(0)
    convolutions = (nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2), nn.ReLU())
    module = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(54, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        module[0].bias[[0, 2]] = -9.0  # off everywhere
        module[2].bias += 1.0
        module[2].bias[1] = -9.0  # the same of a channel that is flattened
        module[5].bias += 1.0
        module[5].weight[[1, 4]] = 0.0  # constant, at a bias that is on in one of them
        module[5].bias[[1, 4]] = torch.tensor([0.7, -0.7], dtype=torch.float64)
    x, ball = torch.rand(20, 1, 8, 8, dtype=torch.float64), pc.Ball(float("inf"), 0.05)
    before = module(x), pc.bounds(module, x, ball, method="ibp")
    assert revive_dead_units(module, x, ball, 0.3, seed=0) == 5
    after = module(x), pc.bounds(module, x, ball, method="ibp")
    torch.testing.assert_close(after[0], before[0])
    torch.testing.assert_close(after[1].lower, before[1].lower)
    torch.testing.assert_close(after[1].upper, before[1].upper)
    loss = module(x).square().sum()
    loss.backward()
    for k, units in ((0, [0, 2]), (2, [1]), (5, [1, 4])):
        assert (module[k].weight.grad[units].flatten(1).abs().amax(1) > 0).all()
    assert revive_dead_units(module, x, ball, 0.3, seed=0) == 0


@pytest.mark.parametrize(
    "rest",
    [
        [nn.Conv2d(4, 4, 2, groups=2)],
        [nn.BatchNorm2d(4), nn.Conv2d(4, 4, 2)],
        [nn.Linear(6, 5)],
        [nn.Flatten(), nn.BatchNorm1d(144), nn.Linear(144, 5)],
    ],
    ids=["groups", "norm", "lines", "flat norm"],
)
def test_idle_units_stay_where_others_stand_between(rest: list[nn.Module]) -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), *rest).double().eval()
    with torch.no_grad():
        module[0].bias[:2] = -9.0
    x = torch.rand(5, 1, 8, 8, dtype=torch.float64)
    before = module(x)
    assert revive_dead_units(module, x, pc.Ball(float("inf"), 0.01), 0.3, seed=0) == 0
    assert torch.equal(module(x), before)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("nowhere", "'nowhere' is neither a file nor a model of the zoo"),
        ("mnist-e-linf-0.3-74ep-c-ibp", "has another architecture"),
        (__file__, "cannot be read .*: give a model of the zoo, or a .safetensors"),
    ],
)
def test_weights_that_are_not_there_or_do_not_fit_are_refused(start: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(pc.PolycertError, match=words):
        train(prepare(make_recipe(changed(start=start)), tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("norm", ["inf", "2"])
@pytest.mark.parametrize(
    "values",
    [
        {"method": "kw"},
        {"method": "ibp", "kappa": 0.5},
        {"method": "c-ibp", "kappa": 0.5, "beta": 0.5},
        MMR | {"method": "mmr+at"},
        {"method": "i-per+at", "alpha": 0.15, "gamma": 0.5, "attack_steps": 2, "subsample": 3},
        {"method": "mtl-ibp", "mix": 0.5, "activation": "tanh"},
        {"method": "mtl-kw", "mix": 0.5, "subsample": 5, "attack_steps": 1, "attack_step": 1.25},
    ],
    ids=lambda values: values["method"],
)
def test_every_kind_of_method_trains(values: dict[str, Any], norm: str, tmp_path: Path) -> None:
    recipe = changed(
        **{"alpha": None, "gamma": None, "norm": norm, "epochs": 1, "validation": 1980, "batch": 10, **values}
    )
    row = train(prepare(make_recipe(recipe), tmp_path / "run"))
    assert math.isfinite(row["loss"])


def test_the_average_is_that_of_numpy(tmp_path: Path) -> None:
    run = prepare(make_recipe(changed(epochs=1, average_from=0)), tmp_path / "run")
    expected = run.module[1].bias.detach().numpy().copy()
    for k, batch in enumerate(run.samples.epoch(run.recipe, 0)):
        run.step(batch, k / 5)
        expected = 0.9 * expected + 0.1 * run.module[1].bias.detach().numpy()
    assert np.allclose(run.averaged[1].bias.detach().numpy(), expected, atol=1e-7)


def test_gradients_are_clipped(tmp_path: Path) -> None:
    run = prepare(make_recipe(changed(clip=1e-3, average=None)), tmp_path / "run")
    run.step(next(run.samples.epoch(run.recipe, 0)), 0.5)
    total = sum(float((p.grad**2).sum()) for p in run.module.parameters() if p.grad is not None)
    assert math.sqrt(total) <= 1e-3 * 1.001


def test_validation_leaves_gradients_and_random_streams_alone(tmp_path: Path) -> None:
    run = prepare(make_recipe(changed(average=None)), tmp_path / "run")
    run.step(next(run.samples.epoch(run.recipe, 0)), 0.5)
    gradients = [p.grad.clone() for p in run.module.parameters() if p.grad is not None]
    weights = [p.detach().clone() for p in run.module.parameters()]
    state = torch.random.get_rng_state()
    assert run.validate()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert len(gradients) == len(weights)
    for p, gradient, weight in zip(run.module.parameters(), gradients, weights, strict=True):
        assert p.grad is not None
        assert torch.equal(p.grad, gradient)
        assert torch.equal(p, weight)


def test_training_neither_reads_nor_moves_the_global_generator(tmp_path: Path) -> None:
    weights = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.random.get_rng_state()
        run = trained(tmp_path / str(seed), method="c-per+at", epochs=1, attack_steps=2)
        assert torch.equal(torch.random.get_rng_state(), state)
        weights.append(run.module[1].weight.detach())
    assert torch.equal(*weights)
    other = trained(tmp_path / "other", method="c-per+at", epochs=1, attack_steps=2, seed=1)
    assert not torch.equal(other.module[1].weight, weights[0])


def test_the_test_set_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    load = pc.data.load
    monkeypatch.setattr(pc.data, "load", lambda name, part, *rest: opened.append(part) or load(name, part, *rest))
    trained(tmp_path / "run", epochs=1)
    assert opened == ["train"]


def test_a_loss_that_is_not_finite_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    blow_up = {"kind": "step", "first": 1e-3, "epochs": [1], "factor": 1e30}
    path = write(tmp_path, lr=blow_up, clip=None, average=None, average_from=None)
    done = CliRunner().invoke(app, ["train", str(path), "--run-dir", str(tmp_path / "run")])
    assert done.exit_code == 1
    text = " ".join(done.output.split())
    assert "not finite in epoch 2" in text
    assert "state after epoch 1 is kept" in text
    kept = load_file(tmp_path / "run" / "checkpoint-1.safetensors")
    assert all(bool(torch.isfinite(value).all()) for value in kept.values())
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    pc.load(tmp_path / "run" / "model.safetensors")


def test_an_epoch_that_ends_in_weights_that_are_not_finite_is_not_kept(tmp_path: Path) -> None:
    run = prepare(make_recipe(changed(epochs=1, clip=None)), tmp_path / "run")
    steps, done, step = run.samples.steps(run.recipe), 0, run.optimiser.step

    def spoil() -> None:
        nonlocal done
        step()
        done += 1
        if done == steps:
            next(run.module.parameters()).data.view(-1)[0] = torch.nan

    run.optimiser.step = spoil  # type: ignore[method-assign,assignment]
    with pytest.raises(pc.PolycertError, match="not finite in epoch 1"):
        train(run)
    assert not run.folder.started
    assert not run.folder.model.exists()


def test_the_best_epoch_is_kept_if_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([10.0, 50.0, 30.0, 40.0])
    monkeypatch.setattr(Run, "validate", lambda self: {"validation_CTE": 1.0, "validation_CRE": next(figures)})
    run = prepare(make_recipe(changed(select="best", epochs=4, average=None)), tmp_path / "run")
    weights: list[torch.Tensor] = []

    def report(moment: Any) -> None:
        if moment.metrics is not None:
            weights.append(run.module[1].weight.detach().clone())

    train(run, report=report)
    saved = pc.load(tmp_path / "run" / "model.safetensors")
    # Epoch 1 had the lowest figure, but eps was below the target there.
    assert torch.equal(saved.parameters()[0], weights[2])


# Resuming


ENDLESS = 1000


@contextmanager
def interruptible() -> Iterator[None]:
    """Processes started here take Ctrl-C, even where these tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def start(folder: Path, recipe: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "polycert", "train", str(recipe), "--run-dir", str(folder), "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(pc.__file__).parents[1])}
    with interruptible():
        return subprocess.Popen([*command, *arguments], env=environment, stderr=subprocess.PIPE, text=True)


def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    recipe = write(tmp_path, epochs=6, method="c-per+at", attack_steps=2)
    killed = start(tmp_path / "killed", recipe)
    state = tmp_path / "killed" / "state.json"
    deadline = time.monotonic() + 60
    while not (state.is_file() and json.loads(state.read_text())["epoch"] >= 2):
        assert time.monotonic() < deadline
        assert killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    (tmp_path / "killed" / ".checkpoint-9-abcdefgh.safetensors").write_bytes(b"half")  # as by a kill
    assert killed.returncode == -signal.SIGKILL
    done = json.loads(state.read_text())["epoch"]
    assert 2 <= done < 6
    refused = CliRunner().invoke(app, ["train", str(recipe), "--run-dir", str(tmp_path / "killed")])
    assert refused.exit_code == 1
    assert "--resume" in refused.output
    resumed = CliRunner().invoke(app, ["train", "--run-dir", str(tmp_path / "killed"), "--resume"])  # by its own recipe
    assert resumed.exit_code == 0, resumed.output
    whole = trained(tmp_path / "whole", epochs=6, method="c-per+at", attack_steps=2)
    for name in ("checkpoint-6.safetensors", "model.safetensors"):
        ours, theirs = load_file(tmp_path / "killed" / name), load_file(whole.folder.path / name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[key]) for key, value in ours.items())
    rows = [
        [{k: v for k, v in json.loads(line).items() if "seconds" not in k} for line in path.read_text().splitlines()]
        for path in (tmp_path / "killed" / "metrics.jsonl", whole.folder.metrics)
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 6
    assert sorted(os.listdir(tmp_path / "killed")) == sorted(os.listdir(whole.folder.path))


def test_resuming_needs_a_checkpoint_and_the_same_recipe(tmp_path: Path) -> None:
    path = write(tmp_path, epochs=1)
    folder = tmp_path / "run"
    none = CliRunner().invoke(app, ["train", str(path), "--run-dir", str(folder), "--resume"])
    assert none.exit_code == 1
    assert "no checkpoint" in none.output
    trained(folder, epochs=1)
    other = CliRunner().invoke(
        app, ["train", str(path), "--set", "gamma=0.7", "--set", "seed=2", "--run-dir", str(folder), "--resume"]
    )
    assert other.exit_code == 1
    assert "other values of gamma, seed" in " ".join(other.output.split())
    (folder / "state.json").write_text("{}", encoding="utf-8")
    broken = CliRunner().invoke(app, ["train", str(path), "--run-dir", str(folder), "--resume"])
    assert broken.exit_code == 1
    assert "cannot be read" in " ".join(broken.output.split())


def test_a_checkpoint_that_lacks_something_is_refused(tmp_path: Path) -> None:
    path, state = write(tmp_path, epochs=1), tmp_path / "run" / "state.json"
    trained(tmp_path / "run", epochs=1)
    facts = json.loads(state.read_text())
    state.write_text(json.dumps({key: value for key, value in facts.items() if key != "threads"}), encoding="utf-8")
    done = CliRunner().invoke(app, ["train", str(path), "--run-dir", str(tmp_path / "run"), "--resume"])
    assert done.exit_code == 1
    assert "does not fit this version" in " ".join(done.output.split())


def test_files_of_something_else_are_not_written_over(tmp_path: Path) -> None:
    own = tmp_path / "recipe.toml"
    text = "# mine\n" + to_toml(changed(epochs=1))
    own.write_text(text, encoding="utf-8")
    (tmp_path / ".model-notes").write_text("mine", encoding="utf-8")
    done = CliRunner().invoke(app, ["train", str(own), "--run-dir", str(tmp_path)])
    assert done.exit_code == 1
    assert "recipe.toml of something else" in " ".join(done.output.split())
    assert own.read_text(encoding="utf-8") == text
    own.write_text(to_toml(make_recipe(changed(epochs=1)).plain()), encoding="utf-8")  # left by a kill in epoch 1
    (tmp_path / ".recipe-abcdefgh.toml").write_text("half", encoding="utf-8")
    assert CliRunner().invoke(app, ["train", str(own), "--run-dir", str(tmp_path)]).exit_code == 0
    assert (tmp_path / ".model-notes").exists()
    assert not (tmp_path / ".recipe-abcdefgh.toml").exists()


def test_what_may_change_the_last_bits_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, epochs=1)
    trained(tmp_path / "run", epochs=1)
    state = tmp_path / "run" / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"threads": 64}), encoding="utf-8")
    done = CliRunner().invoke(app, ["train", str(path), "--run-dir", str(tmp_path / "run"), "--resume"])
    assert done.exit_code == 0
    assert "resumed with threads 1 instead of 64" in " ".join(done.output.split())


def test_lines_of_metrics_that_a_kill_cut_short_are_dropped(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", epochs=2)
    with run.folder.metrics.open("a") as file:
        file.write('{"epoch": 3, "loss": 1}\n{"epo')
    run.folder.cut_metrics(2)
    assert [json.loads(line)["epoch"] for line in run.folder.metrics.read_text().splitlines()] == [1, 2]


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    recipe = write(tmp_path, epochs=ENDLESS)
    running = start(tmp_path / "run", recipe)
    deadline, state = time.monotonic() + 60, tmp_path / "run" / "state.json"
    # The line about an epoch follows its checkpoint: with the second one, the first line is out.
    while not state.is_file() or json.loads(state.read_text())["epoch"] < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, text = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "--resume" in text
    assert "epoch 1 of 1000: loss" in text


def test_tensorboard_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    path = write(tmp_path)
    done = CliRunner().invoke(app, ["train", str(path), "--run-dir", str(tmp_path / "run"), "--tensorboard"])
    assert done.exit_code == 1
    assert "pip install tensorboard" in " ".join(done.output.split())


# Tuning


def test_grids() -> None:
    from polycert.training.tune import grid

    assert grid("gamma=0.1:10:3", log=True).values == pytest.approx((0.1, 1, 10))
    assert grid("alpha=0.1:0.2:3", log=False).values == pytest.approx((0.1, 0.15, 0.2))
    assert grid("alpha=0.1:0.2:1", log=False).values == (0.1,)


def test_a_shortened_recipe_runs_the_same_course() -> None:
    recipe = read_recipe("mnist-fc1-linf-c-per", ["lr_warm_up=10", "average=0.9", "average_from=80", "warm_up=4"])
    short = recipe.shortened(5)
    assert (short.epochs, short.lr_warm_up, short.average_from, short.warm_up) == (5, 0.5, 4, 0)
    for share in (0.1, 0.3, 0.77, 0.99):
        assert short.eps.at(share * 5) == recipe.eps.at(share * 100)
    ibp = read_recipe("mnist-fc1-linf-ibp")
    warmed = read_recipe("mnist-fc1-linf-c-per", ["warm_up=4", "attack_steps=3"])
    assert make_recipe(warmed.shortened(5).plain()).attack_steps is None
    assert ibp.shortened(20).kappa.at(7) == pytest.approx(ibp.kappa.at(35))
    assert ibp.shortened(20).learning_rate(15) == pytest.approx(ibp.learning_rate(75))


def test_tune_ranks_by_validation_and_does_not_repeat(tmp_path: Path) -> None:
    path = write(tmp_path, epochs=4)
    command = ["tune", str(path), "--log", "gamma=0.01:10:2", "--epochs", "1", "--run-dir", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    folders = sorted(folder.name for folder in (tmp_path / "runs").iterdir())
    assert folders == ["gamma=0.01", "gamma=10"]
    rows = {}
    for name in folders:
        (line,) = (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()
        rows[name] = json.loads(line)
    ranked = [line.split()[1] for line in done.stdout.splitlines() if line.strip().startswith("--set")]
    assert ranked == sorted(rows, key=lambda name: (rows[name]["validation_CRE"], rows[name]["validation_CTE"]))
    stamps = [(tmp_path / "runs" / name / "model.safetensors").stat().st_mtime_ns for name in folders]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert stamps == [(tmp_path / "runs" / name / "model.safetensors").stat().st_mtime_ns for name in folders]


def test_a_trial_that_diverges_is_ranked_last(tmp_path: Path) -> None:
    path = write(tmp_path, epochs=2, clip=None, average=None, average_from=None)
    command = ["tune", str(path), "--log", "lr=1e30:1e-3:2", "--run-dir", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    first, last = [line.split() for line in done.stdout.splitlines() if line.strip().startswith("--set")]
    assert first[1] == "lr=0.001"
    assert last[1:] == ["lr=1e+30", "diverged", "diverged"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "nothing to tune"),
        (["--log", "gamma=1:2:3", "--linear", "gamma=1:2:3"], "one range"),
        (["--log", "gamma=1:2:900", "--linear", "alpha=1:2:900"], "at most 1000 trials"),
        (["--log", "gamma=1:2:3", "--set", "validation=0", "--set", "certified=0"], "above 0"),
        (["--log", "gamma"], "KEY=A:B:N"),
        (["--log", "gamma=0:1:3"], "above 0"),
        (["--linear", "alpha=-1:1:3"], "'alpha'"),
        (["--linear", "gama=0:1:3"], "unknown key"),
        (["--linear", "alpha=1:1:0"], "N from 1"),
    ],
)
def test_bad_usage_of_tune(arguments: list[str], word: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["tune", str(write(tmp_path)), "--run-dir", str(tmp_path / "runs"), *arguments])
    assert done.exit_code == 2
    assert word in " ".join(done.output.split())
    assert not (tmp_path / "runs").exists()
