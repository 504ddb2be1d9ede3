"""Models that come with polycert: trained by its recipes, checksummed, with the evaluated row beside each."""

from polycert.zoo.registry import RECIPE, Entry, add, entry, load, names

__all__ = ["RECIPE", "Entry", "add", "entry", "load", "names"]
