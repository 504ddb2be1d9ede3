"""Whether numbers that a file computes from its constants are exact. Those without any rounding count as stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from polycert.graph.onnx.constant_folding import ARITHMETIC, FLOAT_TYPES
from polycert.graph.onnx.program import OnnxCall
from polycert.runtime.execution import flushes

Array = np.ndarray
MOST = 2**18  # entries of a result that are computed again in fractions, at most; larger results count as rounded
WHOLE = 2**53  # float64 holds every whole number up to this size

# Whether a result is exact, given the result and the operands as fractions.
_EXACT: dict[str, Callable[..., bool]] = {
    "Add": lambda r, a, b: r == a + b,
    "Div": lambda r, a, b: r * b == a,
    "Floor": lambda r, a: r == a // 1,
    "Mul": lambda r, a, b: r == a * b,
    "Sqrt": lambda r, a: r * r == a,
    "Sub": lambda r, a, b: r == a - b,
}
# Where a result is one of its operands or 0, so that nothing has to be computed again.
_NEUTRAL: dict[str, Callable[..., Array]] = {
    "Add": lambda r, a, b: ((a == 0) & (r == b)) | ((b == 0) & (r == a)),
    "Div": lambda r, a, b: (b == 1) & (r == a),
    "Mul": lambda r, a, b: (((a == 0) | (b == 0)) & (r == 0)) | ((a == 1) & (r == b)) | ((b == 1) & (r == a)),
    "Sub": lambda r, a, b: (b == 0) & (r == a),
}


def is_exact(call: OnnxCall, operands: Sequence[Any], result: Array) -> bool:
    """Whether a call of constants gave what it gives in real numbers; False also where that cannot be told."""
    if call.op in ARITHMETIC:
        return _is_exact(call.op, [result, *operands])
    if call.op == "Cast" and call.get("to") in FLOAT_TYPES:
        given = np.asarray(operands[0])
        whole = given.dtype.kind in "iu" and bool(((given < -WHOLE) | (given > WHOLE)).any())
        return np.array_equal(result, given) and not whole
    return True


def _is_exact(op: str, parts: Sequence[Array]) -> bool:
    """Whether the first of some arrays is exactly the op's result for the others."""
    if op not in _EXACT or not all(np.isfinite(part).all() for part in parts) or flushes():
        return False
    columns = [part.reshape(-1) for part in np.broadcast_arrays(*parts)]
    if op in _NEUTRAL:
        left = ~_NEUTRAL[op](*columns)
        columns = [column[left] for column in columns]
    if len(columns[0]) > MOST:
        return False
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return all(_EXACT[op](*map(Fraction, row)) for row in rows)
