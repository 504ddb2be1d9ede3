"""`polycert certify`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from torch import Tensor

from polycert.certification.certify import certify
from polycert.cli import option_values
from polycert.cli.exit_status import usage
from polycert.cli.options import CertifyOptions
from polycert.cli.output import Finished, about_proof, clean_error, finish
from polycert.cli.progress import Advance, in_slices, progress_bar
from polycert.cli.samples import check_proof, plan, prepare, proof_settings
from polycert.records.certificates import Certificates
from polycert.runtime.execution import processes
from polycert.sets.ball import Ball

STATUSES = ("certified", "partial", "unproved", "misclassified")


def certify_command(options: CertifyOptions) -> None:
    """Certify the samples, save the records, and print a summary."""
    with usage():
        check_proof(options)
        asked = plan(options)
        ball = Ball(asked.norm, option_values.number(options.eps, "--eps"), asked.low, asked.high)

    def ask(x: Tensor, y: Tensor | None, index: Tensor, progress: Advance) -> Certificates:
        found = certify(
            samples.network,
            x,
            y,
            ball,
            progress=progress,
            **proof_settings(options, samples),
        )
        return replace(found, index=index)

    with processes(asked.device) as team, progress_bar(quiet=options.quiet or not team.first) as bar:
        samples = prepare(options, ball, asked, options.method)
        done = in_slices(samples, bar, "certifying", ask, team)
    if not team.first:
        return
    certs = Certificates.join(done.parts)
    counts, figures = Counter(certs.status), certs.summary()
    rows = {
        "clean error (CTE)": clean_error(samples, figures["CTE"]),
        "certified robust error (CRE)": f"{figures['CRE']:.2f} %",
        "average certified bound (ACB)": f"{figures['ACB']:.5g}",
        **{status: str(counts[status]) for status in STATUSES},
        "eps": options.eps,
    }
    finish(options, samples, Finished(done.count, done.seconds), certs, rows | about_proof(options, asked))
