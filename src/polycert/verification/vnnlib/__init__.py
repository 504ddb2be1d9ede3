"""Properties of a network's outputs over boxes of inputs: VNN-LIB files, and their decision."""

from polycert.verification.vnnlib.property import Box, Clause, Property
from polycert.verification.vnnlib.question import PropertyVerdict, decide
from polycert.verification.vnnlib.reader import read_property

__all__ = ["Box", "Clause", "Property", "PropertyVerdict", "decide", "read_property"]
