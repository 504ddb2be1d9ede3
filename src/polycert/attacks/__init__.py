"""Attacks: searches for counterexamples."""
