"""`polycert verify NET.onnx PROPERTY.vnnlib`: print the answer, then a counterexample in the format of VNN-COMP."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import torch

from polycert.cli import option_values
from polycert.cli.exit_status import BadUsage, tell
from polycert.cli.options import VerifyOptions
from polycert.errors import PolycertError
from polycert.graph.onnx import ENDINGS, OnnxNetwork, read_onnx
from polycert.records.files import whole_file
from polycert.verification.vnnlib import PropertyVerdict, decide, read_property

# The options that a property does not answer itself.
ALLOWED = {
    *("model", "asked", "timeout", "seed", "threads", "workers", "memory", "solver", "trust_solver"),
    *("out", "quiet", "debug"),
}


def verify_property(options: VerifyOptions) -> None:
    """Decide a property; print the answer, and write it to a file as well if one is given."""
    model, out, timeout = Path(options.model), options.out, option_values.number(options.timeout, "--timeout")
    assert options.asked is not None
    refused = [item.name for item in fields(options) if item.name not in ALLOWED]
    given = [name for name in refused if getattr(options, name) != getattr(VerifyOptions, name)]
    if given:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise BadUsage(f"a property determines the samples and the set: leave out {flags}")
    if not model.name.endswith(ENDINGS):
        raise BadUsage(f"a VNN-LIB property is about an .onnx file, got {options.model!r}")
    if not timeout > 0:
        raise BadUsage(f"--timeout must be a positive number of seconds, got {options.timeout}")
    if out is not None and not out.resolve().parent.is_dir():
        raise BadUsage(f"cannot write {str(out)!r}: its folder does not exist; make it first")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if not model.is_file():
        raise PolycertError(f"there is no file {options.model!r}")
    network = read_onnx(model)
    if not options.quiet:
        _tell_if_unprovable(network, model.name)
    found = decide(
        network,
        read_property(options.asked),
        timeout=timeout,
        workers=options.workers or 1,
        solver=options.solver,
        trust_solver=options.trust_solver,
        seed=options.seed,
        journal=None if out is None else out.with_name(f"{out.name}.journal"),
        memory=option_values.size(options.memory) or 2**30,
    )
    if found.resumed and not options.quiet:
        tell(f"{found.resumed} boxes were decided in the journal of an earlier run")
    text = answer(found)
    if out is not None:
        with whole_file(out) as name:
            Path(name).write_text(text, encoding="utf-8")
    sys.stdout.write(text)


def _tell_if_unprovable(network: OnnxNetwork, name: str) -> None:
    """Say so if no verdict `unsat` is possible: rounded weights are others than those that the file describes."""
    computed = network.bind().computed or network.bind(torch.float64).computed
    if computed:
        tell(
            f"{name} computes weights with rounding, at {computed[0]!r}: nothing can be proved, only counterexamples "
            "can be found; store the computed weights in the file, for instance by constant folding at export"
        )


def answer(verdict: PropertyVerdict) -> str:
    """Return the status in the first line, and for `sat` the input and output as one S-expression."""
    if verdict.witness is None:
        return f"{verdict.status}\n"
    parts = [f"({name}_{k} {value!r})" for name, values in _named(verdict) for k, value in enumerate(values)]
    return f"{verdict.status}\n({chr(10).join(parts)})\n"


def _named(verdict: PropertyVerdict) -> list[tuple[str, list[float]]]:
    """Return the values of the counterexample by the letter of their variables."""
    assert verdict.witness is not None
    return [("X", verdict.witness.x.tolist()), ("Y", verdict.witness.y.tolist())]
