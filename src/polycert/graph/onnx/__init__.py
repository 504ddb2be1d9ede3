"""ONNX files to networks and back, with a reader of our own: nothing in a file is executed."""

from polycert.graph.onnx.imported import Imported, read_onnx

__all__ = ["Imported", "read_onnx"]
