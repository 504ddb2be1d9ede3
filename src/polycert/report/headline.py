"""What a run comes to: a headline, cards, and the shares of samples that are proved, open and broken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from polycert.report.records_table import ERROR, RADIUS, is_filled, is_pair, show
from polycert.report.runs import Record, ReportedModel, flag
from polycert.sets.ball import eps_text


def shares(run: ReportedModel) -> dict[str, float] | None:
    """Per cent of samples that are proved, wrong, broken by an attack, and open; None where too little is known."""
    found = _shares_of_samples(run.samples) if run.samples is not None else _shares_of_record(run.record)
    if found is None:
        return None
    proved, wrong, broken = found
    broken = max(broken - wrong, 0.0)
    return {"proved": proved, "open": max(100 - proved - wrong - broken, 0.0), "broken": broken, "wrong": wrong}


def _shares_of_samples(frame: pd.DataFrame) -> tuple[float, float, float] | None:
    ways = [flag(frame, name) for name in ("certified", "certified_crown", "certified_ibp") if name in frame]
    if not ways:
        return None
    wrong = frame["prediction"] != frame["label"]
    broken = wrong | flag(frame, "attacked") if "attacked" in frame else wrong
    proved = pd.concat(ways, axis=1).any(axis=1)
    if "status" in frame:
        proved, broken = proved | (frame["status"] == "robust"), broken | (frame["status"] == "falsified")
    return 100 * float(proved.mean()), 100 * float(wrong.mean()), 100 * float(broken.mean())


def _shares_of_record(record: Record) -> tuple[float, float, float] | None:
    exact: Any = record.get("CRE_exact")
    fewer = (record.get("limits") or {}).get("exact", record["n"]) < record["n"] if record else False
    lower, upper = (0.0, None) if fewer or not is_pair(exact) else exact
    unproved = [record.get(key) for key in ("CRE_Lin", "CRE_CROWN", "CRE_IBP")]
    known = [value for value in (*unproved, upper) if isinstance(value, int | float)]
    wrong = record.get("CTE")
    if not known or not isinstance(wrong, int | float):
        return None
    attacks = [record.get(key) for key in ("PGD", "PGD_strong")]
    broken = max(value for value in (wrong, lower, *attacks) if isinstance(value, int | float))
    return 100 - min(known), wrong, broken


def headline(run: ReportedModel, parts: Mapping[str, float] | None) -> str:
    """The result in a sentence or two."""
    if parts is None:
        return "This model has not been evaluated yet: only its training is shown."
    ball = f"of up to {eps_text(run.fact('eps'))} (l_{run.fact('norm')})"
    share = math.floor(10 * parts["proved"] + 1e-6) / 10  # 100 % only if it is all of them
    text = f"{share:.1f} % of {run.record['n']:,} samples are proved: no change {ball} alters their class. "
    if run.record.get("rigorous") is False:
        text = (
            f"Fast arithmetic certifies {share:.1f} % of {run.record['n']:,} samples against changes {ball}; "
            "its rounding errors are not covered, so nothing is proved. "
        )
    tried = f"an attack breaks {parts['broken']:.1f} %, " if parts["broken"] > 0 else ""
    return f"{text}{parts['wrong']:.1f} % are wrong as they are, {tried}and {parts['open']:.1f} % are open."


def cards(run: ReportedModel) -> list[dict[str, str]]:
    """The main figures, each with its 95 % interval or what it is about."""
    if not run.record:
        return _training_cards(run)
    chosen = [
        ("CTE", "clean error", ERROR + " %"),
        ("PGD_strong" if is_filled(run.record.get("PGD_strong")) else "PGD", "error under attack", ERROR + " %"),
        (_best(run.record), "certified error", ERROR + " %"),
        ("CRE_exact", "exact robust error", ERROR),
        ("ACB_PEC", "mean radius within eps", RADIUS),
        ("radius_mean", "mean largest radius", RADIUS),
    ]
    found = []
    for key, label, form in chosen:
        value, interval = run.record.get(key), (run.record.get("intervals") or {}).get(key)
        if is_filled(value):
            note = f"95 %: {show(interval, form.removesuffix(' %'))}" if is_pair(interval) else key.replace("_", " ")
            found.append({"label": label, "value": show(value, form), "note": note, "key": key})
    return found


def _best(record: Record) -> str:
    """The lowest certified error."""
    known = [key for key in ("CRE_Lin", "CRE_CROWN", "CRE_IBP") if isinstance(record.get(key), int | float)]
    return min(known, key=lambda key: float(record[key]), default="CRE_Lin")


def _training_cards(run: ReportedModel) -> list[dict[str, str]]:
    last = run.metrics[-1] if run.metrics else {}
    names = {"validation_CTE": "clean error", "validation_CRE": "certified error"}
    note = f"validation, epoch {last.get('epoch', '?')}"
    return [
        {"label": label, "value": show(last[key], ERROR + " %"), "note": note, "key": key}
        for key, label in names.items()
        if is_filled(last.get(key))
    ]


def contradictions(frame: pd.DataFrame | None) -> int:
    """Samples with an adversarial input inside their certified radius: none, if all is right."""
    if frame is None or not {"largest", "attack_radius"} <= set(frame):
        return 0
    return int((frame["attack_radius"] < frame["largest"] * (1 - 1e-6)).sum())
