"""Random flips and shifts, each a function of the sample."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polycert.runtime import keyed_random


class Augmentation(NamedTuple):
    """Whether half of the images are mirrored, and by how many pixels they are shifted at most."""

    flips: bool
    shift: int

    def __call__(self, x: Tensor, seed: int, epoch: int, index: Tensor) -> Tensor:
        """The images `[batch, C, H, W]`, changed."""
        flipped = _flipped(x, seed, epoch, index) if self.flips else x
        return _shifted(flipped, self.shift, seed, epoch, index) if self.shift else flipped


def _flipped(x: Tensor, seed: int, epoch: int, index: Tensor) -> Tensor:
    """The images, half of them mirrored."""
    mirror = keyed_random.uniform(seed, epoch, "flip", index).to(x.device) < 0.5
    return torch.where(mirror.reshape(-1, 1, 1, 1), x.flip(3), x)


def _shifted(x: Tensor, most: int, seed: int, epoch: int, index: Tensor) -> Tensor:
    """Images shifted down and to the right by -most to most pixels, all equally likely; zeros move in."""
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
    """One by name, with another largest shift if one is given."""
    found = AUGMENTATIONS[name]
    return found if shift is None else found._replace(shift=shift)
