"""Questions decided: by bounds, attacks, splitting and programs."""
