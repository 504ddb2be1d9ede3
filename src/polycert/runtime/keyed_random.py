"""Random numbers as a function of keys (seed, epoch, purpose, sample): no state, equal on every device and process."""

from __future__ import annotations

import zlib
from typing import Final

import torch
from torch import Tensor

Word = int | str | Tensor

# The constants of splitmix64 (Steele, Lea, Flood 2014) as signed numbers.
_STEP: Final = 0x9E3779B97F4A7C15 - 2**64
_FIRST: Final = 0xBF58476D1CE4E5B9 - 2**64
_SECOND: Final = 0x94D049BB133111EB - 2**64
_FLOAT_BITS: Final = 24  # exact in every floating-point type


def bits(*words: Word) -> Tensor:
    """63 random bits for each combination of the words, as int64 >= 0. Tensors of words broadcast.

    Examples:
        >>> bool(bits(0, 3, "order", torch.arange(4)).unique().numel() == 4)
        True
    """
    state = torch.zeros((), dtype=torch.int64)
    for word in words:
        number = zlib.crc32(word.encode()) if isinstance(word, str) else word
        if isinstance(number, Tensor):
            state = state.to(number.device)
        state = _mix(state + number + _STEP)
    return state & (2**63 - 1)


def uniform(*words: Word) -> Tensor:
    """A number in [0, 1) for each combination of the words, float32 with 24 random bits."""
    return (bits(*words) >> (63 - _FLOAT_BITS)).float() / 2**_FLOAT_BITS


def _mix(state: Tensor) -> Tensor:
    """The finaliser of splitmix64: a bijection of 64-bit words, whose products wrap around."""
    state = (state ^ _shift(state, 30)) * _FIRST
    state = (state ^ _shift(state, 27)) * _SECOND
    return state ^ _shift(state, 31)


def _shift(state: Tensor, count: int) -> Tensor:
    """A logical shift to the right: zeros come in at the left, also for negative numbers."""
    return torch.bitwise_and(state >> count, 2 ** (64 - count) - 1)
