"""The machine: limits on files, locks, threads, processes, keyed random numbers."""
