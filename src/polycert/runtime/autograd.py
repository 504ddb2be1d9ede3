"""Functions with gradients of their own, at no extra cost where none are wanted."""

from __future__ import annotations

from typing import Any

import torch


class _NoContext:
    """Stands for autograd's notebook where nothing has to be remembered: forwards use no more of it than this."""

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        """Not needed."""


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """`function.apply`, or its forward alone where gradients are off: autograd's part costs as much as a product."""
    if torch.is_grad_enabled():
        return function.apply(*arguments)
    return function.forward(_NoContext(), *arguments)
