#!/bin/bash
# Installs polycert into vnncomp/.venv. Usage: install_tool.sh v1
set -eu
[ "${1:-}" = "v1" ] || { echo "expected the version v1 first" >&2; exit 1; }
here="$(cd "$(dirname "$0")" && pwd)"
"${PYTHON:-python3}" -m venv "$here/.venv"
"$here/.venv/bin/python" -m pip install --quiet -c "$here/../constraints.txt" torch
"$here/.venv/bin/python" -m pip install --quiet -c "$here/../constraints.txt" "$here/..[vnnlib]"
