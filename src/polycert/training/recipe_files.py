"""Recipes as TOML files, with bases and overrides, and the library of recipes that have a name.

`polycert/training/recipes/NAME.toml` is a recipe, which comes with the wheel. `paper/recipes/SETTING.toml`, in a
checkout, is a setting. It holds the values of several methods, on top of those of its `base`; `methods.toml` holds the
values of methods in every setting. A setting makes a recipe `SETTING-METHOD` of each of its `methods`. If the name of
a setting gives a number of epochs, as `mnist-fc1-linf-30ep` does, the recipe's name gives the recipe's own number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from polycert.errors import PolycertError
from polycert.runtime.limits import RECIPE, parse_toml, read_text
from polycert.training.recipe import Recipe, make_recipe

Values = dict[str, Any]
METHODS_FILE = "methods"
EPOCHS = re.compile(r"-\d+ep(?=-|$)")


def read_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return a recipe from a file or the library, with `key=value` overrides.

    A file may name another recipe by `base = "NAME"`, whose values hold for all keys that the file does not give.
    """
    return make_recipe(with_overrides(_resolve(name), overrides))


def with_overrides(values: Values, overrides: Sequence[str]) -> Values:
    """Return values changed by `key=value`; a dotted key such as `eps.last` reaches into a table."""
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key.strip():
            raise PolycertError(f"--set needs key=value, got {override!r}")
        values = _put(values, key.strip().split("."), _value(text.strip()))
    return values


def to_toml(values: Values) -> str:
    """Return a recipe as TOML, with schedules as inline tables."""
    return "".join(f"{key} = {_literal(value)}\n" for key, value in values.items())


def _resolve(name: str, seen: tuple[str, ...] = ()) -> Values:
    """Return the values of a recipe on top of those of its bases."""
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
    """Return the values with one changed, in nested tables if there are several keys."""
    first, *rest = keys
    if not rest:
        return {**values, first: value}
    inner = values.get(first)
    if not isinstance(inner, dict):
        raise PolycertError(f"--set {'.'.join(keys)}: {first!r} is no table; set it whole, as {first}={{kind=…}}")
    return {**values, first: _put(inner, rest, value)}


def _value(text: str) -> Any:
    """Return the value that TOML gives, or the text itself if it is not TOML."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


def _literal(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_literal(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)  # JSON has no word for infinity


def library() -> dict[str, Values]:
    """Return the values of every recipe that has a name."""
    own = {name: parsed(file.read_text(encoding="utf-8"), name) for name, file in _files(_packaged()).items()}
    paper = _checkout() / "paper" / "recipes"
    return dict(sorted({**own, **(dict(_recipes(_files(paper))) if paper.is_dir() else {})}.items()))


def parsed(text: str, name: str) -> Values:
    """Return the values of a TOML text; raises `PolycertError`, which names the file."""
    try:
        return parse_toml(text)
    except ValueError as error:
        raise PolycertError(f"{name} is not TOML: {error}") from None


def _recipes(files: dict[str, Traversable]) -> Iterator[tuple[str, Values]]:
    """Yield the name and the values of every method of every setting."""
    common = parsed(files.pop(METHODS_FILE).read_text(encoding="utf-8"), METHODS_FILE)["for"]
    for name in files:
        setting = _setting(files, name)
        methods, layers = setting.pop("methods"), [*common, *setting.pop("for")]
        for method in methods:
            own = [layer for layer in layers if method in layer["methods"]]
            values = {key: value for layer in (setting, *own) for key, value in layer.items() if key != "methods"}
            named = EPOCHS.sub(f"-{values['epochs']}ep", name)
            yield f"{named}-{method}", {**values, "method": method}


def _setting(files: dict[str, Traversable], name: str) -> Values:
    """Return a setting on top of its base; the values for single methods follow those of the base."""
    values = parsed(files[name].read_text(encoding="utf-8"), name)
    base = _setting(files, values.pop("base")) if "base" in values else {}
    return {**base, **values, "for": [*base.get("for", []), *values.get("for", [])]}


def _files(folder: Traversable) -> dict[str, Traversable]:
    """Return the TOML files of a folder by name, without the ending."""
    return {item.name.removesuffix(".toml"): item for item in folder.iterdir() if item.name.endswith(".toml")}


def _packaged() -> Traversable:
    return resources.files("polycert") / "training" / "recipes"


def _checkout() -> Path:
    """Return the root of the repository, if this file is in one."""
    return Path(__file__).parents[3]
