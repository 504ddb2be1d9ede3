"""Figure 4: clean against certified error for growing gamma, from the records of a sweep."""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib.figure import Figure

from polycert.errors import PolycertError
from polycert.records.figures import FIGURES
from polycert.report.plots import LIN_COLOUR, PEC_COLOUR, STYLE
from polycert_paper import printed_figures
from polycert_paper.figures.figure import Picture
from polycert_paper.settings import Setting, settings
from polycert_paper.stored_records import Record, Store
from polycert_paper.table import Missing

FOLDER, PREFIX = "figure4", "gamma-"
SETTING, METHOD, MAIN = "cifar10-cnn-l2", "c-per+at", "table8"
SWEEP = ("0.01", "0.03", "0.1", "0.3", "1.0", "3.0", "10.0")
SHOWN = {"CTE": (PEC_COLOUR, "o"), "CRE_Lin": (LIN_COLOUR, "s")}
CHOSEN = 1.0  # the paper's gamma
TITLE = "gamma trades clean against certified error"


def tradeoff_picture(store: Store) -> Picture:
    """Return Figure 4: our errors as lines over gamma, with the paper's network and KW for reference."""
    setting = settings([SETTING])[SETTING]
    sweep = _sweep(store, setting)
    have = {gamma for gamma, _ in sweep}
    missing = tuple(_missing(setting, gamma) for gamma in SWEEP if float(gamma) not in have)
    if not sweep:
        return Picture("figure4", TITLE, "", None, missing)
    caption = (
        f"C-PER+at with different gamma ({setting.title}{_course(sweep)}): CTE is the clean error, CRE the certified "
        "one (Lin). Dashed: KW. Open markers: the paper's network at its gamma, whose clean error profits from a leak "
        "of test images."
    )
    return Picture("figure4", TITLE, caption, _draw(sweep, *_reference(store, setting)), missing)


def _sweep(store: Store, setting: Setting) -> list[tuple[float, Record]]:
    """Return the records of the sweep with their gamma, in its order."""
    found = []
    for name, record in store.records(FOLDER).items():
        try:
            gamma = float(name.removeprefix(PREFIX))
        except ValueError:
            gamma = 0.0
        if not name.startswith(PREFIX) or not gamma > 0 or not record.of(setting, METHOD):
            raise PolycertError(
                f"{store.folder / FOLDER / name}.json must be named {PREFIX}VALUE.json and hold {setting.title}, "
                f"{METHOD}: rename it"
            )
        found.append((gamma, record))
    return sorted(found, key=lambda pair: pair[0])


def _course(sweep: list[tuple[float, Record]]) -> str:
    """Return a remark on the epochs of our runs, which may be fewer than the paper's."""
    epochs = sorted({len(record.training.metrics) for _, record in sweep if record.training is not None})
    if not epochs:
        return ""
    return f"; ours after {' to '.join(str(count) for count in sorted({epochs[0], epochs[-1]}))} epochs"


def _reference(store: Store, setting: Setting) -> tuple[str, dict[str, Any]]:
    """Return the source of KW's errors and the errors: ours if we have them, or else the paper's."""
    own = store.row(MAIN, setting, "kw")
    if own is not None and set(SHOWN) <= set(own.figures):
        return "KW, ours", {key: own.figures[key] for key in SHOWN}
    printed = printed_figures.printed(MAIN)[setting.name, "kw"]
    return "KW, paper", {key: float(printed[key]) for key in SHOWN}


def _draw(sweep: list[tuple[float, Record]], name: str, reference: dict[str, Any]) -> Figure:
    """Draw the errors over gamma."""
    printed = printed_figures.printed(MAIN)[SETTING, METHOD]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 3.8), layout="constrained")
        axes = figure.add_subplot()
        for key, (colour, marker) in SHOWN.items():
            label = FIGURES[key].title
            points = [(gamma, record.figures[key]) for gamma, record in sweep if key in record.figures]
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, label=f"{label}, ours")
            axes.axhline(reference[key], color=colour, linestyle="--", linewidth=1, label=f"{label}, {name}")
            look: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": "none"}
            axes.plot(CHOSEN, float(printed[key]), fillstyle="none", markersize=9, label=f"{label}, paper", **look)
        axes.set(xscale="log", xlabel="gamma, weight of the regularizer", ylabel="error (%)", ylim=(0, 102))
        axes.legend(frameon=False, fontsize=8, ncols=2)
    return figure


def _missing(setting: Setting, gamma: str) -> Missing:
    """Return the commands that train and evaluate one gamma."""
    run = f"{FOLDER}-gamma-{gamma}"
    train = setting.train(METHOD, f"--set gamma={gamma}", run=run)
    return Missing(run, f"{train} && {setting.evaluate(run, f'paper/results/{FOLDER}/{PREFIX}{gamma}.json')}")
