"""The tensors that an ONNX file stores. Their sizes are checked before anything is allocated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from polycert.errors import PolycertError
from polycert.runtime import limits

Kind = tuple[int, str]

# For ONNX's number of a type: the bytes of an entry, and the field that holds the entries if they are not raw.
KINDS: dict[int, Kind] = {
    1: (4, "float_data"),
    2: (1, "int32_data"),
    3: (1, "int32_data"),
    6: (4, "int32_data"),
    7: (8, "int64_data"),
    9: (1, "int32_data"),
    11: (8, "double_data"),
}
FIELDS = sorted({field for _, field in KINDS.values()})


def checked_kind(tensor: Any) -> tuple[limits.Shape, Kind]:
    """Return a tensor's shape and its entry of `KINDS`, neither of which promises too much."""
    name = tensor.name or "constant"
    if tensor.data_type not in KINDS:
        raise PolycertError(f"the tensor {name!r} has type {tensor.data_type}: float32, float64 or integers are read")
    return limits.checked_shape(tensor.dims, f"the tensor {name!r}"), KINDS[tensor.data_type]


def tensor_of(tensor: Any) -> np.ndarray:
    """Return a stored tensor as an array. Its size is checked against what is stored before anything is allocated."""
    from onnx import numpy_helper

    name = tensor.name or "constant"
    shape, (width, where) = checked_kind(tensor)
    stored = len(tensor.raw_data) / width if tensor.HasField("raw_data") else len(getattr(tensor, where))
    if stored != math.prod(shape):
        raise PolycertError(f"the tensor {name!r} of shape {list(shape)} stores {stored:g} entries")
    array = np.asarray(numpy_helper.to_array(tensor))
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise PolycertError(f"the tensor {name!r} contains NaN or infinite values")
    return array
