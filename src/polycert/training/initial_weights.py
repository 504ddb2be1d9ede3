"""Initial weights of a run, from a published model or a file, and the revival of its dead units.

Training for large radii kills units: on MNIST at eps 0.3 many filters of a small network end up constant. An idle unit
is replaced by a copy of a living one, and the two share the weights that lead out of it. This changes the function and
its interval bounds no more than the removal of the idle unit does, and training can then move the two apart.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polycert import zoo
from polycert.certification.bounds import bounds
from polycert.errors import PolycertError
from polycert.models.model_files import load_module
from polycert.records.run_folder import RunFolder
from polycert.sets.ball import Ball
from polycert.training.recipe import Recipe
from polycert.training.recipe_files import read_recipe

Weighted = nn.Linear | nn.Conv2d
# What may stand between two layers besides ReLUs, so that all weights that lead out of a unit are found together.
_JOINTS: dict[tuple[type, type], list[type]] = {
    (nn.Linear, nn.Linear): [],
    (nn.Conv2d, nn.Conv2d): [],
    (nn.Conv2d, nn.Linear): [nn.Flatten],
}
IDLE = 0.01  # units with less than this share of the largest effect on the next layer are idle


class InitialWeights(NamedTuple):
    """A model's file, and the path that its recipe has if there is one."""

    model: Path
    recipe: Path


def begin_with(module: nn.Module, recipe: Recipe, start: str) -> None:
    """Copy the weights of a model of the same architecture into the module.

    Args:
        module: the network that is going to be trained.
        recipe: the recipe; the start must not have learnt any sample that it holds out.
        start: a name in the zoo, or a file.
    """
    found = _find(start)
    try:
        given = load_module(found.model).module
    except PolycertError as error:
        raise _refused(
            f"{start!r} cannot be read ({error}): give a model of the zoo, or a .safetensors or .npz file of polycert's"
        ) from None
    if repr(given) != repr(module):
        raise _refused(f"{start!r} has another architecture than the recipe: start from a model of the same")
    if found.recipe.is_file():
        _check_held_out(read_recipe(str(found.recipe)), recipe)
    module.load_state_dict(given.state_dict())


def _check_held_out(before: Recipe, recipe: Recipe) -> None:
    """Refuse a start whose recipe `before` held out fewer samples than this one."""
    if before.dataset == recipe.dataset and before.validation < recipe.validation:
        raise _refused(
            f"{recipe.start!r} held out {before.validation} samples and has learnt some of this recipe's "
            f"validation = {recipe.validation}: set that to {before.validation} at most"
        )


def _refused(why: str) -> PolycertError:
    return PolycertError(f"recipe: key 'start': {why}")


def _find(start: str) -> InitialWeights:
    """Return the files of a start: those of a model of the zoo, or a file and its neighbour."""
    path = Path(start)
    if path.is_file():
        return InitialWeights(path, RunFolder(path.parent).recipe)
    if start not in zoo.names():
        raise _refused(f"{start!r} is neither a file nor a model of the zoo: polycert zoo lists those")
    found = zoo.entry(start)
    found.verify()
    return InitialWeights(found.path(), found.path(zoo.RECIPE))


@torch.no_grad()
def revive_dead_units(module: nn.Sequential, x: Tensor, ball: Ball, spread: float, seed: int) -> int:
    """Replace idle units by copies of living ones, layer by layer; returns the number of replaced units.

    Args:
        module: the layers. Only pairs of weighted layers with nothing but ReLUs between them are changed, and
            convolutions whose channels are flattened for a dense layer.
        x, ball: samples `[n, *input_shape]` and the set around each, over which a unit counts as idle.
        spread: how unevenly a unit and its copy share the weights that lead out, in relative terms; with 0 they stay
            equal for ever.
        seed: seed of the shares.
    """
    generator = torch.Generator().manual_seed(seed)
    revived = 0
    weighted = [(k, layer) for k, layer in enumerate(module) if isinstance(layer, Weighted)]
    for (k, layer), (j, following) in pairwise(weighted):
        between = [type(one) for one in list(module)[k + 1 : j] if not isinstance(one, nn.ReLU)]
        if between != _JOINTS.get((type(layer), type(following))) or not _plain(layer) or not _plain(following):
            continue
        lowest, highest = _range(nn.Sequential(*list(module)[: k + 1]), x, ball)
        outgoing = _outgoing(following, len(lowest))
        effect = (highest - lowest) * outgoing.abs().sum((0, 2))
        idle = effect <= IDLE * effect.max()
        if idle.all():
            continue
        # The bias takes up what constant units add to the next layer; at a padded border this is not exact.
        assert following.bias is not None
        following.bias += outgoing.sum(2)[:, idle] @ ((lowest + highest) / 2)[idle]
        outgoing[:, idle] = 0
        sources = _largest(layer.weight, ~idle)
        for position, unit in enumerate(idle.nonzero().flatten().tolist()):
            _split(layer, outgoing, sources[position % len(sources)], unit, spread, generator)
            revived += 1
    return revived


def _plain(layer: Weighted) -> bool:
    """Return whether every output depends on every unit, and has a bias that can take up what is constant."""
    return layer.bias is not None and (isinstance(layer, nn.Linear) or layer.groups == 1)


def _outgoing(following: Weighted, units: int) -> Tensor:
    """Return the weights that lead out of the units or channels before a layer, a view `[out, units, weights]`."""
    return following.weight.view(len(following.weight), units, -1)


def _range(part: nn.Sequential, x: Tensor, ball: Ball) -> tuple[Tensor, Tensor]:
    """Return bounds by intervals of each unit or channel after its ReLU over all samples, `[units]` each."""
    found = bounds(part, x, ball, method="ibp", rigorous=False)
    units = [0, *range(2, found.lower.dim())]
    return found.lower.amin(units).relu(), found.upper.amax(units).relu()


def _largest(weight: Tensor, living: Tensor) -> list[int]:
    """Return the living units, those with the largest weights first."""
    size = weight.flatten(1).norm(dim=1).masked_fill(~living, -1.0)
    return [int(unit) for unit in size.argsort(descending=True)[: int(living.sum())]]


def _split(
    layer: Weighted, outgoing: Tensor, source: int, unit: int, spread: float, generator: torch.Generator
) -> None:
    """Make the unit a copy of the source, and let the two share what leads out of the source."""
    for tensor in layer.parameters():  # weight and bias
        tensor[unit] = tensor[source]
    half = outgoing[:, source] / 2
    # Shares of one sign also add up in absolute value, so the interval bounds stay the same.
    uneven = half * (spread * torch.randn(half.shape, generator=generator).to(half)).clamp(-1, 1)
    outgoing[:, unit] = half + uneven
    outgoing[:, source] = half - uneven
