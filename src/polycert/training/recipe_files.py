"""Recipes as TOML: read, inherit, override, write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polycert.errors import PolycertError
from polycert.runtime.limits import RECIPE, parse_toml, read_text
from polycert.training.recipe import Recipe, make_recipe
from polycert.training.recipe_library import Values, library, parsed


def read_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a file, or one that has a name, with `key=value` overrides.

    A file may begin with `base = "NAME"`: another recipe whose values it takes over where it gives none itself.
    """
    return make_recipe(with_overrides(_resolve(name), overrides))


def with_overrides(values: Values, overrides: Sequence[str]) -> Values:
    """Values changed by `key=value`; a dotted key such as `eps.last` reaches into a table."""
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key.strip():
            raise PolycertError(f"--set needs key=value, got {override!r}")
        values = _put(values, key.strip().split("."), _value(text.strip()))
    return values


def to_toml(values: Values) -> str:
    """A flat recipe as TOML; schedules as inline tables."""
    return "".join(f"{key} = {_literal(value)}\n" for key, value in values.items())


def _resolve(name: str, seen: tuple[str, ...] = ()) -> Values:
    if name in seen:
        raise PolycertError(f"recipe {name!r} is its own base: {' -> '.join((*seen, name))}")
    path = Path(name)
    if path.suffix != ".toml":
        known = library()
        if name not in known:
            raise PolycertError(f"there is no recipe {name!r}: give a .toml file, or a name that train --list shows")
        return known[name]
    if not path.is_file():
        raise PolycertError(f"there is no recipe file {name!r}")
    values = parsed(read_text(path, RECIPE), path.name)
    base = values.pop("base", None)
    if base is None:
        return values
    beside = path.parent / str(base)
    return {**_resolve(str(beside) if beside.is_file() else str(base), (*seen, name)), **values}


def _put(values: Values, keys: list[str], value: Any) -> Values:
    first, *rest = keys
    if not rest:
        return {**values, first: value}
    inner = values.get(first)
    if not isinstance(inner, dict):
        raise PolycertError(f"--set {'.'.join(keys)}: {first!r} is no table; set it whole, as {first}={{kind=…}}")
    return {**values, first: _put(inner, rest, value)}


def _value(text: str) -> Any:
    """As in TOML; what is none is text."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_literal(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)  # JSON has no word for infinity
