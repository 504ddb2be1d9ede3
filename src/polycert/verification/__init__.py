"""Answer questions about networks exactly: by bounds, attacks, branch and bound, and programs for solvers."""
