"""Properties of a network's outputs over boxes of inputs: reading VNN-LIB files, and deciding what they ask."""

from polycert.verification.vnnlib.property import Box, Clause, Property
from polycert.verification.vnnlib.question import PropertyVerdict, decide
from polycert.verification.vnnlib.reader import read_property

__all__ = ["Box", "Clause", "Property", "PropertyVerdict", "decide", "read_property"]
