"""The models that come with polycert: verified, listed, shown, added."""

from __future__ import annotations

import json
import math
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import polycert as pc
from polycert.cli import app
from polycert.models.architectures import build, fc1
from polycert.training import read_recipe
from polycert.training.recipe_files import to_toml
from polycert.zoo import registry
from tests.runtime.test_distributed import RECIPE

SHAPE = (1, 28, 28)


def polycert(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A trained and evaluated run, as far as the zoo can tell."""
    made = tmp_path / "runs" / "tiny"
    made.mkdir(parents=True)
    architecture = fc1(SHAPE, hidden=5)
    pc.save(build(architecture), made / "model.safetensors", architecture, SHAPE)
    (made / "recipe.toml").write_text(to_toml(RECIPE), encoding="utf-8")
    done = polycert("evaluate", made / "model.safetensors", "--limit", 3, "--out", made / "evaluation.json")
    assert done.exit_code == 0, done.output
    return made


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo of its own."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    monkeypatch.setattr(registry, "home", lambda: folder)
    return folder


def test_there_are_models() -> None:
    assert "mnist-fc1-linf-45ep-c-per" in pc.zoo.names()
    assert sum(path.stat().st_size for path in registry.home().iterdir()) < 20 * 2**20


@pytest.mark.parametrize("name", pc.zoo.names())
def test_every_model_is_what_its_record_says(name: str) -> None:
    entry = pc.zoo.entry(name)
    assert sha256(entry.path().read_bytes()).hexdigest() == entry.sha256
    net, record, recipe = pc.zoo.load(name), entry.record, read_recipe(str(entry.path(".toml")))
    assert record["model"] == name
    facts = {key: record[key] for key in ("dataset", "architecture", "activation", "method", "norm", "seed")}
    assert facts == {key: getattr(recipe, key) for key in facts}
    assert record["eps"] == recipe.target
    values = [parameter.detach().double().numpy() for parameter in net.parameters()]
    assert record["parameter_norm"] == pytest.approx(math.sqrt(sum((value**2).sum() for value in values)))
    assert record["n"] == 10000
    assert record["CTE"] <= record["PGD"] <= record["PGD_strong"] <= record["CRE_CROWN"]


def test_the_first_model_works_as_recorded() -> None:
    """On 500 digits that are not the recorded ones, but near them."""
    net, record = pc.zoo.load("mnist-fc1-linf-45ep-c-per"), pc.zoo.entry("mnist-fc1-linf-45ep-c-per").record
    sample = pc.data.load("mnist-sample")
    certs = pc.certify(net, sample.x[:200], sample.y[:200], pc.Ball(eps=record["eps"], low=0.0, high=1.0))
    assert abs(certs.summary()["CRE"] - record["CRE_Lin"]) < 8
    assert certs.summary()["CTE"] < 5


def test_a_damaged_model_is_refused(empty: Path, run_dir: Path) -> None:
    made = pc.zoo.add(run_dir)
    assert pc.zoo.load("tiny").input_shape == SHAPE
    content = bytearray(made.path().read_bytes())
    content[-1] ^= 1
    made.path().write_bytes(content)
    with pytest.raises(pc.PolycertError, match=r"damaged.*install polycert again"):
        pc.zoo.load("tiny")


def test_unknown_names() -> None:
    with pytest.raises(pc.PolycertError, match="did you mean 'mnist-fc1-linf-45ep-c-per'"):
        pc.zoo.load("mnist-fc1-linf-45ep-cper")
    with pytest.raises(pc.PolycertError, match="the models are"):
        pc.zoo.load("?")


def test_a_run_is_added(empty: Path, run_dir: Path) -> None:
    assert pc.zoo.names() == ()
    pc.zoo.add(run_dir)
    pc.zoo.add(run_dir, "other")
    pc.zoo.add(run_dir)  # again, in its own place
    assert pc.zoo.names() == ("other", "tiny")
    assert {p.name for p in empty.iterdir()} == {
        "manifest.json",
        *(f"{name}{ending}" for name in ("other", "tiny") for ending in (".safetensors", ".toml", ".json")),
    }
    assert pc.zoo.entry("other").record["model"] == "other"
    assert pc.zoo.entry("tiny").recipe == (run_dir / "recipe.toml").read_text()
    x = torch.from_numpy(np.random.default_rng(0).random((2, *SHAPE), dtype=np.float32))
    assert torch.equal(pc.zoo.load("other")(x), pc.load(run_dir / "model.safetensors")(x))


def test_what_cannot_be_added(empty: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pc.PolycertError, match="small letters"):
        pc.zoo.add(run_dir, "../Escape")
    monkeypatch.setattr(registry, "LARGEST", 1000)
    with pytest.raises(pc.PolycertError, match="does not fit"):
        pc.zoo.add(run_dir)
    monkeypatch.setattr(registry, "LARGEST", 2**20)
    recipe = (run_dir / "recipe.toml").read_text()
    (run_dir / "recipe.toml").write_text("epochs = = 3")
    with pytest.raises(pc.PolycertError, match="no recipe"):
        pc.zoo.add(run_dir)
    (run_dir / "recipe.toml").write_text(recipe)
    shutil.move(run_dir / "evaluation.json", run_dir / "elsewhere.json")
    with pytest.raises(pc.PolycertError, match=r"no evaluation\.json.*polycert evaluate"):
        pc.zoo.add(run_dir)
    assert list(empty.iterdir()) == []


def test_the_command_lists_and_shows() -> None:
    listed = polycert("zoo")
    assert listed.exit_code == 0
    assert all(name in listed.stdout for name in pc.zoo.names())
    assert "…" not in listed.stdout
    shown = polycert("zoo", "mnist-fc1-linf-45ep-c-per")
    assert shown.exit_code == 0
    assert 'method = "c-per"' in shown.stdout
    assert "CRE_Lin" in shown.stdout
    missing = polycert("zoo", "nothing-like-it")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert len(missing.stderr.splitlines()) == 1


def test_the_command_adds(empty: Path, run_dir: Path) -> None:
    assert polycert("zoo", "mine", "--add", run_dir).exit_code == 0
    assert json.loads((empty / "manifest.json").read_text()).keys() == {"mine"}
    assert polycert("zoo", "--add", run_dir / "nowhere").exit_code == 2
