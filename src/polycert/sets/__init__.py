"""Sets of inputs: balls inside boxes, intervals, and the error model of rounding."""
