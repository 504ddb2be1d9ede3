"""Read ONNX files into networks and write networks as ONNX files. Nothing in a file is executed."""

from polycert.graph.onnx import (  # their ops register themselves
    arithmetic,
    conv_pool,
    elementwise,
    recurrent,
    shape_ops,
)
from polycert.graph.onnx.network import OnnxNetwork, read_onnx
from polycert.graph.onnx.program import ENDINGS

__all__ = ["ENDINGS", "OnnxNetwork", "arithmetic", "conv_pool", "elementwise", "read_onnx", "recurrent", "shape_ops"]
