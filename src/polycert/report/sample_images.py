"""Samples as small PNG images inside the page."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image

from polycert.report.runs import Examples

MOST = 12  # on each side
DETAILS = ("label", "prediction", "nearest", "largest", "attack_radius")


def pictures(examples: Examples, samples: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """`hardest` and `easiest` by largest certified radius, with what is known; empty if the inputs are no images."""
    if not _are_images(examples.inputs.shape[1:]) or "largest" not in samples:
        return {}
    rows = samples.drop_duplicates("index").set_index("index")
    known = [k for k, index in enumerate(examples.index) if index in rows.index]
    largest, wrong = rows["largest"].to_dict(), (rows["prediction"] != rows["label"]).to_dict()
    known.sort(key=lambda k: float(largest[int(examples.index[k])]))
    half = len(known) - len(known) // 2
    # Misclassified samples have no radius to lose: those that are right come first.
    hardest = sorted(known[:half], key=lambda k: bool(wrong[int(examples.index[k])]))
    groups = {"hardest": hardest[:MOST], "easiest": known[half:][::-1][:MOST]}
    return {name: [_entry(examples, rows, k) for k in chosen] for name, chosen in groups.items()}


def _are_images(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3))


def _entry(examples: Examples, rows: pd.DataFrame, k: int) -> dict[str, Any]:
    row = rows.loc[examples.index[k]]
    entry: dict[str, Any] = {"index": int(examples.index[k]), "input": data_uri(examples.inputs[k])}
    entry |= {name: _number(row[name]) for name in DETAILS if name in rows}
    found = examples.counterexamples[k]
    wrong = row["prediction"] != row["label"]  # such a sample is its own counterexample
    if np.isfinite(found).all() and not wrong:
        entry["counterexample"] = data_uri(found)
        difference = found - examples.inputs[k]
        most = float(np.abs(difference).max())
        entry |= {"change": most, "difference": data_uri(0.5 + difference / (2 * most or 1.0))}
    return entry


def _number(value: Any) -> int | float | None:
    if pd.isna(value) or not np.isfinite(float(value)):
        return None
    return int(value) if float(value).is_integer() else float(value)


def data_uri(image: npt.NDArray[np.floating[Any]]) -> str:
    """A PNG of an image `[height, width]` or `[channels, height, width]` with values from 0 to 1."""
    pixels = np.round(255 * np.clip(np.nan_to_num(image), 0, 1)).astype(np.uint8)
    planes = pixels if pixels.ndim == 2 else np.moveaxis(pixels, 0, -1).squeeze(-1) if len(pixels) == 1 else None
    picture = Image.fromarray(np.moveaxis(pixels, 0, -1) if planes is None else planes)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
