"""`polycert export`."""

from __future__ import annotations

from polycert.cli.exit_status import BadUsage, tell
from polycert.cli.options import ExportOptions
from polycert.cli.samples import load_model
from polycert.graph.onnx.export import export


def export_command(options: ExportOptions) -> None:
    """Write a model as an ONNX file."""
    if options.target.suffix != ".onnx":
        raise BadUsage(f"networks are exported as .onnx, not {options.target.name!r}")
    export(load_model(options.model, options.weights), options.target)
    if not options.quiet:
        tell(f"written to {options.target}, checked with onnxruntime")
