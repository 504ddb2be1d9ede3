#!/bin/bash
# Prepares one instance: nothing is converted, but unreadable files are refused (a non-zero status skips the instance).
# Usage: prepare_instance.sh v1 CATEGORY NET.onnx PROPERTY.vnnlib
set -eu
[ "${1:-}" = "v1" ] || { echo "expected the version v1 first" >&2; exit 1; }
[ -r "${3:?the network is missing}" ] && [ -r "${4:?the property is missing}" ]
