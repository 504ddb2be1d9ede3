"""The commands and their help, in one table. A command's code is imported when it runs: `--help` needs no torch."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from typing import Annotated, NamedTuple

import typer

from polycert.cli import options

app = typer.Typer(
    name="polycert",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: polycert certify net.safetensors --dataset mnist --eps 0.1",
)


def _version(wanted: bool) -> None:
    """Print the version and end, if it is asked for."""
    if wanted:
        from polycert import __version__

        typer.echo(f"polycert {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Prove how far an input may move before a neural network can change its mind."""


class Command(NamedTuple):
    """A command, whose function is `NAME_command(options)` in `polycert.cli.NAME`."""

    name: str
    options: type[options.OutputOptions]
    help: str
    examples: tuple[str, ...]


COMMANDS = (
    Command(
        "certify",
        options.CertifyOptions,
        "Prove, for each sample, how far it may move inside a ball without losing its label.",
        (
            "polycert certify net.safetensors --dataset mnist --eps 0.1 --limit 100",
            "polycert certify nets:big --weights big.pt --inputs x.npz --eps 2/255 --out o.csv",
        ),
    ),
    Command(
        "radius",
        options.RadiusOptions,
        "Search, for each sample, for the largest ball that can be proved.",
        ("polycert radius net.safetensors --dataset mnist --norm 2 --upper 1.2 --limit 50",),
    ),
    Command(
        "train",
        options.TrainOptions,
        "Train a provably robust network by a recipe; a killed run continues with --resume.",
        (
            "polycert train mnist-fc1-linf-150ep-all-c-per --run-dir runs/fc1",
            "polycert train my.toml --set epochs=20 --set eps.last=0.105 --run-dir runs/short",
            "polycert train --list",
        ),
    ),
    Command(
        "tune",
        options.TuneOptions,
        "Try values of a recipe's keys on the validation split, never on the test set; "
        "what is finished is not repeated.",
        ("polycert tune mnist-fc1-l2-50ep-c-per+at --log gamma=0.1:10:5 --epochs 5 --run-dir runs/tune",),
    ),
    Command(
        "verify",
        options.VerifyOptions,
        "Decide, for each sample, whether its whole ball keeps the label: a proof or a counterexample. "
        "With a VNN-LIB property: print sat, unsat, unknown or timeout first.",
        (
            "polycert verify net.safetensors --dataset mnist --eps 0.1 --timeout 60 --out o.csv",
            "The same command again takes up what was interrupted.",
            "polycert verify net.onnx property.vnnlib --timeout 60",
        ),
    ),
    Command(
        "attack",
        options.AttackOptions,
        "Search the ball around each sample for a point of another class.",
        ("polycert attack net.safetensors --dataset mnist --eps 0.1 --limit 100",),
    ),
    Command(
        "report",
        options.ReportOptions,
        "Write one self-contained HTML page about models: figures, charts, pictures, samples, the paper's claims.",
        (
            "polycert report runs/fc1 --out report.html",
            "polycert report runs/kw runs/fc1/evaluation.json --out all.html",
        ),
    ),
    Command(
        "evaluate",
        options.EvaluateOptions,
        "Measure a whole row of a table: errors, attacks, proofs, radii, each with its 95 % interval.",
        (
            "polycert evaluate runs/fc1/model.safetensors --out runs/fc1/evaluation.json --samples",
            "polycert evaluate net.onnx --dataset mnist --eps 0.1 --exact 3600 --out row.json",
        ),
    ),
    Command(
        "zoo",
        options.ZooOptions,
        "List the models that come with polycert, or show one's recipe and figures.",
        (
            "polycert zoo",
            "polycert zoo mnist-fc1-linf-45ep-c-per",
        ),
    ),
    Command(
        "reproduce",
        options.ReproduceOptions,
        "The paper's tables and figures from stored records, its figures beside ours; "
        "what is missing says what makes it.",
        (
            "polycert reproduce table1",
            "polycert reproduce all --out docs",
            "polycert reproduce figure5 --add runs/cifar/model.safetensors --limit 1000",
        ),
    ),
    Command(
        "export", options.ExportOptions, "Write a model as an ONNX file.", ("polycert export net.safetensors net.onnx",)
    ),
    Command(
        "data",
        options.DataOptions,
        "Fetch a data set, or check the copy that is there; prints its folder.",
        (
            "polycert data mnist",
            "polycert data cifar10 --dir ~/datasets",
        ),
    ),
    Command(
        "demo",
        options.DemoOptions,
        "Train a small provably robust model, certify it and write a report.",
        ("polycert demo --out demo-out",),
    ),
)


def _run(name: str, given: options.OutputOptions) -> None:
    """Import a command and call it with its options."""
    getattr(importlib.import_module(f"polycert.cli.{name}"), f"{name}_command")(given)


for command in COMMANDS:
    options.add_command(
        app, command.name, command.options, partial(_run, command.name), command.help, *command.examples
    )


def main() -> None:
    """Run the command line, and end the process."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a character that the terminal lacks must not end the program
            stream.reconfigure(errors="replace")
    app(prog_name="polycert")
