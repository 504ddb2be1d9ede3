"""Which samples a step sees: split, order, a process's share, flips and shifts, all by keyed random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polycert import data
from polycert.errors import PolycertError
from polycert.losses import KeyedDraws
from polycert.runtime import keyed_random
from polycert.training.recipe import Recipe


class Augmentation(NamedTuple):
    """Whether half of the images are mirrored, and by how many pixels they are shifted at most."""

    flips: bool
    shift: int

    def __call__(self, x: Tensor, seed: int, epoch: int, index: Tensor) -> Tensor:
        """Return the augmented images, `[batch, C, H, W]`."""
        flipped = _flipped(x, seed, epoch, index) if self.flips else x
        return _shifted(flipped, self.shift, seed, epoch, index) if self.shift else flipped


def _flipped(x: Tensor, seed: int, epoch: int, index: Tensor) -> Tensor:
    """Return the images, mirrored with probability one half."""
    mirror = keyed_random.uniform(seed, epoch, "flip", index).to(x.device) < 0.5
    return torch.where(mirror.reshape(-1, 1, 1, 1), x.flip(3), x)


def _shifted(x: Tensor, most: int, seed: int, epoch: int, index: Tensor) -> Tensor:
    """Return images shifted down and right by -most to most pixels, all equally likely; zeros fill the border."""
    height, width = x.shape[2:]
    down, right = (
        (keyed_random.uniform(seed, epoch, axis, index) * (2 * most + 1)).long().to(x.device)
        for axis in ("down", "right")
    )
    rows = down[:, None] + torch.arange(height, device=x.device)
    columns = right[:, None] + torch.arange(width, device=x.device)
    padded = F.pad(x, (most,) * 4)
    at = torch.arange(len(x), device=x.device)[:, None, None]
    # Indices on both sides of a slice put the channels last.
    return padded[at, :, rows[:, :, None], columns[:, None, :]].movedim(3, 1).contiguous()


AUGMENTATIONS = {
    "none": Augmentation(flips=False, shift=0),
    "flip-crop": Augmentation(flips=True, shift=4),
    "flip-shift": Augmentation(flips=True, shift=1),
    "shift": Augmentation(flips=False, shift=1),
}


def augmentation(name: str, shift: int | None = None) -> Augmentation:
    """Return the augmentation of that name, with another largest shift if one is given."""
    found = AUGMENTATIONS[name]
    return found if shift is None else found._replace(shift=shift)


class Batch(NamedTuple):
    """The samples of one step on this process, and the step's random draws."""

    x: Tensor
    y: Tensor
    draws: KeyedDraws


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """The training set, split in training and validation samples. The test set is never opened here."""

    x: Tensor
    y: Tensor
    training: Tensor  # indices
    validation: Tensor

    @staticmethod
    def load(recipe: Recipe, directory: Path | None = None, device: torch.device | None = None) -> TrainingSet:
        """Read the training set and hold out the validation samples, which are the same for every seed."""
        found = data.load(recipe.dataset, "train", directory)
        training, validation = split(len(found), recipe.validation)
        if len(training) < recipe.batch:
            raise PolycertError(
                f"recipe: key 'batch': must be at most {len(training)}, the training samples that "
                f"validation = {recipe.validation} leaves of {len(found)}, got {recipe.batch}"
            )
        return TrainingSet(found.x.to(device), found.y.to(device), training, validation)

    def steps(self, recipe: Recipe) -> int:
        """Return the number of whole batches in an epoch; samples left over take part in another epoch."""
        return len(self.training) // recipe.batch

    def epoch(self, recipe: Recipe, epoch: int, rank: int = 0, processes: int = 1) -> Iterator[Batch]:
        """Yield the batches of an epoch. Each of n processes gets every n-th sample of a batch."""
        order = self.training[keyed_random.bits(recipe.seed, epoch, "order", self.training).argsort()]
        change = augmentation(recipe.augment, recipe.shift)
        for whole in order[: self.steps(recipe) * recipe.batch].split(recipe.batch):
            index = whole[rank::processes]
            x = change(self.x[index], recipe.seed, epoch, index)
            yield Batch(x, self.y[index], KeyedDraws(recipe.seed, epoch, index, whole, processes))


def split(count: int, held_out: int) -> tuple[Tensor, Tensor]:
    """Return the indices for training and for validation.

    They do not depend on the seed: what one run holds out, no other run learns.
    """
    if held_out >= count:
        raise PolycertError(
            f"recipe: key 'validation': must be below {count}, the training samples there are, got {held_out}"
        )
    order = keyed_random.bits("validation", torch.arange(count)).argsort()
    return order[held_out:].sort().values, order[:held_out].sort().values
