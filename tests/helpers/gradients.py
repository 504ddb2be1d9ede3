"""Hand-written gradients against torch's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def assert_same(found: Tensor, plain: Tensor, outer: Tensor, inputs: Sequence[Tensor]) -> None:
    """Both values agree, and so do the gradients of their weighted sums."""
    torch.testing.assert_close(found, plain)
    mine, theirs = (torch.autograd.grad((value * outer).sum(), inputs) for value in (found, plain))
    torch.testing.assert_close(mine, theirs)
