"""`certify`, `bounds`, `envelope`: the public questions, with their checks, batches and rigour."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from polycert.backward import LOWER, UPPER
from polycert.envelope import Envelope, better, classes_of, envelopes
from polycert.errors import PolycertError
from polycert.forms import Dense, Form, Identity
from polycert.graph import Graph, Network, capture
from polycert.memory import batch_size_for
from polycert.methods import get_method, get_relaxations, passes
from polycert.records import Certificates
from polycert.rounding import Rounding
from polycert.rules import Affine
from polycert.sets import Array, Ball, Region

# A sample that fails by less than this many times its slack is looked at again in float64. The margin loses its own
# slack once and, through wider hidden bounds, up to four times more on the released checkpoints.
SECOND_LOOK = 5
Progress = Callable[[int, int], None]  # samples done, samples in all


class Bounds(NamedTuple):
    """Elementwise bounds of outputs, or of rows of them, over each sample's set."""

    lower: Tensor
    upper: Tensor


def as_network(net: Network | nn.Module, x: Tensor) -> Network:
    """A network as it is, or a module captured for the shape of its inputs."""
    return net if isinstance(net, Network) else capture(net, tuple(x.shape[1:]))


def as_inputs(net: Network | nn.Module, x: Array) -> tuple[Network, Tensor]:
    """Inputs as a tensor of the network's type, or in float64 if they came so; or a clear error."""
    given = torch.as_tensor(x)
    if given.dim() < 2 or given.shape[0] == 0:
        raise PolycertError(f"inputs need a batch axis and at least one sample, got shape {tuple(given.shape)}")
    network = as_network(net, given)
    if tuple(given.shape[1:]) != network.input_shape:
        raise PolycertError(
            f"inputs have samples of shape {tuple(given.shape[1:])} but the network takes {network.input_shape}"
        )
    wide = given if given.dtype == torch.float64 else given.to(network.dtype)
    if not bool(torch.isfinite(wide).all()):
        raise PolycertError("inputs contain NaN or infinite values: clean them first")
    return network, wide


def as_labels(y: Array | None, prediction: Tensor, classes: int) -> Tensor:
    """Labels `[batch]`, or the model's own predictions."""
    if y is None:
        return prediction
    label = torch.as_tensor(y, device=prediction.device)
    if label.shape != prediction.shape or label.is_floating_point():
        raise PolycertError(
            f"labels must be {len(prediction)} integers, got {label.dtype} of shape {tuple(label.shape)}"
        )
    if bool(((label < 0) | (label >= classes)).any()):
        raise PolycertError(f"labels must be in 0 … {classes - 1}, got {int(label.min())} … {int(label.max())}")
    return label.long()


def check_finite(graph: Graph, values: Tensor) -> None:
    """Weights that are not finite show in the output."""
    if not bool(torch.isfinite(values).all()):
        raise PolycertError(
            "the network's output is not finite for these inputs: its weights hold NaN or infinite values, or overflow"
        )


def _predict(graph: Graph, x: Tensor, batch: int) -> Tensor:
    outputs = torch.cat([graph.forward(part.to(graph.dtype)) for part in x.split(batch)])
    check_finite(graph, outputs)
    return outputs


class Verdict(NamedTuple):
    """The result of one batch by one envelope, all `[batch]`."""

    radius: Tensor  # float64
    certified: Tensor
    margin: Tensor  # float64
    nearest: Tensor
    distance: Tensor  # float64, to the envelope; infinite where it was not needed
    unsettled: Tensor  # rounding alone stands between the sample and its certificate


def judge(env: Envelope, *, every: bool = False) -> Verdict:
    """Margins over the ball, then distances: of the rows that the ball does not settle, or of `every` row."""
    margins = env.margins()
    open_rows = ~((margins > 0) & torch.isfinite(margins))
    eps = env.region.eps
    distance = torch.where(open_rows, torch.zeros_like(margins), torch.inf).double()
    samples, rows = open_rows.nonzero(as_tuple=True)
    if every:
        distance = env.distances().double().nan_to_num(nan=0.0, posinf=torch.inf)
    elif len(samples):
        found = env.select(samples, rows).distances().squeeze(1).double()
        distance = distance.index_put((samples, rows), found.nan_to_num(nan=0.0, posinf=torch.inf))
    nearest_distance, by_distance = distance.min(1)
    certified = nearest_distance > eps
    margin, by_margin = margins.min(1)
    row = torch.where(certified, by_margin, by_distance)
    slack = torch.zeros_like(margins) if env.slack is None else env.slack
    unsettled = ~certified & (margins + SECOND_LOOK * slack > 0).all(1)
    nearest = env.classes.gather(1, row[:, None]).squeeze(1)
    radius = torch.minimum(nearest_distance, eps)
    return Verdict(radius, certified, margin.double(), nearest, nearest_distance, unsettled)


