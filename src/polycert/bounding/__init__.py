"""Bounds of a graph over a set of inputs: methods, relaxations, passes and chunks."""
