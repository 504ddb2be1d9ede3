"""ONNX files to networks and back, with a reader of our own: nothing in a file is executed."""

from polycert.graph.onnx import arithmetic, conv_pool, elementwise, rnn, shape_ops  # their ops register themselves
from polycert.graph.onnx.imported import OnnxNetwork, read_onnx

__all__ = ["OnnxNetwork", "arithmetic", "conv_pool", "elementwise", "read_onnx", "rnn", "shape_ops"]
