"""Sets of inputs: balls inside boxes, and what rounding may do to them."""
