"""The commands and their help."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer
from rich.console import Console

from polycert.cli import options
from polycert.cli.exit_status import BadUsage, tell

app = typer.Typer(
    name="polycert",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: polycert certify net.safetensors --dataset mnist --eps 0.1",
)


def _version(wanted: bool) -> None:
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


def _certify(given: options.CertifyOptions) -> None:
    from polycert.cli.certify import certify_command

    certify_command(given)


def _radius(given: options.RadiusOptions) -> None:
    from polycert.cli.certify import radius_command

    radius_command(given)


def _train(given: options.TrainOptions) -> None:
    from polycert.cli.train import train_command

    train_command(given)


def _tune(given: options.TuneOptions) -> None:
    from polycert.cli.tune import tune_command

    tune_command(given)


def _verify(given: options.VerifyOptions) -> None:
    from polycert.cli.verify import verify_command
    from polycert.cli.verify_property import verify_property

    if given.asked is None:
        verify_command(given)
    else:
        verify_property(given)


def _attack(given: options.AttackOptions) -> None:
    from polycert.cli.verify import attack_command

    attack_command(given)


def _report(given: options.ReportOptions) -> None:
    from polycert.cli.report import report_command

    report_command(given)


def _evaluate(given: options.EvaluateOptions) -> None:
    from polycert.cli.evaluate import evaluate_command

    evaluate_command(given)


def _zoo(given: options.ZooOptions) -> None:
    from polycert.cli.zoo import zoo_command

    zoo_command(given)


def _reproduce(given: options.ReproduceOptions) -> None:
    from polycert.cli.reproduce import reproduce_command

    reproduce_command(given)


def _export(given: options.ExportOptions) -> None:
    from polycert.cli.samples import load_model
    from polycert.graph.onnx.export import export

    if given.target.suffix != ".onnx":
        raise BadUsage(f"networks are exported as .onnx, not {given.target.name!r}")
    export(load_model(given.model, given.weights), given.target)
    if not given.quiet:
        tell(f"written to {given.target}, checked with onnxruntime")


def _data(given: options.DataOptions) -> None:
    from polycert import data

    if given.name not in data.NAMES:
        raise BadUsage(f"unknown data set {given.name!r}: the data sets are {', '.join(data.NAMES)}")
    if given.directory is not None and not given.directory.is_dir():
        raise BadUsage(f"--dir: there is no folder {str(given.directory)!r}")
    folder = data.fetch(given.name, given.directory, None if given.quiet else tell)
    Console(highlight=False).print(str(folder), soft_wrap=True, markup=False)


def _demo(given: options.DemoOptions) -> None:
    import torch

    demo = importlib.import_module("polycert.cli.demo")
    if given.out.exists() and not given.out.is_dir():
        raise BadUsage(f"--out must be a folder, but {str(given.out)!r} is a file")
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    console = Console(highlight=False, quiet=given.quiet)
    demo.run(given.out, lambda line: console.print(line, markup=False, soft_wrap=True))


options.add_command(
    app,
    "certify",
    options.CertifyOptions,
    _certify,
    "Prove, for each sample, how far it may move inside a ball without losing its label.",
    "polycert certify net.safetensors --dataset mnist --eps 0.1 --limit 100",
    "polycert certify nets:big --weights big.pt --inputs x.npz --eps 2/255 --out o.csv",
)
options.add_command(
    app,
    "radius",
    options.RadiusOptions,
    _radius,
    "Search, for each sample, for the largest ball that can be proved.",
    "polycert radius net.safetensors --dataset mnist --norm 2 --upper 1.2 --limit 50",
)
options.add_command(
    app,
    "train",
    options.TrainOptions,
    _train,
    "Train a provably robust network by a recipe; a killed run continues with --resume.",
    "polycert train mnist-fc1-linf-c-per --run-dir runs/fc1",
    "polycert train my.toml --set epochs=20 --set eps.last=0.105 --run-dir runs/short",
    "polycert train --list",
)
options.add_command(
    app,
    "tune",
    options.TuneOptions,
    _tune,
    "Try values of a recipe's keys on the validation split, never on the test set; what is finished is not repeated.",
    "polycert tune mnist-fc1-linf-c-per --log gamma=0.1:10:5 --linear alpha=0.1:0.2:3 --epochs 5 --run-dir runs/tune",
)
options.add_command(
    app,
    "verify",
    options.VerifyOptions,
    _verify,
    "Decide, for each sample, whether its whole ball keeps the label: a proof or a counterexample. "
    "With a VNN-LIB property: print sat, unsat, unknown or timeout first.",
    "polycert verify net.safetensors --dataset mnist --eps 0.1 --timeout 60 --out o.csv",
    "The same command again takes up what was interrupted.",
    "polycert verify net.onnx property.vnnlib --timeout 60",
)
options.add_command(
    app,
    "attack",
    options.AttackOptions,
    _attack,
    "Search the ball around each sample for a point of another class.",
    "polycert attack net.safetensors --dataset mnist --eps 0.1 --limit 100",
)
options.add_command(
    app,
    "report",
    options.ReportOptions,
    _report,
    "Write one self-contained HTML page about models: figures, charts, pictures, samples, the paper's claims.",
    "polycert report runs/fc1 --out report.html",
    "polycert report results/table1 runs/fc1/evaluation.json --out all.html",
)
options.add_command(
    app,
    "evaluate",
    options.EvaluateOptions,
    _evaluate,
    "Measure a whole row of a table: errors, attacks, proofs, radii, each with its 95 % interval.",
    "polycert evaluate runs/fc1/model.safetensors --out runs/fc1/evaluation.json --samples",
    "polycert evaluate net.onnx --dataset mnist --eps 0.1 --exact 3600 --out row.json",
)
options.add_command(
    app,
    "zoo",
    options.ZooOptions,
    _zoo,
    "List the models that come with polycert, or show one's recipe and figures.",
    "polycert zoo",
    "polycert zoo mnist-fc1-linf-fast-c-per",
)
options.add_command(
    app,
    "reproduce",
    options.ReproduceOptions,
    _reproduce,
    "The paper's tables and figures from stored records, its figures beside ours; what is missing says what makes it.",
    "polycert reproduce table1",
    "polycert reproduce all --records results --out docs",
    "polycert reproduce figure5 --add runs/cifar/model.safetensors --limit 1000",
)
options.add_command(
    app,
    "export",
    options.ExportOptions,
    _export,
    "Write a model as an ONNX file.",
    "polycert export net.safetensors net.onnx",
)
options.add_command(
    app,
    "data",
    options.DataOptions,
    _data,
    "Fetch a data set, or check the copy that is there; prints its folder.",
    "polycert data mnist",
    "polycert data cifar10 --dir ~/datasets",
)
options.add_command(
    app,
    "demo",
    options.DemoOptions,
    _demo,
    "Train a small provably robust model, certify it and write a report.",
    "polycert demo --out demo-out",
)


def main() -> None:
    """Run the command line; ends the process."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a character that the terminal lacks must not end the program
            stream.reconfigure(errors="replace")
    app(prog_name="polycert")
