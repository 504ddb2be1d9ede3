"""Keyed random numbers against a numpy implementation, and their distribution."""

import zlib

import numpy as np
import torch

from polycert.runtime import keyed_random


def reference(words: list[int]) -> int:
    """splitmix64's finaliser folded over the words, in unsigned numpy arithmetic."""
    state = np.uint64(0)
    with np.errstate(over="ignore"):
        for word in words:
            state = state + np.uint64(word % 2**64) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return int(state) % 2**63


def test_bits_are_those_of_numpy() -> None:
    index = torch.tensor([0, 1, 59_999, 2**40, -3])
    found = keyed_random.bits(7, 12, "order", index).tolist()
    assert found == [reference([7, 12, zlib.crc32(b"order"), int(k)]) for k in index]


def test_uniform_numbers_are_uniform_and_not_correlated() -> None:
    found = keyed_random.uniform(0, 1, "attack", torch.arange(400)[:, None], torch.arange(500))
    assert 0 <= float(found.min()) < float(found.max()) < 1
    counts = torch.histc(found, bins=50, min=0, max=1)
    assert float(((counts - 4000) ** 2 / 4000).sum()) < 85.4  # chi-square, 49 degrees of freedom, 0.999
    centred = found - 0.5
    for shift in (centred[1:] * centred[:-1], centred[:, 1:] * centred[:, :-1]):
        assert abs(float(shift.mean())) * 12 * shift.numel() ** 0.5 < 4


def test_every_word_matters() -> None:
    index = torch.arange(50)
    variants = [(0, 0, "a"), (1, 0, "a"), (0, 1, "a"), (0, 0, "b")]
    found = torch.stack([keyed_random.bits(*words, index) for words in variants])
    assert len(found.flatten().unique()) == found.numel()
