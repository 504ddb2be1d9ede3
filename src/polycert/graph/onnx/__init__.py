"""ONNX files to networks and back, with a reader of our own: nothing in a file is executed."""

from polycert.graph.onnx.imported import OnnxNetwork, read_onnx

__all__ = ["OnnxNetwork", "read_onnx"]
