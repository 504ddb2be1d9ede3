"""The public contract: the names that users type in Python and on the command line. None may vanish."""

from __future__ import annotations

import inspect

import pytest
from typer.testing import CliRunner

import polycert as pc
from polycert.cli.app import app

# Each public function with the arguments that users may name.
FUNCTIONS = {
    "capture": "model input_shape",
    "load": "path weights device",
    "save": "module path architecture input_shape",
    "export": "net path",
    "Ball": "norm eps low high",
    "certify": "net x y ball method relaxation rigorous batch_size memory seed progress",
    "bounds": "net x ball spec method relaxation rigorous",
    "envelope": "net x y ball method relaxation rigorous",
    "largest_radius": "net x y norm upper low high tolerance method relaxation strategy rigorous batch_size "
    "memory seed progress",
    "verify": "net x y ball timeout total workers batch_size memory solver trust_solver seed journal progress",
    "attack": "net x y ball steps restarts seed",
    "evaluate": "net x y ball seed progress",
    "losses.PER": "method alpha gamma terms at subsample",
    "data.load": "name split",
    "zoo.load": "name device",
}
MEMBERS = {
    "Certificates": "radius certified margin prediction nearest label to_frame save summary",
    "Bounds": "lower upper",
    "Envelope": "slope offset distances margins",
    "Radii": "radius evaluations to_frame save",
    "Verdicts": "status counterexample to_frame save",
    "Attack": "inputs success margin",
}
LOSSES = "Plain AT KW IBP CrownIBP MMR PER MTLIBP MTLKW L1 Stability Sum"
COMMANDS = {
    "data": "--dir",
    "certify": "--dataset --inputs --norm --eps --method --relaxation --limit --indices --out --device --threads "
    "--memory --seed --quiet",
    "radius": "--upper --tolerance --strategy --norm --out",
    "attack": "--dataset --eps --steps --restarts --out",
    "verify": "--dataset --norm --eps --timeout --workers --trust-solver --out",
    "evaluate": "--dataset --eps --exact --out",
    "train": "--set --resume --run-dir",
    "report": "--out",
    "reproduce": "--out",
    "demo": "--out",
    "export": "",
    "zoo": "",
    "tune": "",
}


def find(path: str) -> object:
    """A public object by its path below `polycert`."""
    found: object = pc
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("path", FUNCTIONS)
def test_functions_take_the_arguments_of_the_contract(path: str) -> None:
    assert set(FUNCTIONS[path].split()) <= set(inspect.signature(find(path)).parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MEMBERS)
def test_results_have_the_members_of_the_contract(name: str) -> None:
    kind = find(name)
    have = set(dir(kind)) | set(getattr(kind, "__annotations__", ()))
    assert set(MEMBERS[name].split()) <= have


def test_losses_of_the_contract() -> None:
    assert set(LOSSES.split()) <= set(pc.losses.__all__)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_have_the_options_of_the_contract(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"})
    assert shown.exit_code == 0, shown.output
    assert [option for option in COMMANDS[command].split() if option not in shown.output] == []


def test_the_program_has_an_entry_point_and_a_version() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.stdout) == (0, f"polycert {pc.__version__}\n")
