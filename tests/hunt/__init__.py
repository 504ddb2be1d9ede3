"""The hunt: kinds of cases that try to make polycert prove something false. `python -m tests.hunt --seconds 3600`."""
