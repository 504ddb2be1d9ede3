"""The recipes that have a name: one per task in the wheel, and in a checkout those of the paper's tables.

`polycert/training/recipes/NAME.toml` is a recipe. `paper/recipes/SETTING.toml` is a setting: values of several methods
at once, on top of its `base`; `methods.toml` has what methods take in every setting. A setting makes a recipe
`SETTING-METHOD` of each of its `methods`; one that is named for its epochs, as in `mnist-fc1-linf-30ep`, has in each
name the epochs of that recipe.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from polycert.errors import PolycertError
from polycert.runtime.limits import parse_toml

Values = dict[str, Any]
METHODS_FILE = "methods"
EPOCHS = re.compile(r"-\d+ep(?=-|$)")


def library() -> dict[str, Values]:
    """The values of every recipe that has a name."""
    own = {name: parsed(file.read_text(encoding="utf-8"), name) for name, file in _files(_packaged()).items()}
    paper = _checkout() / "paper" / "recipes"
    return dict(sorted({**own, **(dict(_recipes(_files(paper))) if paper.is_dir() else {})}.items()))


def parsed(text: str, name: str) -> Values:
    """TOML, or a clear error that tells where."""
    try:
        return parse_toml(text)
    except ValueError as error:
        raise PolycertError(f"{name} is not TOML: {error}") from None


def _recipes(files: dict[str, Traversable]) -> Iterator[tuple[str, Values]]:
    """Every method of every setting."""
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
    """A setting on top of its base; what both have for single methods is kept in order."""
    values = parsed(files[name].read_text(encoding="utf-8"), name)
    base = _setting(files, values.pop("base")) if "base" in values else {}
    return {**base, **values, "for": [*base.get("for", []), *values.get("for", [])]}


def _files(folder: Traversable) -> dict[str, Traversable]:
    return {item.name.removesuffix(".toml"): item for item in folder.iterdir() if item.name.endswith(".toml")}


def _packaged() -> Traversable:
    return resources.files("polycert") / "training" / "recipes"


def _checkout() -> Path:
    """The root of the repository, where this file is in one."""
    return Path(__file__).parents[3]
