"""Networks that differ in one number, anywhere, must have different fingerprints: a journal goes by nothing else."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

import polycert as pc
from polycert.graph.fingerprint import fingerprint
from polycert.verification.question import VerificationSettings
from polycert.verification.verify import ask
from tests.helpers.cases import CASES, Case, fresh
from tests.hunt.kind import claimed

FACTORS = (1.001, 0.0, -1.0, 1.5)
Path = tuple[Any, ...]


class Fingerprints:
    """Every kind of op in `tests/helpers/cases.py`: one stored weight or entry of a graph is changed."""

    name = "fingerprints"
    seconds = 60.0

    def generate(self, rng: random.Random) -> Any:
        """A network, and which of its numbers is changed."""
        return {
            "network": rng.choice(CASES).name,
            "way": rng.choice(("weight", "graph", "graph", "graph")),
            "double": rng.random() < 0.3,
            "leaf": rng.randrange(10**6),
            "entry": rng.randrange(10**6),
            "factor": rng.choice(FACTORS),
        }

    def check(self, case: Any) -> str | None:
        """By the weights of the module, where its outputs differ; else by the parts of the graph itself."""
        registered = next(item for item in CASES if item.name == case["network"])
        claimed()
        return _by_weight(registered, case) if case["way"] == "weight" else _by_graph(registered, case)

    def shrink(self, case: Any) -> Iterator[Any]:
        """The first entries of the tensor."""
        if case["entry"]:
            yield {**case, "entry": 0}


def _by_weight(registered: Case, case: Any) -> str | None:
    module, changed = fresh(registered), fresh(registered)
    stored = [name for name, held in changed.state_dict().items() if held.is_floating_point() and held.numel()]
    if not stored:
        return None
    name = stored[case["leaf"] % len(stored)]
    flat = changed.state_dict()[name].view(-1)
    k = case["entry"] % len(flat)
    flat[k] = flat[k] * case["factor"] if case["factor"] else flat[k] + 1e-3
    points = torch.rand(20, *registered.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4 - 2
    with torch.no_grad():
        if torch.equal(module(points), changed(points)):
            return None
    first, second = (_asked(net, points[:2]) for net in (module, changed))
    return (
        f"networks that differ in {name}[{k}], and in their outputs, have one fingerprint" if first == second else None
    )


def _asked(net: nn.Module, x: Tensor) -> str:
    label = torch.zeros(len(x), dtype=torch.long)
    return ask(pc.capture(net, tuple(x.shape[1:])), x, label, pc.Ball(eps=0.1), VerificationSettings()).fingerprint


@cache
def _graph(name: str, double: bool) -> Any:
    registered = next(item for item in CASES if item.name == name)
    net = pc.capture(fresh(registered, torch.float64 if double else torch.float32), registered.shape)
    with torch.no_grad():
        return net.bind()


def _by_graph(registered: Case, case: Any) -> str | None:
    graph = _graph(registered.name, case["double"])
    nodes = [(node.op, node.inputs, node.shape) for node in graph.nodes]
    places = list(_leaves(nodes, ()))
    path = places[case["leaf"] % len(places)]
    parts = _changed(nodes, path, case["entry"])
    made = [
        replace(node, op=op, inputs=inputs, shape=shape)
        for node, (op, inputs, shape) in zip(graph.nodes, parts, strict=True)
    ]
    other = copy.copy(graph)
    object.__setattr__(other, "nodes", type(graph.nodes)(made))
    if fingerprint(graph) != fingerprint(other):
        return None
    return f"graphs that differ at {'.'.join(map(str, path))} have one fingerprint"


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """What a value is made of, by name or place."""
    if is_dataclass(value) and not isinstance(value, type):
        return [(item.name, getattr(value, item.name)) for item in fields(value)]
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (tuple, list)):
        return list(enumerate(value))
    if isinstance(value, partial):
        return [("args", value.args), ("keywords", value.keywords)]
    return []


def _leaves(value: Any, path: Path) -> Iterator[Path]:
    """Paths to all numbers and tensors."""
    if isinstance(value, Tensor):
        yield from [path] if value.numel() else []
    elif isinstance(value, (bool, int, float, str)):
        yield path
    else:
        for name, part in _parts(value):
            yield from _leaves(part, (*path, name))


def _changed(value: Any, path: Path, entry: int) -> Any:
    """A copy with another number at the end of a path."""
    if not path:
        return _other(value, entry)
    name, rest = path[0], path[1:]
    part = _changed(dict(_parts(value))[name], rest, entry)
    if isinstance(value, partial):
        args, keywords = (part if name == side else getattr(value, side) for side in ("args", "keywords"))
        return partial(value.func, *args, **keywords)
    if isinstance(value, dict):
        return {**value, name: part}
    if isinstance(value, (tuple, list)):
        items = [part if k == name else item for k, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    made = copy.copy(value)
    object.__setattr__(made, name, part)
    return made


def _other(value: Any, entry: int) -> Any:
    """The nearest other value of its kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return math.nextafter(value, math.inf) if math.isfinite(value) else 0.0
    if isinstance(value, str):
        return value + "'"
    made = value.detach().clone(memory_format=torch.contiguous_format)
    flat = made.view(-1)
    k = entry % len(flat)
    if made.dtype == torch.bool:
        flat[k] = ~flat[k]
    elif made.is_floating_point():
        flat[k] = torch.nextafter(flat[k], torch.full_like(flat[k], math.inf))
    else:
        flat[k] += 1
    return made


KINDS = (Fingerprints(),)
