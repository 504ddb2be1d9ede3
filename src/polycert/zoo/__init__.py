"""Models that come with polycert, each with a checksum, the recipe that trained it and the record of its evaluation."""

from polycert.zoo.registry import RECIPE, Entry, add, entry, load, names

__all__ = ["RECIPE", "Entry", "add", "entry", "load", "names"]