@dataclass(frozen=True, eq=False)
class Judge:
    """Decides batches: in the network's own type, and once more in float64 where rounding alone is in the way."""

    net: Network
    method: str
    relaxation: str
    rigorous: bool

    @cached_property
    def graph(self) -> Graph:
        """The network as it is."""
        return self.net.bind()

    @cached_property
    def double(self) -> Graph:
        """The same in float64."""
        return self.net.bind(torch.float64)

    def rounding(self, graph: Graph) -> Rounding | None:
        """The error model of a rigorous run, or None."""
        return error_model(graph) if self.rigorous else None

    def envelope(self, graph: Graph, region: Region, label: Tensor) -> Envelope:
        """The best envelope that the relaxations give."""
        found = envelopes(graph, region, label, self.method, self.relaxation, self.rounding(graph))
        return reduce(better, found)

    @cached_property
    def _first(self) -> Graph:
        """Where a rigorous run starts: the network's own type, if its arithmetic is what the error model says."""
        return provable(self.net, self.graph) if self.rigorous else self.graph

    def decide(self, region: Region, label: Tensor, *, every: bool = False) -> tuple[Verdict, Tensor]:
        """The verdict of each sample, and whether it was decided in float64; `every`: see `judge`."""
        with torch.no_grad(), plain_products(self.graph.device):
            first = self._first
            own = region.to(first.dtype)
            verdict = judge(self.envelope(first, own, label), every=every)
            # The claim is about the inputs as given: where this type cannot hold them, only float64 counts.
            rounded = (own.x.double() != region.x.double()).flatten(1).any(1)
            in_double = torch.full_like(verdict.certified, first.dtype == torch.float64)
            again = (verdict.unsettled | rounded).nonzero().squeeze(1)
            if not self.rigorous or first.dtype == torch.float64 or len(again) == 0:
                return verdict, in_double
            double = self.envelope(self.double, region[again].to(torch.float64), label[again])
            second = judge(double, every=every)
            merged = (a.index_put((again,), b) for a, b in zip(verdict, second, strict=True))
            return Verdict(*merged), in_double.index_fill(0, again, True)


@contextmanager
def plain_products(device: torch.device) -> Iterator[None]:
    """Products as plain sums in the type of their operands: the error model knows no fast transforms, no autocast."""
    with torch.backends.nnpack.flags(enabled=False), torch.autocast(device.type, enabled=False):
        yield


def provable(net: Network, graph: Graph) -> Graph:
    """The graph itself if its type can carry a proof, else the same in float64; refuses what float64 cannot mend."""
    if graph.computed:
        raise PolycertError(
            f"rigorous bounds need stored weights, but the model computes some (node '{graph.computed[0]}'): "
            "fold them into parameters, or use rigorous=False"
        )
    fits = error_model(graph).usable(longest_sum(graph)) and full_precision(graph.device)
    return graph if fits or graph.dtype == torch.float64 else net.bind(torch.float64)


def error_model(graph: Graph) -> Rounding:
    """Rounding in a pass over the graph."""
    return Rounding(graph.dtype, 4 * len(graph.nodes) + 16)


def full_precision(device: torch.device) -> bool:
    """Whether float32 products are computed in float32: on a processor, with no faster mode switched on."""
    backends = torch.backends.mkldnn
    modes = [getattr(getattr(backends, name, None), "fp32_precision", "none") for name in ("matmul", "conv")]
    if device.type != "cpu" or any(mode not in ("none", "ieee") for mode in modes):
        return False
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # mixed settings have no common name
        return False


