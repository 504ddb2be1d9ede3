"""All ONNX ops that have a rule: importing the files that hold them fills the table."""

from polycert.graph.onnx import arithmetic, curves, moving, recurrent, windows
from polycert.graph.onnx.entries import TABLE

__all__ = ["TABLE", "arithmetic", "curves", "moving", "recurrent", "windows"]
