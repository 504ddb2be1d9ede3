"""The paper's claims as a part of the report's page."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from polycert.report.page import PagePart
from polycert.report.runs import ReportedModel
from polycert_paper.claims import CLAIMS


def claims_part(runs: Sequence[ReportedModel]) -> PagePart:
    """A table with a line for each claim, judged by the records of these runs."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    claims = [(claim, claim.judge(runs)) for claim in CLAIMS]
    content = environment.from_string(_asset("claims.html")).render(claims=claims, commands=_commands)
    return PagePart("claims", "The paper’s claims", Markup(content), _asset("claims.css"))


def _commands(text: str) -> Markup:
    """Text with what stands between backticks as code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if k % 2 else part for k, part in enumerate(parts))


def _asset(name: str) -> str:
    return (resources.files("polycert_paper") / name).read_text(encoding="utf-8")
