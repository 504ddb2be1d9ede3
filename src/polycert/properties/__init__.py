"""Properties of a network's outputs over boxes of inputs: VNN-LIB files, and their decision."""

from polycert.properties.decision import Decision, decide
from polycert.properties.reader import read_property
from polycert.properties.spec import Box, Clause, Property

__all__ = ["Box", "Clause", "Decision", "Property", "decide", "read_property"]
