"""Samples on the page: their columns as short text, and pictures of the hardest and the easiest.

The page shows stored numbers cut to decimals, and never rounded in favour of a proof: radii and margins are rounded
down. The radii of attacks prove nothing by themselves and are rounded to the nearest. A column is packed as whole
decimal steps of 8, 16 or 32 bits, in base64.
"""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image

from polycert.records.figures import STATUSES
from polycert.report.runs import Examples

MOST = 12  # pictures of the hardest, and as many of the easiest
DETAILS = ("label", "prediction", "nearest", "largest", "attack_radius")
MOST_DIGITS = 6
WIDTHS: tuple[tuple[int, str], ...] = ((8, "<u1"), (16, "<u2"), (32, "<u4"))
DOWN, NEAREST = "down", "nearest"
# How each column of the samples' file is rounded; whole numbers stay as they are.
CUTS = {
    "index": DOWN,
    "label": DOWN,
    "prediction": DOWN,
    "nearest": DOWN,
    "margin": DOWN,
    "radius": DOWN,
    "largest": DOWN,
    "attack_radius": NEAREST,
    "certified": DOWN,
    "certified_crown": DOWN,
    "certified_ibp": DOWN,
    "attacked": DOWN,
}


def pictures(examples: Examples, samples: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Return the pictures of the `hardest` and `easiest` samples by largest certified radius; none without images."""
    if not _are_images(examples.inputs.shape[1:]) or "largest" not in samples:
        return {}
    rows = samples.drop_duplicates("index").set_index("index")
    known = [k for k, index in enumerate(examples.index) if index in rows.index]
    largest, wrong = rows["largest"].to_dict(), (rows["prediction"] != rows["label"]).to_dict()
    known.sort(key=lambda k: float(largest[int(examples.index[k])]))
    half = len(known) - len(known) // 2
    # Misclassified samples have no radius, so correct ones come first.
    hardest = sorted(known[:half], key=lambda k: bool(wrong[int(examples.index[k])]))
    groups = {"hardest": hardest[:MOST], "easiest": known[half:][::-1][:MOST]}
    return {name: [_entry(examples, rows, k) for k in chosen] for name, chosen in groups.items()}


def _are_images(shape: tuple[int, ...]) -> bool:
    """Return whether inputs of this shape are images."""
    return len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3))


def _entry(examples: Examples, rows: pd.DataFrame, k: int) -> dict[str, Any]:
    """Return the pictures of example k, and what is known about it."""
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
    """Return a number as JSON can hold it; None if it is missing."""
    if pd.isna(value) or not np.isfinite(float(value)):
        return None
    return int(value) if float(value).is_integer() else float(value)


def data_uri(image: npt.NDArray[np.floating[Any]]) -> str:
    """Return an image `[height, width]` or `[channels, height, width]` with values from 0 to 1 as a PNG in a URI."""
    pixels = np.round(255 * np.clip(np.nan_to_num(image), 0, 1)).astype(np.uint8)
    planes = pixels if pixels.ndim == 2 else np.moveaxis(pixels, 0, -1).squeeze(-1) if len(pixels) == 1 else None
    picture = Image.fromarray(np.moveaxis(pixels, 0, -1) if planes is None else planes)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def pack_samples(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the columns that the page shows, each packed; `status` is a position in `STATUSES`."""
    packed: dict[str, Any] = {}
    for name, cut in CUTS.items():
        if name in frame:
            values = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64, na_value=math.nan)
            packed[name] = pack(values, cut)
    if "status" in frame and frame["status"].notna().any():
        code = {status: position for position, status in enumerate(STATUSES)}
        values = np.array([code.get(status, math.nan) for status in frame["status"]], dtype=np.float64)
        packed["status"] = pack(values, DOWN)
    return packed


def pack(values: npt.NDArray[np.float64], cut: str) -> dict[str, Any]:
    """Return `{digits, base, bits, data}` with value = (base + code) / 10^digits; the largest code is a missing value.

    There are as many digits as 16 bits can distinguish over the column's range, at most `MOST_DIGITS`.
    """
    known = np.isfinite(values)
    if not known.any():
        return _packed(np.zeros(len(values)), known, digits=0)
    spread = float(np.ptp(values[known])) or float(np.abs(values[known]).max()) or 1.0
    digits = max(0, min(MOST_DIGITS, math.floor(math.log10(65000 / spread))))
    if (values[known] == np.round(values[known])).all():
        digits = 0
    return _packed(_steps(np.where(known, values, 0.0), digits, cut), known, digits)


def _steps(values: npt.NDArray[np.float64], digits: int, cut: str) -> npt.NDArray[np.float64]:
    """Return the largest whole k with k / 10^digits <= value, as the browser divides; or the nearest k."""
    scale = 10.0**digits
    if cut == NEAREST:
        return np.round(values * scale)
    k = np.floor(values * scale)
    k = np.where((k + 1) / scale <= values, k + 1, k)
    return np.where(k / scale > values, k - 1, k)


def _packed(steps: npt.NDArray[np.float64], known: npt.NDArray[np.bool_], digits: int) -> dict[str, Any]:
    """Return whole steps as codes above their smallest, in as few bits as they need."""
    base = int(steps[known].min()) if known.any() else 0
    most = int(steps[known].max()) - base if known.any() else 0
    bits, kind = next(((bits, kind) for bits, kind in WIDTHS if most < 2**bits - 1), WIDTHS[-1])
    codes = np.where(known, np.clip(steps - base, 0, 2**bits - 2), 2**bits - 1).astype(kind)
    return {"digits": digits, "base": base, "bits": bits, "data": base64.b64encode(codes.tobytes()).decode("ascii")}
