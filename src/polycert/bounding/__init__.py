"""Bounds of a graph over a set of inputs, by method and relaxation."""
