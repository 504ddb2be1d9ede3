"""Models that come with polycert: trained by its recipes, checksummed, with the evaluated row beside each."""

from polycert.zoo.shelf import Entry, add, entry, load, names

__all__ = ["Entry", "add", "entry", "load", "names"]
