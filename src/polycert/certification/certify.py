"""`certify`, `bounds`, `envelope`: the public questions, with their checks, batches and rigour."""

from __future__ import annotations

import time
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from polycert.bounding.backward import concretise_bounds
from polycert.bounding.chunking import batch_size_for
from polycert.bounding.methods import get_method, get_relaxations, passes
from polycert.bounding.precision import error_model, live_graph, plain_products
from polycert.certification.envelope import Envelope, classes_of
from polycert.certification.verdict import Certifier
from polycert.errors import PolycertError
from polycert.forms import Dense, Form, Identity
from polycert.graph import Graph, Network
from polycert.graph.inputs import as_inputs, as_labels, check_finite
from polycert.records.bounds import Bounds
from polycert.records.certificates import Certificates
from polycert.runtime.threads import Progress, over_batches
from polycert.sets.ball import Array, Ball, Region
from polycert.sets.rounding import holds


def _predict(graph: Graph, x: Tensor, batch: int) -> Tensor:
    outputs = torch.cat([graph.forward(part.to(graph.dtype)) for part in x.split(batch)])
    check_finite(graph, outputs)
    return outputs


def certify(
    net: Network | nn.Module,
    x: Array,
    y: Array | None,
    ball: Ball,
    *,
    method: str = "crown",
    relaxation: str = "parallel",
    rigorous: bool = True,
    batch_size: int | None = None,
    memory: int | None = None,
    threads: int = 1,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Certificates:
    """Prove, for each sample, how far it may move inside the ball and the box without losing its label (PEC).

    Args:
        net: from `capture` or `load`, or a module.
        x: inputs `[n, *input_shape]`; y: labels `[n]`, or None for the model's own predictions.
        ball: the set around each sample.
        method: `ibp`, `forward`, `crown`, `crown-ibp`.
        relaxation: `parallel` (the paper's), `adaptive` (CROWN), `best` of both for each sample and class.
        rigorous: cover every rounding error, so that a certificate is a proof about the real-valued network with
            the stored weights; False is the fast mode.
        batch_size: samples at a time; memory: bytes that all batches at work may take, if no batch size is given.
        threads: batches at work at once; torch's own threads should then be one.
        seed: accepted for symmetry; nothing here is random.
        progress: called with (samples done, samples in all).

    Examples:
        >>> net = torch.nn.Linear(2, 2)
        >>> certs = certify(net, torch.rand(3, 2), None, Ball(eps=0.01))
        >>> len(certs)
        3
    """
    get_method(method), get_relaxations(relaxation, method)
    network, inputs = as_inputs(net, x)
    region = ball.at(inputs)
    network.check_inside(region)
    judge = Certifier(network, method, relaxation, rigorous)
    classes = classes_of(judge.graph)
    numbers = get_method(method).numbers(judge.graph)
    batch = batch_size_for(judge.graph, numbers, memory, threads, batch_size=batch_size)
    with torch.no_grad():
        prediction = _predict(judge.graph, inputs, batch).argmax(1)
    label = as_labels(y, prediction, classes)
    with plain_products(judge.graph.device):
        parts = over_batches(
            lambda part: _certify_part(judge, region[part], label[part], prediction[part], part.start),
            len(inputs),
            batch,
            threads,
            progress,
        )
    return Certificates.join(parts)


def _certify_part(judge: Certifier, region: Region, label: Tensor, prediction: Tensor, begin: int) -> Certificates:
    clock = time.perf_counter()
    verdict, in_double = judge.decide(region, label)
    # A sample that the model itself gets wrong (or ties on) has radius 0; a certificate already excludes that.
    wrong = (prediction != label) & ~verdict.certified
    radius = torch.where(wrong, torch.zeros_like(verdict.radius), verdict.radius)
    seconds = (time.perf_counter() - clock) / len(label)
    own = str(judge.graph.dtype).removeprefix("torch.")
    return Certificates(
        index=torch.arange(begin, begin + len(label), device=label.device),
        label=label,
        prediction=prediction,
        margin=verdict.margin,
        certified=verdict.certified,
        radius=radius,
        nearest=verdict.nearest,
        eps=region.eps,
        seconds=torch.full_like(radius, seconds),
        dtype=tuple("float64" if flag else own for flag in in_double.tolist()),
        norm=region.norm,
        method=judge.method,
        relaxation=judge.relaxation,
        rigorous=judge.rigorous,
    )


def envelope(
    net: Network | nn.Module,
    x: Array,
    y: Array | None,
    ball: Ball,
    *,
    method: str = "crown",
    relaxation: str = "parallel",
    rigorous: bool = False,
) -> Envelope:
    """The polyhedral envelope of each sample: `.slope` (U), `.offset`, `.distances(signed=False)`.

    Differentiable in the network's parameters. Arguments as in `certify`; the whole batch at once.
    """
    network, inputs = as_inputs(net, x)
    graph = live_graph(network, inputs, rigorous)
    with torch.no_grad():
        prediction = graph.forward(inputs.to(graph.dtype)).argmax(1)
    label = as_labels(y, prediction, classes_of(graph))
    region = ball.at(inputs.to(graph.dtype))
    if rigorous:
        network.check_inside(region)
    with plain_products(graph.device) if rigorous else nullcontext():
        judge = Certifier(network, method, relaxation, rigorous)
        return judge.envelope(graph, region, label)


def bounds(
    net: Network | nn.Module,
    x: Array,
    ball: Ball,
    *,
    spec: Array | None = None,
    method: str = "crown",
    relaxation: str = "parallel",
    rigorous: bool = False,
) -> Bounds:
    """Bounds of the network's outputs over each sample's set, or of rows `spec` of them.

    Args:
        spec: None for the outputs themselves, or coefficients `[rows, outputs]` or `[n, rows, outputs]`.

    The other arguments are those of `certify`. Differentiable in the network's parameters.
    """
    network, inputs = as_inputs(net, x)
    if network.softmax:
        raise PolycertError("the network ends in a softmax, which was dropped: bound a model that returns logits")
    graph = live_graph(network, inputs, rigorous)
    if rigorous and spec is not None and not holds(graph.dtype, torch.as_tensor(spec)):
        graph = network.bind(torch.float64)
    region = ball.at(inputs.to(graph.dtype))
    if rigorous:
        network.check_inside(region)
    rounding = error_model(graph) if rigorous else None
    form, shape = _spec_form(graph, spec)
    with plain_products(graph.device) if rigorous else nullcontext():
        runs = passes(graph, region, method, relaxation, rounding)
        found = [concretise_bounds(run, *get_method(method).sides(run, form), joint=True) for run in runs]
    lower, upper = found[0]
    for low, high in found[1:]:
        lower, upper = torch.maximum(lower, low), torch.minimum(upper, high)
    return Bounds(lower.reshape(-1, *shape), upper.reshape(-1, *shape))


def _spec_form(graph: Graph, spec: Array | None) -> tuple[Form, tuple[int, ...]]:
    like = torch.empty(0, dtype=graph.dtype, device=graph.device)
    if spec is None:
        return Identity(graph.output_shape, like), graph.output_shape
    rows = torch.as_tensor(spec, dtype=graph.dtype, device=graph.device)
    if rows.dim() == 1 + len(graph.output_shape):
        rows = rows.unsqueeze(0)
    if tuple(rows.shape[2:]) != graph.output_shape:
        raise PolycertError(
            f"spec must have rows of shape {graph.output_shape}, the network's output, got {tuple(rows.shape[2:])}"
        )
    return Dense(rows), (rows.shape[1],)
