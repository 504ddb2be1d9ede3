"""S-expressions, read without recursion: nesting in a file cannot exhaust the stack."""

from __future__ import annotations

import re
from collections.abc import Iterator

from polycert.errors import PolycertError
from polycert.runtime.limits import DEEPEST

Expression = str | list["Expression"]

_TOKEN = re.compile(r";[^\n]*|[()]|[^\s();]+")


def parse(text: str) -> list[Expression]:
    """All expressions of a text, one after the other: a word, or a list of expressions."""
    top: list[Expression] = []
    stack = [top]
    for word in _words(text):
        if word == "(":
            inner: list[Expression] = []
            stack[-1].append(inner)
            stack.append(inner)
            if len(stack) > DEEPEST:
                raise PolycertError(f"parentheses are nested deeper than {DEEPEST}")
        elif word == ")":
            stack.pop()
            if not stack:
                raise PolycertError("a parenthesis is closed that was never opened")
        else:
            stack[-1].append(word)
    if len(stack) > 1:
        raise PolycertError("a parenthesis is never closed: the file is cut off")
    return top


def _words(text: str) -> Iterator[str]:
    for match in _TOKEN.finditer(text):
        if not match[0].startswith(";"):
            yield match[0]
