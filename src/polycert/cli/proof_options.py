"""What `certify` and `radius` do with their common options."""

from __future__ import annotations

from typing import Any

from polycert.bounding.methods import get_method, get_relaxations
from polycert.cli.options import ProofOptions
from polycert.cli.output import Rows, about_set
from polycert.cli.samples import CheckedSamples, Plan
from polycert.records.files import check_output


def check(options: ProofOptions) -> None:
    """What can be refused before torch does any work."""
    if options.out is not None:
        check_output(options.out)
    get_method(options.method)
    get_relaxations(options.relaxation, options.method)


def about_proof(options: ProofOptions, asked: Plan) -> Rows:
    """The set and the method, for the summary."""
    return {
        **about_set(asked),
        "method": options.method,
        "relaxation": options.relaxation,
        "rigorous": "no (--fast)" if options.fast else "yes",
    }


def settings(options: ProofOptions, job: CheckedSamples) -> dict[str, Any]:
    """What every proof is told in the same way."""
    return {
        "method": options.method,
        "relaxation": options.relaxation,
        "rigorous": not options.fast,
        "batch_size": job.batch,
        "threads": job.threads,
        "seed": options.seed,
    }
