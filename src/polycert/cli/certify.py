"""`polycert certify` and `polycert radius`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
from torch import Tensor

from polycert.bounding.methods import get_method, get_relaxations
from polycert.certification.certify import certify
from polycert.certification.radius import STRATEGIES, largest_radius
from polycert.cli import option_values
from polycert.cli.exit_status import BadUsage, usage
from polycert.cli.options import CertifyOptions, ProofOptions, RadiusOptions
from polycert.cli.output import Finished, Rows, about_set, clean_error, finish
from polycert.cli.progress import Advance, in_slices, progress_bar
from polycert.cli.samples import CheckedSamples, Plan, plan, prepare
from polycert.records.certificates import Certificates
from polycert.records.files import check_output
from polycert.records.radii import Radii
from polycert.runtime.distributed import processes
from polycert.sets.ball import Ball, norm_text

STATUSES = ("certified", "partial", "unproved", "misclassified")


def _settings(options: ProofOptions, job: CheckedSamples) -> dict[str, Any]:
    """What every proof is told in the same way."""
    return {
        "method": options.method,
        "relaxation": options.relaxation,
        "rigorous": not options.fast,
        "batch_size": job.batch,
        "threads": job.threads,
        "seed": options.seed,
    }


def certify_command(options: CertifyOptions) -> None:
    """Certify, save, summarise."""
    with usage():
        _check(options)
        asked = plan(options)
        ball = Ball(asked.norm, option_values.number(options.eps, "--eps"), asked.low, asked.high)

    def ask(x: Tensor, y: Tensor | None, index: Tensor, progress: Advance) -> Certificates:
        found = certify(
            job.network,
            x,
            y,
            ball,
            progress=progress,
            **_settings(options, job),
        )
        return replace(found, index=index)

    with processes(asked.device) as team, progress_bar(quiet=options.quiet or not team.first) as bar:
        job = prepare(options, ball, asked, options.method)
        done = in_slices(job, bar, "certifying", ask, team)
    if not team.first:
        return
    certs = Certificates.join(done.parts)
    frame = certs.to_frame().assign(norm=norm_text(asked.norm))
    counts = frame["status"].value_counts()
    figures = certs.summary()
    rows = {
        "clean error (CTE)": clean_error(job, figures["CTE"]),
        "certified robust error (CRE)": f"{figures['CRE']:.2f} %",
        "average certified bound (ACB)": f"{figures['ACB']:.5g}",
        **{status: str(counts.get(status, 0)) for status in STATUSES},
        "eps": options.eps,
    }
    finish(options, job, Finished(done.count, done.seconds), frame, rows | _asked(options, asked))


def radius_command(options: RadiusOptions) -> None:
    """Search, save, summarise."""
    with usage():
        _check(options)
        asked = plan(options)
        upper = option_values.number(options.upper, "--upper")
        tolerance = option_values.number(options.tolerance, "--tolerance")
        if options.strategy not in STRATEGIES:
            raise BadUsage(f"unknown strategy {options.strategy!r}: choose one of {', '.join(STRATEGIES)}")
        if not 0 < tolerance < upper < float("inf"):
            raise BadUsage(f"need 0 < --tolerance < --upper, got {options.tolerance} and {options.upper}")
        ball = Ball(asked.norm, upper, asked.low, asked.high)

    def ask(x: Tensor, y: Tensor | None, index: Tensor, progress: Advance) -> Radii:
        found = largest_radius(
            job.network,
            x,
            y,
            norm=asked.norm,
            upper=upper,
            low=asked.low,
            high=asked.high,
            tolerance=tolerance,
            strategy=options.strategy,
            progress=progress,
            **_settings(options, job),
        )
        return replace(found, index=index)

    with processes(asked.device) as team, progress_bar(quiet=options.quiet or not team.first) as bar:
        job = prepare(options, ball, asked, options.method)
        done = in_slices(job, bar, "searching", ask, team)
    if not team.first:
        return
    frame = pd.concat([part.to_frame() for part in done.parts], ignore_index=True).assign(
        norm=norm_text(asked.norm),
        method=options.method,
        relaxation=options.relaxation,
        rigorous=not options.fast,
        strategy=options.strategy,
        upper=upper,
        tolerance=tolerance,
    )
    wrong = 100 * float((frame["prediction"] != frame["label"]).mean())
    rows = {
        "clean error (CTE)": clean_error(job, wrong),
        "mean radius": f"{frame['radius'].mean():.5g}",
        "median radius": f"{frame['radius'].median():.5g}",
        "proved up to --upper": str(int((frame["radius"] >= upper).sum())),
        "mean evaluations": f"{frame['evaluations'].mean():.2f}",
        "strategy": options.strategy,
        "upper, tolerance": f"{options.upper}, {options.tolerance}",
    }
    finish(options, job, Finished(done.count, done.seconds), frame, rows | _asked(options, asked))


def _check(options: ProofOptions) -> None:
    """What can be refused before torch does any work."""
    if options.out is not None:
        check_output(options.out)
    get_method(options.method)
    get_relaxations(options.relaxation, options.method)


def _asked(options: ProofOptions, asked: Plan) -> Rows:
    return {
        **about_set(asked),
        "method": options.method,
        "relaxation": options.relaxation,
        "rigorous": "no (--fast)" if options.fast else "yes",
    }
