"""`verify` and `decide`: verdicts on samples and sets, with a proof or a counterexample."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor, nn

from polycert.bounding.chunking import batch_size_for, check_counts
from polycert.certification.envelope import classes_of
from polycert.errors import PolycertError
from polycert.graph import Network
from polycert.graph.fingerprint import network_digest
from polycert.graph.inputs import as_inputs, as_labels, check_finite
from polycert.records.provenance import box_text
from polycert.sets.ball import Array, Ball, Region
from polycert.verification.journal import open_journal
from polycert.verification.pool import in_rounds
from polycert.verification.programs import get_solver
from polycert.verification.question import LabelQuestion, Question, SetQuestion, VerificationSettings
from polycert.verification.snapshot import NetworkSnapshot
from polycert.verification.specification import Specification
from polycert.verification.verdicts import SampleVerdict, Verdict, Verdicts

Progress = Callable[[int, int], None]  # samples done, samples in all


def verify(
    net: Network | nn.Module,
    x: Array,
    y: Array | None,
    ball: Ball,
    *,
    timeout: float = 60.0,
    total: float = math.inf,
    workers: int = 1,
    batch_size: int | None = None,
    memory: int = 2**30,
    solver: str = "highs",
    trust_solver: bool = False,
    seed: int = 0,
    journal: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Verdicts:
    """Decide for each sample whether every point of its set keeps the label: `robust`, `falsified` or `unknown`.

    Each stage works on the samples that the stages before left open: a forward pass, `ibp` and `crown` bounds, an
    attack, optimised slopes, branch and bound on the sides of unstable units and, where few inputs can move, on the
    inputs, and a mixed-integer program for the rest.

    Args:
        net: from `capture` or `load`, or a module, on the CPU.
        x: inputs `[n, *input_shape]`; y: labels `[n]`, or None for the model's own predictions.
        ball: the set around each sample.
        timeout: seconds for each sample's search; total: seconds for all together.
        workers: the number of processes, of one thread each; 1 works in this one. With more, a script needs the usual
            `if __name__ == "__main__":`.
        batch_size: how many samples go through the cheap stages together.
        memory: bytes that the open nodes of one search may take.
        solver: the solver of the mixed-integer program at the end: `highs`, or `scip` if pyscipopt is installed.
        trust_solver: call samples robust that only a solver believes to be, up to its tolerances (`proof` then says
            `solver`); otherwise they are `unknown`.
        seed: the seed of the attack.
        journal: a file to which verdicts are appended as they come. If it is there already, its verdicts are taken over
            (they are marked `resumed`), and samples that are `unknown` in it are tried again.
        progress: a function that is called with (samples done, samples in all).

    Returns:
        The verdicts on all samples, in order.

    Examples:
        >>> net = torch.nn.Linear(2, 2)
        >>> verify(net, torch.rand(3, 2), None, Ball(eps=0.0)).status
        ('robust', 'robust', 'robust')
    """
    if not timeout > 0 or not total > 0:
        raise PolycertError(f"timeout and total must be seconds above 0, got {timeout} and {total}")
    get_solver(solver)
    check_counts(workers=workers, memory=memory)
    question = ask(net, x, y, ball, VerificationSettings(timeout=timeout, memory=memory, solver=solver, seed=seed))
    batch = batch_size_for(question.net.own, batch_size=batch_size)
    found: dict[int, Verdict] = {}
    with closing(decisions(question, batch=batch, workers=workers, total=total, journal=journal)) as verdicts:
        for position, verdict in verdicts:
            found[position] = verdict.trusting() if trust_solver else verdict
            if progress is not None:
                progress(len(found), len(question))
    return collect(question, found)


def decide(
    net: Network | nn.Module,
    region: Region,
    spec: Specification,
    *,
    timeout: float,
    memory: int = 2**30,
    solver: str = "highs",
    trust_solver: bool = False,
    seed: int = 0,
) -> Verdict:
    """Decide whether every point of a set keeps a linear specification of the output.

    Args:
        net: any network the library takes, with its weights as they are now.
        region: the set around one sample: `Ball(...).at(x)` with x `[1, *shape]`, best in float64. A box with sides of
            its own for every feature is `Ball(inf, eps, low, high)` with arrays `low` and `high` and a large eps.
        spec: the specification: at every point, at least one row of every clause must be positive.
            `Specification.never` makes one from unsafe sets, `Specification.margins` from a label.
        timeout, memory, solver, trust_solver, seed: as in `verify`.

    Returns:
        A verdict: `robust` is a proof that the specification holds at every point, and `falsified` means that the
        counterexample breaks it, which forward passes have checked. A set that only a solver believes to be robust is
        `unknown` with the proof `solver`.

    Examples:
        >>> net = polycert.capture(torch.nn.Linear(2, 2), (2,))
        >>> region = polycert.Ball(eps=0.1).at(torch.zeros(1, 2, dtype=torch.float64))
        >>> decide(net, region, Specification.margins(0, 2), timeout=10).status in ("robust", "falsified")
        True
    """
    get_solver(solver)
    network, _ = as_inputs(net, region.x)
    if len(region.x) != 1:
        raise PolycertError(f"decide takes the set around one sample, got {len(region.x)}: call it for each")
    if tuple(spec.rows.shape[1:]) != network.output_shape:
        raise PolycertError(
            f"the specification has rows of shape {tuple(spec.rows.shape[1:])}, "
            f"the network's output has {network.output_shape}"
        )
    exact = region.to(torch.float64)
    network.check_inside(exact)
    settings = VerificationSettings(timeout=timeout, memory=memory, solver=solver, seed=seed)
    question = SetQuestion(NetworkSnapshot.of(network), exact, settings, (spec,))
    ((_, verdict),) = decisions(question, batch=1, workers=1, total=timeout)
    return verdict.trusting() if trust_solver else verdict


def ask(
    net: Network | nn.Module,
    x: Array,
    y: Array | None,
    ball: Ball,
    settings: VerificationSettings,
    index: Tensor | None = None,
) -> LabelQuestion:
    """Check the arguments, and return the question that they ask; `index` `[n]` says where the samples come from."""
    network, inputs = as_inputs(net, x)
    region = ball.at(inputs.double())
    network.check_inside(region)
    snapshot = NetworkSnapshot.of(network)
    classes = classes_of(snapshot.own)
    with torch.no_grad():
        outputs = torch.cat([snapshot.own.forward(part.to(snapshot.own.dtype)) for part in inputs.split(1000)])
    check_finite(snapshot.own, outputs)
    prediction = outputs.argmax(1)
    label = as_labels(y, prediction, classes)
    places = torch.arange(len(inputs)) if index is None else index
    return LabelQuestion(snapshot, region, settings, label, prediction, places)


def decisions(
    question: Question, *, batch: int, workers: int, total: float, journal: str | os.PathLike[str] | None = None
) -> Generator[tuple[int, Verdict], None, None]:
    """Decide all samples, in any order, and yield pairs of a position and its verdict; those of the journal come first.

    The journal is locked until the generator is closed.
    """
    if journal is None:
        yield from in_rounds(question, torch.arange(len(question)), batch=batch, workers=workers, seconds=total)
        return
    with open_journal(Path(journal), question) as opened:
        yield from opened.known.items()
        left = torch.tensor([k for k in range(len(question)) if k not in opened.known], dtype=torch.long)
        for position, verdict in in_rounds(question, left, batch=batch, workers=workers, seconds=total):
            opened.append(position, verdict)
            yield position, verdict


def collect(question: LabelQuestion, found: dict[int, Verdict]) -> Verdicts:
    """Return the records of the samples that have a verdict, in the question's order."""
    verdicts = [
        SampleVerdict(
            int(question.index[k]),
            int(question.label[k]),
            int(question.prediction[k]),
            float(question.region.eps[k]),
            found[k],
        )
        for k in sorted(found)
    ]
    region, settings = question.region, question.settings
    return Verdicts(
        tuple(verdicts),
        settings.timeout,
        settings.solver,
        norm=region.norm,
        box=box_text(region.low, region.high),
        network=network_digest(question.net),
    )
