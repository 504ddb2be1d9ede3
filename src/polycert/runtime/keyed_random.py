"""Random numbers as a function of what they are for: no stream, no state, the same on every device and process."""

from __future__ import annotations

import zlib
from typing import Final

import torch
from torch import Tensor

Word = int | str | Tensor

# The finaliser of splitmix64 (Steele, Lea, Flood 2014), written as signed numbers.
_STEP: Final = 0x9E3779B97F4A7C15 - 2**64
_FIRST: Final = 0xBF58476D1CE4E5B9 - 2**64
_SECOND: Final = 0x94D049BB133111EB - 2**64
_FLOAT_BITS: Final = 24  # exact in every floating-point type


def bits(*words: Word) -> Tensor:
    """63 well-mixed bits for each combination of the words, int64 >= 0; tensors of words broadcast.

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
    """Numbers in [0, 1), float32 with 24 random bits, one for each combination of the words."""
    return (bits(*words) >> (63 - _FLOAT_BITS)).float() / 2**_FLOAT_BITS


def _mix(state: Tensor) -> Tensor:
    """A bijection of 64-bit words; products wrap around."""
    state = (state ^ _shift(state, 30)) * _FIRST
    state = (state ^ _shift(state, 27)) * _SECOND
    return state ^ _shift(state, 31)


def _shift(state: Tensor, count: int) -> Tensor:
    """A shift to the right that moves zeros in, which a signed number's own does not."""
    return torch.bitwise_and(state >> count, 2 ** (64 - count) - 1)
