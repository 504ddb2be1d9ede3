"""`Bounds`: what the outputs can be over each sample's set."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Bounds(NamedTuple):
    """Elementwise bounds of outputs, or of rows of them, over each sample's set."""

    lower: Tensor
    upper: Tensor
