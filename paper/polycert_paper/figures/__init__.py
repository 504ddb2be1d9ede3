"""The paper's figures by name. They are drawn from stored records, or computed when they are drawn."""

from collections.abc import Callable
from functools import partial

from polycert_paper.figures.activation_lines import relu_picture, sigmoid_picture
from polycert_paper.figures.envelope_sketch import sketch_picture
from polycert_paper.figures.figure import Picture
from polycert_paper.figures.histograms import parameter_picture, radius_picture
from polycert_paper.figures.tradeoff import tradeoff_picture
from polycert_paper.figures.two_phases import curve_picture
from polycert_paper.stored_records import Store

FIGURES: dict[str, Callable[[Store], Picture]] = {
    "figure1": curve_picture,
    "figure2": lambda _: sketch_picture(),
    "figure3": partial(parameter_picture, "figure3"),
    "figure4": tradeoff_picture,
    "figure5": partial(radius_picture, "figure5"),
    "figure6": lambda _: relu_picture(),
    "figure7": lambda _: sigmoid_picture(),
    "figure8": partial(parameter_picture, "figure8"),
    "figure9": partial(radius_picture, "figure9"),
}

__all__ = ["FIGURES", "Picture"]
