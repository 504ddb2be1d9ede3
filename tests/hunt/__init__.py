"""The hunt: kinds of cases that try to make polycert prove something false. `python -m hunt --seconds 3600`."""
