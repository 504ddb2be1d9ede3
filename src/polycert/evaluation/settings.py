"""The question of an evaluation: a network, samples, a ball and settings, checked before any work is done."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from polycert.bounding.chunking import batch_size_for
from polycert.bounding.methods import get_method
from polycert.certification.envelope import classes_of
from polycert.errors import PolycertError
from polycert.graph import Network
from polycert.graph.inputs import as_inputs, as_labels
from polycert.sets.ball import Array, Ball

Stage = Callable[[str, int, int], None]  # what is done, samples done, samples in all
# The largest radii of interest in the paper's tables; four times eps elsewhere.
UPPER = {("cifar10", math.inf): 0.1}
MULTIPLE = 4
LARGEST_BATCH = 250  # small enough to keep every thread busy, and fastest on small networks


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """The settings of an evaluation.

    Attributes:
        upper, tolerance: upper end and accuracy of the search for the largest radius.
        steps, restarts, seed: settings of the stronger attack; the weaker one is the paper's.
        samples: whether the smallest counterexample of each sample is searched for as well.
        search_limit: of how many samples the largest radius is searched; None for all.
        rigorous: whether what is called proved covers every rounding error.
    """

    upper: float
    tolerance: float = 1e-4
    steps: int = 50
    restarts: int = 4
    seed: int = 0
    samples: bool = False
    search_limit: int | None = None
    rigorous: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < self.upper < math.inf:
            raise PolycertError(f"need 0 < tolerance < upper, got tolerance {self.tolerance} and upper {self.upper}")
        for name in ("steps", "restarts", "search_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PolycertError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, eq=False)
class EvaluationQuestion:
    """A network, labelled samples with their positions in the data set, the ball, and the settings."""

    network: Network
    x: Tensor  # [n, *input_shape]
    y: Tensor  # [n]
    index: Tensor  # [n]
    searched: Tensor  # [n], bool: whether the largest radius is searched for
    ball: Ball
    settings: EvaluationSettings
    batch: int
    threads: int

    def __len__(self) -> int:
        return len(self.y)

    @property
    def eps(self) -> float:
        """The radius of the ball, which is the same for all samples."""
        return one_eps(self.ball)

    def part(self, here: slice) -> EvaluationQuestion:
        """Return the question about a part of the samples."""
        parts = {name: getattr(self, name)[here] for name in ("x", "y", "index", "searched")}
        return replace(self, **parts)


def make_question(
    net: Network | nn.Module,
    x: Array,
    y: Array,
    ball: Ball,
    settings: EvaluationSettings,
    *,
    index: Tensor | None = None,
    batch_size: int | None = None,
    memory: int | None = None,
    threads: int = 1,
) -> EvaluationQuestion:
    """Return a question whose samples were checked; raises `PolycertError` if anything does not fit."""
    if y is None:
        raise PolycertError("an evaluation counts errors, so it needs labels: give y")
    if settings.upper < one_eps(ball):
        raise PolycertError(
            f"upper must be at least eps, {one_eps(ball):g}, whose certificates count as radii, got {settings.upper:g}"
        )
    network, inputs = as_inputs(net, x)
    network.check_inside(ball.at(inputs))
    graph = network.bind()
    labels = as_labels(y, torch.zeros(len(inputs), dtype=torch.long, device=inputs.device), classes_of(graph))
    places = torch.arange(len(inputs)) if index is None else index
    searched = torch.arange(len(inputs)) < (settings.search_limit or len(inputs))
    batch = batch_size_for(graph, get_method("crown").numbers(graph), memory, threads, batch_size=batch_size)
    return EvaluationQuestion(
        network, inputs, labels, places, searched, ball, settings, min(batch, LARGEST_BATCH), threads
    )


def one_eps(ball: Ball) -> float:
    """Return the radius of the ball; raises `PolycertError` unless it is one number above 0."""
    eps = torch.as_tensor(ball.eps, dtype=torch.float64)
    if eps.dim() or not eps > 0:
        raise PolycertError(f"an evaluation needs one eps above 0 for all samples, got {ball.eps}")
    return float(eps)


def usual_upper(dataset: str | None, norm: float, eps: float) -> float:
    """Return the largest radius of interest: the paper's for its data sets and radii, else four times eps.

    Examples:
        >>> usual_upper("mnist", math.inf, 0.1), usual_upper("cifar10", math.inf, 2 / 255)
        (0.4, 0.1)
    """
    return max(UPPER.get((dataset or "", norm), MULTIPLE * eps), 2 * eps)
