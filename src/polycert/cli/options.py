"""The options of every command, declared once as dataclasses. This module needs no torch, so that --help is quick."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from polycert.cli.exit_status import guard

about_samples = partial(typer.Option, rich_help_panel="Samples")
about_question = partial(typer.Option, rich_help_panel="Question")
running = partial(typer.Option, rich_help_panel="Running")


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """Options that choose the model and the samples."""

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="An .onnx, polycert's .safetensors, an .npz with its index.json, or package.module:function.",
            show_default=False,
        ),
    ]
    weights: Annotated[
        Path | None,
        about_samples(metavar="FILE", help="For package.module:function: .safetensors, .npz or .pt."),
    ] = None
    dataset: Annotated[
        str | None,
        about_samples(metavar="NAME", help="The test samples of mnist, fashion-mnist, cifar10 or mnist-sample."),
    ] = None
    data_dir: Annotated[
        Path | None,
        about_samples(metavar="DIR", help="Where the data set's files are, if not in the cache."),
    ] = None
    inputs: Annotated[
        Path | None,
        about_samples(
            metavar="FILE",
            help="Your own samples: an .npz with x and y; without y, the model's own predictions count.",
        ),
    ] = None
    indices: Annotated[
        str | None,
        about_samples(metavar="A:B", help="Only these: 0:100, ::10 or 3,7,20."),
    ] = None
    limit: Annotated[int | None, about_samples(min=1, help="At most so many.")] = None


@dataclass(frozen=True, kw_only=True)
class SetOptions:
    """Options that choose the set around each sample."""

    norm: Annotated[str, about_question(help="inf, or any number from 1.")] = "inf"
    low: Annotated[
        str | None,
        about_question(
            metavar="NUMBER",
            help="Smallest valid input, or none (default: 0 for a data set, none for --inputs).",
        ),
    ] = None
    high: Annotated[
        str | None,
        about_question(
            metavar="NUMBER",
            help="Largest valid input, or none (default: 1 for a data set, none for --inputs).",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class MethodOptions(SetOptions):
    """Options that choose the set around each sample and the bound method."""

    method: Annotated[str, about_question(metavar="NAME", help="ibp, forward, crown, crown-ibp or alpha-crown.")] = (
        "crown"
    )
    relaxation: Annotated[str, about_question(metavar="NAME", help="parallel, adaptive or best.")] = "parallel"
    fast: Annotated[
        bool,
        about_question("--fast", help="Ignore rounding errors: quicker, but no proof."),
    ] = False


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Options that choose how much is printed."""

    quiet: Annotated[bool, running("--quiet", "-q", help="No progress bar and no remarks.")] = False
    debug: Annotated[bool, running("--debug", help="Show tracebacks.")] = False


@dataclass(frozen=True, kw_only=True)
class MachineOptions(OutputOptions):
    """Options that choose device, threads, batches and seed."""

    device: Annotated[str, running(help="Where to compute, such as cpu or cuda:0.")] = "cpu"
    threads: Annotated[int | None, running(min=1, help="Batches at work at once (default: all cores).")] = None
    batch_size: Annotated[int | None, running(min=1, help="Samples at a time, instead of --memory.")] = None
    memory: Annotated[
        str | None,
        running(metavar="SIZE", help="Memory that the batches may take, such as 500M (default: half of what is free)."),
    ] = None
    seed: Annotated[int, running(help="Seed of what is random.")] = 0


