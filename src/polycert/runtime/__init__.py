"""What the machine, files and processes are: limits, locks, threads, random numbers; no network is known here."""
