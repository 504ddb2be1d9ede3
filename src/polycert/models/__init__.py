"""Architectures and model files."""
