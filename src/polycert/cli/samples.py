"""What commands about samples make of their options: a plan, a model, and checked samples."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polycert import data
from polycert.bounding.chunking import batch_size_for
from polycert.bounding.methods import get_method, get_relaxations
from polycert.certification.envelope import classes_of
from polycert.cli import option_values
from polycert.cli.exit_status import BadUsage
from polycert.cli.options import ProofOptions, RecordOptions
from polycert.errors import PolycertError
from polycert.graph import Network
from polycert.graph.inputs import as_inputs, as_labels
from polycert.models.model_files import load
from polycert.records.files import check_output
from polycert.runtime.execution import checked_device
from polycert.runtime.limits import read_arrays
from polycert.sets.ball import Ball


@dataclass(frozen=True, eq=False)
class CheckedSamples:
    """A network and samples that were checked, with their positions in the data set.

    Attributes:
        network: the model.
        x, y: samples `[n, *input_shape]` and labels `[n]`; None without labels.
        index: positions in the data set, `[n]`.
        source: the name of the data set or file.
        total: the number of samples in the source.
        batch, threads: samples of a batch, and batches at work at once.
    """

    network: Network
    x: Tensor
    y: Tensor | None
    index: Tensor
    source: str
    total: int
    batch: int
    threads: int


class Plan(NamedTuple):
    """The values of options that can be checked before any work is done."""

    norm: float
    low: float | None
    high: float | None
    memory: int | None
    device: torch.device
    threads: int


def plan(options: RecordOptions) -> Plan:
    """Check the options, set threads and seed, and return the options' values."""
    if (options.dataset is None) == (options.inputs is None):
        raise BadUsage("give either --dataset NAME or --inputs FILE")
    if options.dataset is not None and options.dataset not in data.NAMES:
        raise BadUsage(f"unknown data set {options.dataset!r}: the data sets are {', '.join(data.NAMES)}")
    if options.data_dir is not None and not options.data_dir.is_dir():
        raise BadUsage(f"--data-dir: there is no folder {str(options.data_dir)!r}")
    if options.weights is not None and Path(options.model).exists():
        raise BadUsage(f"--weights goes with package.module:function; {options.model!r} has its own weights")
    # Batches side by side use the cores better than torch's own threads within one.
    threads = options.threads or torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    low, high = (None, None) if options.dataset is None else (0.0, 1.0)
    return Plan(
        option_values.number(options.norm, "--norm"),
        option_values.bound(options.low, "--low", low),
        option_values.bound(options.high, "--high", high),
        option_values.size(options.memory),
        device(options.device),
        threads,
    )


def check_proof(options: ProofOptions) -> None:
    """Raise `PolycertError` for an output file, method or relaxation that cannot be, before any work is done."""
    if options.out is not None:
        check_output(options.out)
    get_method(options.method)
    get_relaxations(options.relaxation, options.method)


def prepare(options: RecordOptions, ball: Ball, plan: Plan, method: str = "crown") -> CheckedSamples:
    """Load the model and check all samples, so that none is refused halfway."""
    network = load_model(options.model, options.weights, plan.device)
    x, y, source = _read(options)
    chosen = option_values.positions(options.indices, len(x))[: options.limit]
    index = torch.tensor(chosen)
    network, inputs = as_inputs(network, x[index].to(plan.device))
    ball.at(inputs)
    graph = network.bind()
    labels = None
    if y is not None:
        if len(y) != len(x):
            raise PolycertError(f"there are {len(x)} samples but {len(y)} labels in {source}")
        labels = as_labels(y[index].to(plan.device), torch.zeros_like(index, device=plan.device), classes_of(graph))
    numbers = get_method(method).numbers(graph)
    batch = batch_size_for(graph, numbers, plan.memory, plan.threads, batch_size=options.batch_size)
    return CheckedSamples(network, inputs, labels, index, source, len(x), batch, plan.threads)


def proof_settings(options: ProofOptions, samples: CheckedSamples) -> dict[str, Any]:
    """Return the keyword arguments that every proof takes in the same way."""
    return {
        "method": options.method,
        "relaxation": options.relaxation,
        "rigorous": not options.fast,
        "batch_size": samples.batch,
        "threads": samples.threads,
        "seed": options.seed,
    }


def device(name: str) -> torch.device:
    """Return a device by name; raises `BadUsage` unless it can compute in float64."""
    try:
        return checked_device(name, torch.float64)
    except PolycertError as error:
        raise BadUsage(f"--device: {error}") from None


def load_model(model: str, weights: Path | None, device: torch.device | str = "cpu") -> Network:
    """Return a model by the name that the command line gives."""
    if ":" in model and not Path(model).exists():
        sys.path.append(
            os.getcwd()
        )  # a factory in the working directory is found; as the last entry it shadows no other module
    return load(model, weights, device=device)


def _read(options: RecordOptions) -> tuple[Tensor, Tensor | None, str]:
    """Return samples, labels if there are any, and the name of their source."""
    if options.dataset is not None:
        found = data.load(options.dataset, "test", options.data_dir)
        return found.x, found.y, f"{found.name} ({found.split})"
    assert options.inputs is not None
    arrays = _read_npz(options.inputs)
    if "x" not in arrays or arrays["x"].ndim < 2 or len(arrays["x"]) == 0:
        raise PolycertError(f"{options.inputs.name} must hold samples x [n, …], and may hold labels y [n]")
    x, y = (_numbers(arrays[name], name) if name in arrays else None for name in ("x", "y"))
    assert x is not None
    return x, y, options.inputs.name


def _numbers(array: np.ndarray, name: str) -> Tensor:
    """Return whole numbers as int64, and others in their type, in the machine's byte order."""
    kind = array.dtype.kind
    if kind not in "biuf" or array.dtype.itemsize > 8:
        raise PolycertError(f"the array {name} must hold real numbers of at most 64 bits, got {array.dtype}")
    dtype = array.dtype.newbyteorder("=") if kind == "f" else np.int64
    return torch.from_numpy(np.atleast_1d(array).astype(dtype))


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays x and y of a file, as far as it has them."""
    if not path.is_file():
        raise PolycertError(f"there is no file {str(path)!r}")
    return read_arrays(path, ("x", "y"))
