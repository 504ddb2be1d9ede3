"""Architectures, and the files that hold models."""
