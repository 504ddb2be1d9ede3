"""The record of an evaluation: facts, figures, norms of the parameters, and how they were found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from polycert import __version__
from polycert.evaluation.exact import ExactSettings
from polycert.evaluation.measurements import Measurements, describe_attacks
from polycert.evaluation.settings import EvaluationQuestion
from polycert.graph import Network
from polycert.graph.fingerprint import network_digest
from polycert.records.figures import COUNTS, FIGURES, Columns, searched
from polycert.records.provenance import box_text
from polycert.sets.ball import norm_text

FACTS = ("model", "dataset", "architecture", "activation", "norm", "eps", "method", "seed")
# Edges of the bins of the histogram of parameters; values outside are counted in the first and the last bin.
EDGES = np.linspace(-1, 1, 201)


def make_record(
    question: EvaluationQuestion, about: Mapping[str, Any], whole: Measurements, exact: ExactSettings | None
) -> dict[str, Any]:
    """Return the record: facts, figures, and how they were found."""
    settings, ball, leak = question.settings, question.ball, about.get("test_leak")
    facts = {**about, "norm": norm_text(ball.norm), "eps": question.eps}
    record: dict[str, Any] = {name: facts[name] for name in FACTS if facts.get(name) is not None}
    record["attack"] = describe_attacks(settings.steps, settings.restarts, settings.seed)
    record |= summary(whole.columns, question.eps)
    if leak is not None:
        clean = ~leaked(whole.columns["index"], leak)
        if clean.any():
            record["clean_half"] = summary({k: v[clean] for k, v in whole.columns.items()}, question.eps)
    record |= {"upper": settings.upper, "tolerance": settings.tolerance, "rigorous": settings.rigorous}
    record |= {"box": box_text(ball.low, ball.high), "network": network_digest(question.network)}
    if not math.isinf(ball.norm):
        record["minimum"] = ball.minimum
    if exact is not None:
        record["exact"] = {"seconds": exact.seconds, "timeout": exact.timeout}
    record |= parameter_record(question.network)
    seconds = {name: round(value, 2) for name, value in whole.seconds.items()}
    record["seconds"] = seconds | {"total": round(sum(whole.seconds.values()), 2)}
    last = {name: about[name] for name in ("command", "training") if name in about}
    return record | last | {"version": __version__}


def leaked(index: np.ndarray, leak: Mapping[str, Any]) -> np.ndarray:
    """Return which positions of the test set training has seen, `[n]`: those with `start <= i % batch < stop`."""
    place = index % int(leak["batch"])
    return (place >= int(leak["start"])) & (place < int(leak["stop"]))


def summary(columns: Columns, eps: float) -> dict[str, Any]:
    """Return the figures as a record holds them.

    These are the values, their `intervals`, `counts` of hidden units, and `limits` on parts with fewer than n samples.
    """
    estimates = ((key, figure.estimate(columns, eps)) for key, figure in FIGURES.items())
    found, total = {key: estimate for key, estimate in estimates if estimate is not None}, len(columns["label"])
    record: dict[str, Any] = {"n": total, **{key: estimate.value for key, estimate in found.items()}}
    record["intervals"] = {key: list(estimate.interval) for key, estimate in found.items()}
    if "unstable" in columns:
        record["counts"] = {name: float(columns[name].mean()) for name in COUNTS}
    limits = {"search": int(searched(columns).sum())}
    if "CRE_exact" in found:
        limits["exact"] = found["CRE_exact"].samples
    few = {name: count for name, count in limits.items() if count < total}
    return record | ({"limits": few} if few else {})


def parameter_record(network: Network) -> dict[str, Any]:
    """Return `parameter_norm`, the Euclidean norm of all weights and biases, and `parameters`; {} if there are none.

    `parameters` holds the number of weights and biases, their l_1 and maximum norm, the norms of each tensor in order,
    and a histogram of the values with bins of width 0.01.
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
    """Return the l_1, Euclidean and maximum norm of an array `[n]`."""
    sizes = np.abs(values)
    return {"l1": float(sizes.sum()), "l2": float(np.linalg.norm(values)), "linf": float(sizes.max())}
