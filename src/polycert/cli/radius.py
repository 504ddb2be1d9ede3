"""`polycert radius`."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from polycert.certification.radius import STRATEGIES, largest_radius
from polycert.cli import option_values
from polycert.cli.exit_status import BadUsage, usage
from polycert.cli.options import RadiusOptions
from polycert.cli.output import Finished, about_proof, clean_error, finish
from polycert.cli.progress import Advance, in_slices, progress_bar
from polycert.cli.samples import check_proof, plan, prepare, proof_settings
from polycert.records.certificates import Radii
from polycert.runtime.execution import processes
from polycert.sets.ball import Ball


def radius_command(options: RadiusOptions) -> None:
    """Search the largest radii, save the records, and print a summary."""
    with usage():
        check_proof(options)
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
            samples.network,
            x,
            y,
            norm=asked.norm,
            upper=upper,
            low=asked.low,
            high=asked.high,
            tolerance=tolerance,
            strategy=options.strategy,
            progress=progress,
            **proof_settings(options, samples),
        )
        return replace(found, index=index)

    with processes(asked.device) as team, progress_bar(quiet=options.quiet or not team.first) as bar:
        samples = prepare(options, ball, asked, options.method)
        done = in_slices(samples, bar, "searching", ask, team)
    if not team.first:
        return
    found = Radii.join(done.parts)
    frame = found.rows()
    wrong = 100 * float((frame["prediction"] != frame["label"]).mean())
    rows = {
        "clean error (CTE)": clean_error(samples, wrong),
        "mean radius": f"{frame['radius'].mean():.5g}",
        "median radius": f"{frame['radius'].median():.5g}",
        "proved up to --upper": str(int((frame["radius"] >= upper).sum())),
        "mean evaluations": f"{frame['evaluations'].mean():.2f}",
        "mean proofs": f"{frame['proofs'].mean():.2f}",
        "strategy": options.strategy,
        "upper, tolerance": f"{options.upper}, {options.tolerance}",
    }
    finish(options, samples, Finished(done.count, done.seconds), found, rows | about_proof(options, asked))