@dataclass(frozen=True, kw_only=True)
class RecordOptions(MachineOptions, SetOptions, SampleOptions):
    """Options of commands that write a record for each sample; help shows the bases from right to left."""

    out: Annotated[
        Path | None,
        running(metavar="FILE", help="Write one record per sample: .csv, .json or .parquet."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ProofOptions(RecordOptions, MethodOptions):
    """Options of commands that prove something about each sample by bounds."""


@dataclass(frozen=True, kw_only=True)
class EpsOptions:
    """The option for the radius of the ball."""

    eps: Annotated[
        str,
        about_question(metavar="NUMBER", help="Radius of the ball: 0.1 or 2/255.", show_default=False),
    ]


@dataclass(frozen=True, kw_only=True)
class CertifyOptions(EpsOptions, ProofOptions):
    """`polycert certify`."""


@dataclass(frozen=True, kw_only=True)
class AttackOptions(EpsOptions, RecordOptions):
    """`polycert attack`."""

    steps: Annotated[int, about_question(min=1, help="Steps of each restart.")] = 100
    restarts: Annotated[int, about_question(min=1, help="Runs from different points.")] = 5


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(RecordOptions):
    """`polycert verify`: samples with a radius, or a property."""

    asked: Annotated[
        Path | None,
        typer.Argument(metavar="[PROPERTY]", help="A .vnnlib file, for an .onnx network.", show_default=False),
    ] = None
    eps: Annotated[str, about_question(metavar="NUMBER", help="Radius of the ball: 0.1 or 2/255.")] = ""
    timeout: Annotated[str, about_question(metavar="SECONDS", help="For each sample's search.")] = "60"
    total: Annotated[str, about_question(metavar="SECONDS", help="For all samples together.")] = "inf"
    solver: Annotated[str, about_question(metavar="NAME", help="Of the last stage: highs or scip.")] = "highs"
    trust_solver: Annotated[
        bool, about_question(help="Count as robust what only a solver believes, up to its tolerances.")
    ] = False
    workers: Annotated[int | None, running(min=1, help="Processes of one thread each (default: one a core).")] = None


@dataclass(frozen=True, kw_only=True)
class RadiusOptions(ProofOptions):
    """`polycert radius`."""

    upper: Annotated[str, about_question(metavar="NUMBER", help="Largest radius of interest.")] = "1"
    tolerance: Annotated[str, about_question(metavar="NUMBER", help="How exactly the radius is found.")] = "1e-4"
    strategy: Annotated[str, about_question(metavar="NAME", help="root, envelope or bisection.")] = "root"


@dataclass(frozen=True, kw_only=True)
class ReportOptions(OutputOptions):
    """`polycert report`."""

    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS",
            help="Records (.json), run folders of train, or folders of either.",
            show_default=False,
        ),
    ]
    out: Annotated[Path, running(metavar="FILE", help="The page to write: .html.")] = Path("report.html")
    paper: Annotated[
        bool, about_question("--paper", help="Check the paper's claims on the records, on a page of their own.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(RecordOptions):
    """`polycert evaluate`."""

    norm: Annotated[
        str, about_question(help="inf, or any number from 1 (default: what the model was trained for, or inf).")
    ] = ""
    eps: Annotated[
        str,
        about_question(metavar="NUMBER", help="Radius of the ball (default: what the model was trained for)."),
    ] = ""
    minimum: Annotated[
        str,
        about_question(metavar="NAME", help="Of hidden layers for norms below inf: either (the paper's), open, joint."),
    ] = "either"
    upper: Annotated[
        str | None,
        about_question(metavar="NUMBER", help="Largest radius of the search (default: the paper's, or 4 eps)."),
    ] = None
    tolerance: Annotated[str, about_question(metavar="NUMBER", help="How exactly the radius is found.")] = "1e-4"
    search_limit: Annotated[int | None, about_question(min=1, help="Search only the first so many samples.")] = None
    steps: Annotated[int, about_question(min=1, help="Steps of each restart of the stronger attack.")] = 50
    restarts: Annotated[int, about_question(min=1, help="Runs of the stronger attack from different points.")] = 4
    fast: Annotated[bool, about_question("--fast", help="Ignore rounding errors: quicker, but no proof.")] = False
    exact: Annotated[
        str | None,
        about_question(metavar="SECONDS", help="Settle what bounds leave open, in at most so long; inf for no limit."),
    ] = None
    exact_timeout: Annotated[str, about_question(metavar="SECONDS", help="For each sample's exact search.")] = "60"
    exact_limit: Annotated[int | None, about_question(min=1, help="Settle only the first so many samples.")] = None
    name: Annotated[
        str | None, about_question(help="The model's name in the record (default: that of its run or file).")
    ] = None
    samples: Annotated[
        bool,
        running(
            "--samples",
            help="Find each sample's nearest counterexample, and write FILE's .samples.parquet and .examples.npz.",
        ),
    ] = False
    out: Annotated[
        Path | None,
        running(metavar="FILE", help="Write the record: .json. The same command again takes up an interrupted one."),
    ] = None
    workers: Annotated[
        int | None, running(min=1, help="Processes of exact searches, one thread each (default: one a core).")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ZooOptions(OutputOptions):
    """`polycert zoo`."""

    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A model of the list; all are listed without.", show_default=False),
    ] = None
    add: Annotated[
        Path | None,
        running(metavar="RUN_DIR", help="For developers: put a trained and evaluated run into the zoo, as NAME."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ExportOptions(OutputOptions):
    """`polycert export`."""

    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A model, as for certify.", show_default=False),
    ]
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The .onnx file to write.", show_default=False)]
    weights: Annotated[
        Path | None,
        running(metavar="FILE", help="For package.module:function: .safetensors, .npz or .pt."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class DataOptions(OutputOptions):
    """`polycert data`."""

    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="mnist, fashion-mnist, cifar10 or mnist-sample.", show_default=False),
    ]
    directory: Annotated[
        Path | None,
        running("--dir", metavar="DIR", help="Where the files may already be; the cache is next."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class DemoOptions(OutputOptions):
    """`polycert demo`."""

    out: Annotated[Path, running(metavar="DIR", help="Folder for the results.")] = Path("demo-out")
    threads: Annotated[int | None, running(min=1, help="Threads of torch.")] = None


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(OutputOptions):
    """Options of commands that train by a recipe."""

    recipe: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", help="A .toml file, or a name that train --list shows.", show_default=False),
    ] = None
    overrides: Annotated[
        list[str] | None,
        about_question("--set", metavar="KEY=VALUE", help="Change a value of the recipe; may be repeated."),
    ] = None
    run_dir: Annotated[
        Path | None,
        running(metavar="DIR", help="Folder for checkpoints, metrics and the model.", show_default=False),
    ] = None
    data_dir: Annotated[
        Path | None,
        running(metavar="DIR", help="Where the data set's files are, if not in the cache."),
    ] = None
    device: Annotated[str, running(help="Where to compute, such as cpu or cuda:0.")] = "cpu"
    threads: Annotated[int | None, running(min=1, help="Threads of torch.")] = None
    memory: Annotated[
        str | None,
        running(metavar="SIZE", help="Memory that a batch of validation may take, such as 500M."),
    ] = None
    seed: Annotated[int | None, running(help="Seed of everything random, instead of the recipe's.")] = None


@dataclass(frozen=True, kw_only=True)
class TrainOptions(RecipeOptions):
    """`polycert train`."""

    list_recipes: Annotated[bool, about_question("--list", help="List the recipes that come with polycert.")] = False
    show: Annotated[bool, about_question("--show", help="Print the whole recipe instead of training.")] = False
    resume: Annotated[bool, running("--resume", help="Continue the run in --run-dir, by its own recipe.")] = False
    tensorboard: Annotated[bool, running("--tensorboard", help="Write metrics for TensorBoard as well.")] = False


@dataclass(frozen=True, kw_only=True)
class TuneOptions(RecipeOptions):
    """`polycert tune`."""

    log: Annotated[
        list[str] | None,
        about_question(metavar="KEY=A:B:N", help="N values of a key from A to B on a logarithmic scale."),
    ] = None
    linear: Annotated[
        list[str] | None,
        about_question(metavar="KEY=A:B:N", help="N values of a key from A to B on a linear scale."),
    ] = None
    epochs: Annotated[
        int | None, about_question(min=1, help="Length of a trial; the recipe's course is shortened.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(OutputOptions):
    """`polycert reproduce`."""

    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="table1 to table10, trained, figure1 to figure9, all.", show_default=False),
    ]
    records: Annotated[
        Path | None,
        about_question(metavar="DIR", help="Where the records are (default: paper/results).", show_default=False),
    ] = None
    out: Annotated[
        Path | None,
        running(
            metavar="DIR", help="Write .md, .tex and .csv, or .png and .svg, into this folder.", show_default=False
        ),
    ] = None
    add: Annotated[
        Path | None,
        about_question(metavar="MODEL", help="Measure what figure 1, 3, 5, 8 or 9 needs of a model, and store it."),
    ] = None
    limit: Annotated[int | None, about_question(min=1, help="With --add figure 5 or 9: at most so many samples.")] = (
        None
    )
    index: Annotated[int | None, about_question(min=0, help="With --add figure 1: the test sample.")] = None
    data_dir: Annotated[
        Path | None,
        running(metavar="DIR", help="Where the data set's files are, if not in the cache."),
    ] = None
    threads: Annotated[int | None, running(min=1, help="Batches at work at once, with --add.")] = None


AnyOptions = TypeVar("AnyOptions", bound=OutputOptions)


def add_command(
    app: typer.Typer,
    name: str,
    options: type[AnyOptions],
    run: Callable[[AnyOptions], None],
    text: str,
    *examples: str,
) -> None:
    """Add the command `name`, which calls `run` with its options under the guard; `examples` end its help."""

    def call(**values: Any) -> None:
        given = options(**values)
        guard(lambda: run(given), debug=given.debug)

    # typer takes a command's options from its signature.
    hints = get_type_hints(options, include_extras=True)
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                item.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if item.default is MISSING else item.default,
                annotation=hints[item.name],
            )
            for item in fields(options)
        ]
    )
    call.__annotations__ = hints
    app.command(name, help=text, epilog="\n\n".join(["Examples:", *examples]))(call)
