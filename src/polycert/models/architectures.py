"""Architectures as lists of layers, which a file of weights can contain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from polycert.errors import PolycertError, reason
from polycert.rules.registry import layers
from polycert.runtime import limits

Layer = dict[str, Any]
Architecture = list[Layer]
NOT_ARCHITECTURE = {"device", "dtype"}  # arguments of torch's layers that no architecture decides


def build(architecture: Architecture) -> nn.Sequential:
    """Build a sequential module from a list of layers `{"type": …, **arguments}`."""
    if len(architecture) > limits.LAYERS:
        raise PolycertError(f"an architecture has {limits.LAYERS} layers at most, got {len(architecture)}")
    known, modules = layers(), []
    for position, layer in enumerate(architecture):
        arguments = {key: value for key, value in layer.items() if key not in ("type", "index")}
        kind = layer.get("type")
        if kind not in known:
            raise PolycertError(f"layer {position} has unknown type {kind!r}: known are {', '.join(known)}")
        if NOT_ARCHITECTURE & arguments.keys():
            raise PolycertError(f"layer {position} ({kind}) must not give a device or dtype: the weights decide these")
        try:
            modules.append(known[kind](**arguments))
        except TypeError as error:
            raise PolycertError(f"layer {position} ({kind}) has wrong arguments: {reason(error)}") from None
    return nn.Sequential(*modules)


def fc1(input_shape: Sequence[int], classes: int = 10, activation: str = "relu", hidden: int = 1024) -> Architecture:
    """Return the paper's FC1: one hidden layer."""
    return [
        {"type": "flatten"},
        {"type": "linear", "in_features": math.prod(input_shape), "out_features": hidden},
        {"type": activation},
        {"type": "linear", "in_features": hidden, "out_features": classes},
    ]


def cnn(
    input_shape: Sequence[int],
    classes: int = 10,
    activation: str = "relu",
    channels: tuple[int, int] = (16, 32),
    hidden: int = 100,
) -> Architecture:
    """Return the paper's CNN: two convolutions 4×4 with stride 2 and padding 1, then one hidden layer."""
    first, second = channels
    window = {"kernel_size": 4, "stride": 2, "padding": 1}
    flat = second * (input_shape[1] // 4) * (input_shape[2] // 4)
    return [
        {"type": "conv2d", "in_channels": input_shape[0], "out_channels": first, **window},
        {"type": activation},
        {"type": "conv2d", "in_channels": first, "out_channels": second, **window},
        {"type": activation},
        {"type": "flatten"},
        {"type": "linear", "in_features": flat, "out_features": hidden},
        {"type": activation},
        {"type": "linear", "in_features": hidden, "out_features": classes},
    ]


def large_budget(input_shape: Sequence[int], classes: int = 10, activation: str = "relu") -> Architecture:
    """Return model E of the paper's Table 3: two convolutions 5×5, one 4×4 with stride 4, then one hidden layer."""
    wide = {"kernel_size": 5, "stride": 1, "padding": 1}
    flat = 8 * ((input_shape[1] - 4) // 4) * ((input_shape[2] - 4) // 4)
    return [
        {"type": "conv2d", "in_channels": input_shape[0], "out_channels": 4, **wide},
        {"type": activation},
        {"type": "conv2d", "in_channels": 4, "out_channels": 8, **wide},
        {"type": activation},
        {"type": "conv2d", "in_channels": 8, "out_channels": 8, "kernel_size": 4, "stride": 4},
        {"type": activation},
        {"type": "flatten"},
        {"type": "linear", "in_features": flat, "out_features": 64},
        {"type": activation},
        {"type": "linear", "in_features": 64, "out_features": classes},
    ]


ARCHITECTURES: dict[str, Callable[..., Architecture]] = {"fc1": fc1, "cnn": cnn, "e": large_budget}
