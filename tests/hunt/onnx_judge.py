"""onnxruntime as the judge of the hunt: sessions of its own, all values on the way, and what rounding may do."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnxruntime

from tests.hunt.onnx_files import DTYPES, File, lifted, lowered, model_of

ROUNDING = {np.dtype(np.float32): 3e-5, np.dtype(np.float64): 1e-11}  # of the sizes on the way
INEXACT = ("Gelu",)  # whose kernel for doubles has constants in float32
LARGEST = {np.dtype(np.float32): 1e30, np.dtype(np.float64): 1e200}


class Seen(NamedTuple):
    """An output `[entries]` in float64, and how far rounding may have moved it."""

    output: np.ndarray
    allowed: float

    @property
    def sure(self) -> bool:
        """Whether it can be compared with anything."""
        return bool(np.isfinite(self.output).all() and np.isfinite(self.allowed))


def session_of(file: File, shown: tuple[str, ...] = ()) -> Any:
    """A session that computes the file as it is written; an exception where onnxruntime refuses it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    only: Any = {"providers": ["CPUExecutionProvider"], "enable_fallback": False}
    return onnxruntime.InferenceSession(model_of(file, shown), options, **only)


def needed(file: File) -> list[Any]:
    """The nodes that the output depends on: what the others may allocate is nobody's business."""
    wanted = {file["output"]}
    while missing := {name for n in file["nodes"] if wanted.intersection(n["out"]) for name in n["in"]} - wanted:
        wanted |= missing
    return [node for node in file["nodes"] if wanted.intersection(node["out"])]


class Judge:
    """Runs a file in float64 where onnxruntime has the kernels, else in float32.

    Attributes:
        exact: whether it is float64.
    """

    def __init__(self, file: File) -> None:
        file = {**file, "nodes": needed(file)}
        shown = tuple(name for node in file["nodes"] for name in node["out"] if name)
        self.shape = [size if isinstance(size, int) and size else 1 for size in file["input"]["shape"]]
        stored = [held for held in file["tensors"].values() if held["values"]]
        stored += [held[1] for node in file["nodes"] for held in node["attributes"].values() if held[0] == "t"]
        self.growth = max([1.0, *(_growth(held) for held in stored if held["values"])])
        self.largest = max([1.0, *(float(np.abs(np.array(h["values"], float)).max()) for h in stored if h["values"])])
        self.dtype, self.session = self._best(file, shown)

    def _best(self, file: File, shown: tuple[str, ...]) -> tuple[np.dtype[Any], Any]:
        """In float64 if that is as good as it looks, then as it is, then in float32."""
        own = np.dtype(DTYPES[file["input"]["type"]])
        ways = [(np.dtype(np.float64), lifted(file)), (own, file), (np.dtype(np.float32), lowered(file))]
        if any(node["op"] in INEXACT for node in file["nodes"]):
            ways = ways[1:]
        for dtype, way in ways:
            try:
                session = session_of(way, shown)
                session.run(None, {"x": np.zeros(self.shape, dtype)})
            except Exception as error:  # of onnxruntime's own types: most often it has no kernel for doubles
                refused = error
                continue
            return dtype, session
        raise refused

    @property
    def exact(self) -> bool:
        """Whether it computes in float64."""
        return bool(self.dtype == np.float64)

    def __call__(self, x: np.ndarray, loose: bool = False, size: float = 0.0) -> Seen:
        """The output for one input, and what rounding may do to it.

        Args:
            x: the input.
            loose: whether the file rounds numbers to float32 that a judge in float64 does not.
            size: of the largest value on another way to the output.
        """
        found = self._run(x)
        sizes = [float(np.abs(value.astype(float)).max()) for value in found if value.size and value.dtype.kind == "f"]
        size = max([size, float(np.abs(x).max()), self.largest, *sizes])
        share = ROUNDING[np.dtype(np.float32)] if loose else ROUNDING[self.dtype]
        allowed = share * size * self.growth if size < LARGEST[self.dtype] else np.inf
        return Seen(found[0].astype(np.float64).reshape(-1), allowed)

    def _run(self, x: np.ndarray) -> list[np.ndarray]:
        return list(self.session.run(None, {"x": x.reshape(self.shape).astype(self.dtype)}))


def _growth(described: dict[str, Any]) -> float:
    """The sum of a tensor's entries: how much it may enlarge what is below it."""
    return float(np.abs(np.array(described["values"], float)).sum())
