"""The lists of ops in the documentation are the registry's."""

from __future__ import annotations

import pytest

from tests.docs.op_lists import DOCS, lists, parts


@pytest.mark.parametrize("page", lists())
def test_the_lists_are_those_of_the_registry(page: str) -> None:
    """`python -m tests.docs.op_lists` writes them."""
    assert parts((DOCS / page).read_text(encoding="utf-8"))[1] == lists()[page]
