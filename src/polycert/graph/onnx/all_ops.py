"""All ONNX ops that have a rule: importing the files that hold them fills the table."""

from polycert.graph.onnx import activations, arithmetic, conv_pool, rnn, shape_ops
from polycert.graph.onnx.op_registry import TABLE

__all__ = ["TABLE", "activations", "arithmetic", "conv_pool", "rnn", "shape_ops"]
