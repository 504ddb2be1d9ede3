"""Sizes and distribution of a network's parameters (Figures 3 and 8 of the paper)."""

from __future__ import annotations

from typing import Any

import numpy as np

from polycert.graph import Network

# Bins of the histogram; what lies outside counts in the first and the last.
EDGES = np.linspace(-1, 1, 201)


def parameter_record(network: Network) -> dict[str, Any]:
    """`parameter_norm`, the Euclidean norm of all weights and biases, and `parameters`; nothing if there are none.

    `parameters` holds their number, l_1 and maximum norm, the norms of each tensor in order, and a histogram of the
    values with bins of width 0.01.
    """
    tensors = [parameter.detach().cpu().double().numpy() for parameter in network.parameters()]
    if not tensors:
        return {}
    values = np.concatenate([tensor.ravel() for tensor in tensors])
    counts, _ = np.histogram(values.clip(EDGES[0], EDGES[-1]), EDGES)
    about = {
        "count": len(values),
        **{name: size for name, size in _norms(values).items() if name != "l2"},
        "layers": [{"shape": list(tensor.shape), **_norms(tensor.ravel())} for tensor in tensors],
        "histogram": {"low": -1.0, "high": 1.0, "counts": counts.tolist()},
    }
    return {"parameter_norm": float(np.linalg.norm(values)), "parameters": about}


def _norms(values: np.ndarray) -> dict[str, float]:
    sizes = np.abs(values)
    return {"l1": float(sizes.sum()), "l2": float(np.linalg.norm(values)), "linf": float(sizes.max())}
