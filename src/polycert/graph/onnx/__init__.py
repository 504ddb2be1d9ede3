"""ONNX files to networks and back, with a reader of our own: nothing in a file is executed."""

from polycert.graph.onnx.network import Imported, read_onnx
from polycert.graph.onnx.replay import check_inside

__all__ = ["Imported", "check_inside", "read_onnx"]
