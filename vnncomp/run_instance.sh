#!/bin/bash
# Decides one instance and writes sat (with a counterexample), unsat, unknown, timeout or error.
# Usage: run_instance.sh v1 CATEGORY NET.onnx PROPERTY.vnnlib RESULTS_FILE TIMEOUT
set -u
[ "${1:-}" = "v1" ] || { echo "expected the version v1 first" >&2; exit 1; }
net="${3:?the network is missing}" property="${4:?the property is missing}"
results="${5:?the results file is missing}" timeout="${6:?the timeout is missing}"
here="$(cd "$(dirname "$0")" && pwd)"
tool="${POLYCERT:-$here/.venv/bin/polycert}"
# A run that does not notice its time is ended from outside.
timeout --kill-after=5 "$((${timeout%.*} + 5))" "$tool" verify "$net" "$property" --timeout "$timeout" --out "$results" --quiet
status=$?
case $status in
  0) ;;
  124 | 137) echo timeout > "$results" ;;
  *) echo error > "$results" ;;
esac
exit 0
