"""Columns of numbers as short text: decimal steps in 8, 16 or 32 bits, base64.

A figure on the page is the stored one cut to a decimal, never rounded in favour of a proof: radii and margins are cut
downwards. The radii of attacks prove nothing by themselves and are rounded to the nearest.
"""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

MOST_DIGITS = 6
WIDTHS: tuple[tuple[int, str], ...] = ((8, "<u1"), (16, "<u2"), (32, "<u4"))
DOWN, NEAREST = "down", "nearest"
# Column of the samples' file -> how it is cut; whole numbers stay as they are.
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
STATUSES = ("robust", "falsified", "unknown")


def pack_samples(frame: pd.DataFrame) -> dict[str, Any]:
    """The columns that the page shows, each packed; `status` as a position in `STATUSES`."""
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
    """`{digits, base, bits, data}`: value = (base + code) / 10^digits; the largest code is a missing value.

    Digits are as many as 16 bits can tell apart over the column's range, at most `MOST_DIGITS`.
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
    """The largest whole k with k / 10^digits <= value, exactly as the browser divides; or the nearest."""
    scale = 10.0**digits
    if cut == NEAREST:
        return np.round(values * scale)
    k = np.floor(values * scale)
    k = np.where((k + 1) / scale <= values, k + 1, k)
    return np.where(k / scale > values, k - 1, k)


def _packed(steps: npt.NDArray[np.float64], known: npt.NDArray[np.bool_], digits: int) -> dict[str, Any]:
    base = int(steps[known].min()) if known.any() else 0
    most = int(steps[known].max()) - base if known.any() else 0
    bits, kind = next(((bits, kind) for bits, kind in WIDTHS if most < 2**bits - 1), WIDTHS[-1])
    codes = np.where(known, np.clip(steps - base, 0, 2**bits - 2), 2**bits - 1).astype(kind)
    return {"digits": digits, "base": base, "bits": bits, "data": base64.b64encode(codes.tobytes()).decode("ascii")}
