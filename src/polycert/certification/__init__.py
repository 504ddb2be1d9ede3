"""Envelopes, certified radii, and the search for the largest radius."""
