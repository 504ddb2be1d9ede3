"""Figure 1: the two phases of a certified radius, from stored curves."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

from polycert.report.plots import Phases, draw_phases
from polycert_paper.figures.figure import Picture
from polycert_paper.printed_figures import METHOD_NAMES
from polycert_paper.settings import DATASETS, trained_model
from polycert_paper.stored_records import Store
from polycert_paper.table import Missing

TITLE = "the two phases of the certified radius"
ROW = "mnist-fc1-linf-mmr+at"  # the paper's choice


class StoredCurve(BaseModel):
    """The certified radius of one sample in balls of growing size."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str
    source: str
    dataset: str
    method: str
    index: int
    eps: list[float]
    radius: list[float]
    certified: list[bool]

    @model_validator(mode="after")
    def _same_length(self) -> StoredCurve:
        """Check that the three lists have the same length."""
        if not len(self.eps) == len(self.radius) == len(self.certified) > 1:
            raise ValueError("eps, radius and certified must be lists of one length above 1")
        return self


def curve_picture(store: Store) -> Picture:
    """Return Figure 1 for a network of ours, or else for a released one."""
    curves = sorted(store.read("figure1", StoredCurve).values(), key=lambda curve: curve.source != "ours")
    missing = Missing(
        ROW,
        f"polycert train {ROW} --run-dir runs/{ROW} && polycert reproduce figure1 --add {trained_model(ROW)}",
    )
    if not curves:
        return Picture("figure1", TITLE, "", None, (missing,))
    curve = curves[0]
    figure = draw_phases(Phases(np.array(curve.eps), np.array(curve.radius), np.array(curve.certified)))
    name = METHOD_NAMES.get(curve.method, curve.method)
    place = DATASETS.get(curve.dataset, curve.dataset)
    caption = (
        f"Certified l_inf radius of test image {curve.index} of {place} for balls of growing size; the network "
        f"{curve.model}, trained by {name} ({curve.source}). Up to the optimal eps the whole ball is proved; beyond it "
        "only PEC still certifies a part."
    )
    return Picture("figure1", TITLE, caption, figure, () if curve.source == "ours" else (missing,))
