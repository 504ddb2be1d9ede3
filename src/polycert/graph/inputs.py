"""Check what the public functions are given: networks, inputs, labels."""

from __future__ import annotations

import math
import reprlib

import numpy as np
import torch
from torch import Tensor, nn

from polycert.errors import PolycertError
from polycert.graph import Graph, Network, capture
from polycert.sets.ball import Array

LARGEST_WHOLE = {torch.float32: 2**24, torch.float64: 2**53}  # up to this size, the type holds all whole numbers


def as_network(net: Network | nn.Module, x: Tensor) -> Network:
    """Return a network as it is; capture a module for the shape of its inputs."""
    return net if isinstance(net, Network) else capture(net, tuple(x.shape[1:]))


def as_inputs(net: Network | nn.Module, x: Array) -> tuple[Network, Tensor]:
    """Return the network, and the inputs as a tensor of its type, or of float64 if they came so or need it.

    Raises:
        PolycertError: if the inputs do not fit the network, or are not finite real numbers.
    """
    given = as_tensor(x)
    if given.is_meta:
        raise PolycertError("inputs must hold numbers, got a tensor on the device 'meta'")
    if given.is_complex():
        raise PolycertError("inputs must be real numbers, got complex ones")
    if given.dim() < 2 or given.shape[0] == 0:
        raise PolycertError(f"inputs need a batch axis and at least one sample, got shape {tuple(given.shape)}")
    network = as_network(net, given)
    if tuple(given.shape[1:]) != network.input_shape:
        raise PolycertError(
            f"inputs have samples of shape {tuple(given.shape[1:])} but the network takes {network.input_shape}"
        )
    wide = _in_floats(given, network.dtype)
    if not all_finite(wide):
        raise PolycertError("inputs contain NaN or infinite values: clean them first")
    return network, wide


def _in_floats(given: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the numbers in a network's type, or in float64 if they came so or that type does not hold them all.

    Raises:
        PolycertError: if float64 does not hold them either.
    """
    if given.is_floating_point():
        return given if given.dtype == torch.float64 else given.to(dtype)
    whole = given.to(torch.int64)
    least, most = (int(end) for end in whole.aminmax())
    if given.dtype == torch.uint64 and least < 0:  # its numbers have wrapped around
        most = 2**64
    size = max(-least, most)
    if size > LARGEST_WHOLE[torch.float64]:
        raise PolycertError("inputs hold whole numbers beyond 2^53, which float64 rounds: scale them first")
    return whole.to(dtype if size <= LARGEST_WHOLE[dtype] else torch.float64)


def as_labels(y: Array | None, prediction: Tensor, classes: int) -> Tensor:
    """Return the labels `[batch]`, or the model's own predictions if there are none."""
    if y is None:
        return prediction
    label = as_tensor(y).to(prediction.device)
    if label.shape != prediction.shape or label.is_floating_point() or label.is_complex():
        raise PolycertError(
            f"labels must be {len(prediction)} integers, got {label.dtype} of shape {tuple(label.shape)}"
        )
    label = label.long()
    least, most = (int(end) for end in label.aminmax())
    if least < 0 or most >= classes:
        raise PolycertError(f"labels must be in 0 … {classes - 1}, got {least} … {most}")
    return label


def as_tensor(values: Array) -> Tensor:
    """Return a tensor of the same numbers. Arrays in other byte orders or with negative strides are copied first.

    Plain numbers become float64, so that none is rounded.
    """
    try:
        if not isinstance(values, Tensor | np.ndarray):
            values = np.asarray(values)
        if isinstance(values, np.ndarray):
            values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
        found = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        found = None
    if found is None or found.layout != torch.strided or found.is_quantized or found.is_nested:
        raise PolycertError(f"expected numbers in a tensor or an array, got {reprlib.repr(values)}")
    return found


def all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite. Values are looked at one by one only if their sum is not finite."""
    return math.isfinite(values.detach().sum()) or bool(torch.isfinite(values).all())


def check_finite(graph: Graph, values: Tensor) -> None:
    """Check that an output is finite; weights that are not finite show in it."""
    if not all_finite(values):
        raise PolycertError(
            "the network's output is not finite for these inputs: its weights hold NaN or infinite values, or overflow"
        )
