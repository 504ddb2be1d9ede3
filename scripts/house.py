"""Print figures of how easy the code is to survey: files, lines, importers, repeated names, files that a call runs.

    python scripts/house.py [CHECKOUT]

To compare two commits, run it on two checkouts. The script imports `CHECKOUT/src`, and not an installed version.
"""

from __future__ import annotations

import ast
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path

CHECKOUT = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
SOURCE = CHECKOUT / "src"
PACKAGE = SOURCE / "polycert"
sys.path.insert(0, str(SOURCE))


def main() -> None:
    """Print one figure a line."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    print("files", len(trees))
    print("lines", sum(len(path.read_text(encoding="utf-8").splitlines()) for path in trees))
    print("modules in the root", sum(path.parent == PACKAGE for path in trees))
    print("modules with one importer", sum(count == 1 for count in importers(trees).values()))
    classes = Counter(node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    print("class names that occur twice", sum(count > 1 for count in classes.values()))
    for name, call in walks().items():
        files, depth = traced(call)
        print(f"files in {name}", files, "deepest stack", depth)


def importers(trees: dict[Path, ast.Module]) -> Counter[str]:
    """Return how many other modules import each module."""
    names = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in trees}
    found: Counter[str] = Counter()
    for tree in trees.values():
        targets: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                targets |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        found.update(targets & set(names))
    return found


def traced(call: Callable[[], object]) -> tuple[int, int]:
    """Return how many files of the package a call runs, and the depth of its deepest stack in them."""
    files: set[str] = set()
    depth = deepest = 0

    def watch(frame: object, event: str, _: object) -> None:
        nonlocal depth, deepest
        name = frame.f_code.co_filename  # type: ignore[attr-defined]
        if not name.startswith(str(PACKAGE)) or frame.f_code.co_name == "<module>":  # type: ignore[attr-defined]
            return
        if event == "call":
            files.add(name)
            depth += 1
            deepest = max(deepest, depth)
        elif event == "return":
            depth -= 1

    call()  # a first call imports modules and fills caches
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(files), deepest


def walks() -> dict[str, Callable[[], object]]:
    """Return the calls whose files are counted, each on a tiny network."""
    import torch

    import polycert as pc

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )
    net = pc.capture(model, (6,))
    x = torch.rand(8, 6)
    ball = pc.Ball(eps=0.2, low=0.0, high=1.0)
    loss = pc.losses.PER(alpha=0.2, gamma=0.1, at=True)
    folder = Path(tempfile.mkdtemp())
    pc.export(net, folder / "net.onnx")
    inputs = "".join(f"(declare-const X_{k} Real)(assert (>= X_{k} 0.4))(assert (<= X_{k} 0.6))" for k in range(6))
    outputs = "".join(f"(declare-const Y_{k} Real)" for k in range(3)) + "(assert (>= Y_0 9))"
    (folder / "property.vnnlib").write_text(inputs + outputs)

    def verify_property() -> None:
        from polycert.cli import main

        sys.argv = ["polycert", "verify", str(folder / "net.onnx"), str(folder / "property.vnnlib"), "--quiet"]
        with redirect_stdout(StringIO()), suppress(SystemExit):
            main()

    return {
        "certify": lambda: pc.certify(net, x, None, ball),
        "verify": lambda: pc.verify(net, x, None, ball, timeout=20),
        "verify NET PROPERTY": verify_property,
        "a step of PER+at": lambda: loss(net, x, torch.zeros(8, dtype=torch.long), ball).backward(),
        "evaluate": lambda: pc.evaluate(net, x, torch.zeros(8, dtype=torch.long), ball),
    }


if __name__ == "__main__":
    main()