def longest_sum(graph: Graph) -> int:
    """The most terms in any sum of a pass over the graph."""
    sizes = [int(np.prod(node.shape)) for node in graph.nodes]
    terms = [max(op.terms) for op in graph.linear.values() if isinstance(op, Affine)]
    return max([*sizes, *terms, 1])


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
        batch_size: samples at a time; memory: bytes that a batch may take, if no batch size is given.
        seed: accepted for symmetry; nothing here is random.
        progress: called with (samples done, samples in all).

    Example:
        >>> net = torch.nn.Linear(2, 2)
        >>> certs = certify(net, torch.rand(3, 2), None, Ball(eps=0.01))
        >>> len(certs)
        3
    """
    get_method(method), get_relaxations(relaxation, method)
    network, inputs = as_inputs(net, x)
    region = ball.at(inputs)
    judge_ = Judge(network, method, relaxation, rigorous)
    classes = classes_of(judge_.graph)
    batch = batch_size or batch_size_for(judge_.graph, memory)
    with torch.no_grad():
        prediction = _predict(judge_.graph, inputs, batch).argmax(1)
    label = as_labels(y, prediction, classes)
    parts = []
    for begin in range(0, len(inputs), batch):
        part = slice(begin, begin + batch)
        parts.append(_certify_part(judge_, region[part], label[part], prediction[part], begin))
        if progress is not None:
            progress(min(begin + batch, len(inputs)), len(inputs))
    return Certificates.join(parts)


def _certify_part(judge_: Judge, region: Region, label: Tensor, prediction: Tensor, begin: int) -> Certificates:
    clock = time.perf_counter()
    verdict, in_double = judge_.decide(region, label)
    # A sample that the model itself gets wrong (or ties on) has radius 0; a certificate already excludes that.
    wrong = (prediction != label) & ~verdict.certified
    radius = torch.where(wrong, torch.zeros_like(verdict.radius), verdict.radius)
    seconds = (time.perf_counter() - clock) / len(label)
    own = str(judge_.graph.dtype).removeprefix("torch.")
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
        method=judge_.method,
        relaxation=judge_.relaxation,
        rigorous=judge_.rigorous,
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
    graph = _live_graph(network, inputs, rigorous)
    with torch.no_grad():
        prediction = graph.forward(inputs.to(graph.dtype)).argmax(1)
    label = as_labels(y, prediction, classes_of(graph))
    with plain_products(graph.device) if rigorous else nullcontext():
        judge_ = Judge(network, method, relaxation, rigorous)
        return judge_.envelope(graph, ball.at(inputs.to(graph.dtype)), label)


def _live_graph(network: Network, inputs: Tensor, rigorous: bool) -> Graph:
    """The graph for one call: live under gradients, in a type that can carry a proof if one is asked for."""
    graph = network.trainable() if torch.is_grad_enabled() else network.bind()
    if not rigorous:
        return graph
    return provable(network, graph) if _holds(graph.dtype, inputs) else network.bind(torch.float64)


def _holds(dtype: torch.dtype, values: Tensor) -> bool:
    """Whether numbers survive conversion to a type."""
    return bool((values.to(dtype).double() == values.double()).all())


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
    graph = _live_graph(network, inputs, rigorous)
    if rigorous and spec is not None and not _holds(graph.dtype, torch.as_tensor(spec)):
        graph = network.bind(torch.float64)
    region = ball.at(inputs.to(graph.dtype))
    rounding = error_model(graph) if rigorous else None
    form, shape = _spec_form(graph, spec)
    final = get_method(method).final
    with plain_products(graph.device) if rigorous else nullcontext():
        runs = passes(graph, region, method, relaxation, rounding)
        lowers = [_value(region, final(run, form, LOWER), rounding, 0) for run in runs]
        uppers = [_value(region, final(run, form, UPPER), rounding, 1) for run in runs]
    lower, upper = torch.stack(lowers).amax(0), torch.stack(uppers).amin(0)
    return Bounds(lower.reshape(-1, *shape), upper.reshape(-1, *shape))


def _value(region: Region, bound: tuple[Form, Tensor, Tensor | None], rounding: Rounding | None, side: int) -> Tensor:
    form, offset, _ = bound
    return region.extremes(form, rounding, joint=True)[side] + offset


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
