"""`python -m hunt --seconds 3600 --seed 1 [--kinds a,b] [--workers 1] [--out FILE.json]`, run in `tests/`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path


def main() -> int:
    """Hunt, print the table; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="hunt", description="Try to make polycert prove something false.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="", help="names, separated by commas; all if none is given")
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--out", type=Path, help="write the figures and the finds as JSON")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # for the workers: before torch is imported

    from tests.hunt.kinds import KINDS
    from tests.hunt.runner import Hunt, table

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    wanted = [name.strip() for name in options.kinds.split(",") if name.strip()]
    unknown = set(wanted) - {entry.kind.name for entry in KINDS}
    if unknown:
        parser.error(f"no kind {', '.join(sorted(unknown))}: there are {', '.join(e.kind.name for e in KINDS)}")
    hunt = Hunt([entry for entry in KINDS if not wanted or entry.kind.name in wanted], options.seed)
    try:
        hunt.for_seconds(options.seconds, options.workers)
    except KeyboardInterrupt:
        print("stopped early", file=sys.stderr)
    tallies = list(hunt.tallies.values())
    print(table(tallies))
    if options.out is not None:
        options.out.write_text(
            json.dumps({"seed": options.seed, "kinds": [vars(tally) for tally in tallies]}, indent=1)
        )
    return 0 if all(tally.clean for tally in tallies) else 1


if __name__ == "__main__":
    sys.exit(main())
