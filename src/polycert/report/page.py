"""The report's page: one HTML file that holds its style, script and data, and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from polycert.errors import PolycertError
from polycert.records.figures import STATUSES, VALIDATION
from polycert.records.files import check_place, whole_file
from polycert.records.run_folder import RunFolder
from polycert.report.overview import cards, contradictions, headline, shares, table
from polycert.report.runs import ReportedModel, gather
from polycert.report.samples import pack_samples, pictures

SCRIPTS = ("data.js", "charts.js", "results.js", "samples.js", "page.js")
CURVES = ("epoch", "loss", "eps", "lr", *VALIDATION)
FACTS = ("dataset", "architecture", "activation", "method", "norm", "eps", "n", "seed", "version")


class PagePart(NamedTuple):
    """A further part of the page, with its own tab: its `id`, title, content and style."""

    name: str
    title: str
    content: Markup
    style: str = ""


MakePart = Callable[[Sequence[ReportedModel]], PagePart]


def write_report(
    paths: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str], parts: Iterable[MakePart] = ()
) -> list[ReportedModel]:
    """Write the report on records, run folders and folders of either; returns the runs in it.

    The page is written whole or not at all. Each of `parts` makes a further part of the page from the runs.
    """
    target = check_page(out)
    runs = gather(Path(path) for path in paths)
    text = render(runs, [part(runs) for part in parts])
    with whole_file(target) as name:
        name.write_text(text, encoding="utf-8")
    return runs


def check_page(out: str | os.PathLike[str]) -> Path:
    """Return the path; raises `PolycertError` if no page can be written to it."""
    target = Path(out)
    if target.suffix not in (".html", ".htm"):
        raise PolycertError(f"a report is an HTML page: the name must end in .html, got {target.name!r}")
    return check_place(target)


def render(runs: list[ReportedModel], parts: Sequence[PagePart] = ()) -> str:
    """Return the page as text."""
    from polycert import __version__

    style = "\n".join([_asset("page.css"), *(part.style for part in parts)])
    script = '"use strict";\n' + "\n".join(_asset(name) for name in SCRIPTS)
    shown = [run for run in runs if run.about_model] or runs
    columns, rows = table(shown)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "separators": (",", ":"), "allow_nan": False}
    return environment.from_string(_asset("page.html")).render(
        style=Markup(style),  # style, script and parts are our own text: all other text is escaped
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        columns=columns,
        rows=rows,
        titles=_titles(shown),
        count=len(runs),
        parts=parts,
        models=[model(run) for run in shown],
        statuses=STATUSES,
        version=__version__,
    )


def _titles(runs: list[ReportedModel]) -> list[str]:
    """Return a title for each run: its name, with the path where several runs have the same name."""
    names = [run.name for run in runs]
    return [run.name if names.count(run.name) == 1 else f"{run.name} ({run.path})" for run in runs]


def model(run: ReportedModel) -> dict[str, Any]:
    """Return what the page's script needs to know of a run, as JSON can hold it."""
    parts = shares(run)
    found = {} if run.examples is None or run.samples is None else pictures(run.examples, run.samples)
    facts = {key: run.fact(key) for key in FACTS}
    return {
        "name": run.name,
        "path": str(run.path),
        "facts": {key: value for key, value in facts.items() if isinstance(value, int | float | str)},
        "eps": run.fact("eps"),
        "norm": str(run.fact("norm")),
        "command": str(run.record.get("command") or ""),
        "attack": str(run.record.get("attack") or ""),
        "headline": headline(run, parts),
        "shares": parts,
        "cards": cards(run),
        "curves": _curves(run),
        "samples": None if run.samples is None else pack_samples(run.samples),
        "count": 0 if run.samples is None else len(run.samples),
        "pictures": found,
        "contradictions": contradictions(run.samples),
        "missing": _missing(run, bool(found)),
    }


def _curves(run: ReportedModel) -> dict[str, list[Any]]:
    """Return the columns of the training's metrics, to five digits; none without epochs."""
    names = [name for name in CURVES if any(isinstance(row.get(name), int | float) for row in run.metrics)]
    return {name: [_short(row.get(name)) for row in run.metrics] for name in names} if "epoch" in names else {}


def _short(value: Any) -> Any:
    """Return a number to five digits; None for anything else."""
    return float(f"{value:.5g}") if isinstance(value, float) else value if isinstance(value, int) else None


def _missing(run: ReportedModel, drawn: bool) -> dict[str, str]:
    """Return a sentence for each part that cannot be shown, with the command that makes it."""
    again = f"polycert evaluate MODEL … --samples --out {_record_path(run)}"
    found: dict[str, str] = {}
    if run.samples is None:
        found["samples"] = f"Radii of single samples are not here. This command writes them: {again}"
    if run.samples is not None and not drawn:
        found["pictures"] = (
            f"Pictures of samples are not here. This command writes them, for inputs that are images: {again}"
            if run.examples is None
            else "The inputs are not images, so none are shown."
        )
    if not run.metrics:
        found["curves"] = (
            "The course of the training is not here: give the run folder that polycert train … --run-dir DIR wrote."
        )
    return found


def _record_path(run: ReportedModel) -> Path:
    """Return the path of the record of a run, which need not exist."""
    return run.path if run.record else RunFolder(run.path).record


def _asset(name: str) -> str:
    """Return the text of a file of the page."""
    return (resources.files("polycert.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
