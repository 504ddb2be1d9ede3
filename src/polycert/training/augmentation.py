"""Random flips and shifts, each a function of the sample."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from polycert import noise

PADDING = 4


def flip_and_crop(x: Tensor, seed: int, epoch: int, index: Tensor) -> Tensor:
    """Mirror half of the images `[batch, C, H, W]`, then shift each by up to 4 pixels with zeros moving in."""
    height, width = x.shape[2:]
    mirror = noise.uniform(seed, epoch, "flip", index).to(x.device) < 0.5
    x = torch.where(mirror.reshape(-1, 1, 1, 1), x.flip(3), x)
    down, right = (_offset(seed, epoch, axis, index).to(x.device) for axis in ("down", "right"))
    rows = down[:, None] + torch.arange(height, device=x.device)
    columns = right[:, None] + torch.arange(width, device=x.device)
    padded = F.pad(x, (PADDING,) * 4)
    at = torch.arange(len(x), device=x.device)[:, None, None]
    # Indices on both sides of a slice put the channels last.
    return padded[at, :, rows[:, :, None], columns[:, None, :]].movedim(3, 1).contiguous()


def _offset(seed: int, epoch: int, axis: str, index: Tensor) -> Tensor:
    """0 to 8, equally likely."""
    return (noise.uniform(seed, epoch, axis, index) * (2 * PADDING + 1)).long()
