"""From bounds to envelopes, and from envelopes to certified radii."""
