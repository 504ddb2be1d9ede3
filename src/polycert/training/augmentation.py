"""Random flips and shifts, each a function of the sample."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from polycert import noise


def flip_and_crop(x: Tensor, seed: int, epoch: int, index: Tensor) -> Tensor:
    """Mirror half of the images `[batch, C, H, W]`, then shift each by up to 4 pixels."""
    return _shifted(_flipped(x, seed, epoch, index), 4, seed, epoch, index)


def flip_and_shift(x: Tensor, seed: int, epoch: int, index: Tensor) -> Tensor:
    """Mirror half of the images `[batch, C, H, W]`, then shift each by up to one pixel."""
    return shift(_flipped(x, seed, epoch, index), seed, epoch, index)


def shift(x: Tensor, seed: int, epoch: int, index: Tensor) -> Tensor:
    """Shift each image `[batch, C, H, W]` by up to one pixel."""
    return _shifted(x, 1, seed, epoch, index)


def _flipped(x: Tensor, seed: int, epoch: int, index: Tensor) -> Tensor:
    """The images, half of them mirrored."""
    mirror = noise.uniform(seed, epoch, "flip", index).to(x.device) < 0.5
    return torch.where(mirror.reshape(-1, 1, 1, 1), x.flip(3), x)


def _shifted(x: Tensor, most: int, seed: int, epoch: int, index: Tensor) -> Tensor:
    """Images shifted down and to the right by -most to most pixels, all equally likely; zeros move in."""
    height, width = x.shape[2:]
    down, right = (
        (noise.uniform(seed, epoch, axis, index) * (2 * most + 1)).long().to(x.device) for axis in ("down", "right")
    )
    rows = down[:, None] + torch.arange(height, device=x.device)
    columns = right[:, None] + torch.arange(width, device=x.device)
    padded = F.pad(x, (most,) * 4)
    at = torch.arange(len(x), device=x.device)[:, None, None]
    # Indices on both sides of a slice put the channels last.
    return padded[at, :, rows[:, :, None], columns[:, None, :]].movedim(3, 1).contiguous()


AUGMENTATIONS: dict[str, Callable[[Tensor, int, int, Tensor], Tensor]] = {
    "none": lambda x, seed, epoch, index: x,
    "flip-crop": flip_and_crop,
    "flip-shift": flip_and_shift,
    "shift": shift,
}
