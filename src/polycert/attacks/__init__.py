"""Attacks: searches for a point of another class."""
