"""Formulas between dollars become MathML when the pages are built: browsers typeset it without a script."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: object) -> str:
    """Replace what the extension `arithmatex` marked, in a page's HTML."""
    return FORMULA.sub(_typeset, content)


def _typeset(found: re.Match[str]) -> str:
    kind, bracket, formula = found.groups()
    display = "block" if bracket == "[" else "inline"
    return f"<{kind}>{convert(html.unescape(formula), display=display)}</{kind}>"
