"""ONNX files against onnxruntime: what is read, bounded and decided must be what onnxruntime computes."""

from __future__ import annotations

import copy
import json
import math
import random
import resource
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

import polycert as pc
from polycert.graph.onnx.program import OPSETS
from polycert.verification.vnnlib import decide
from polycert.verification.vnnlib.reader import parse_property
from tests.helpers import onnx_files
from tests.hunt.kind import claimed, note
from tests.hunt.onnx_files import DOUBLE, DTYPES, FLOAT, INT32, INT64, File, array_of, description_of, model_of, tensor
from tests.hunt.onnx_judge import Judge
from tests.hunt.onnx_making import FAR, all_ops, made, near_shape

SCALES = (1e-3, 0.1, 1.0, 10.0, 300.0, 1e4, 1e6)
METHODS = ("ibp", "crown", "forward", "crown-ibp")
TIMEOUT = 1.0  # seconds for a property
MEMORY = 2**29  # bytes that reading a file may take
TRIED = 12  # points of a box


class OnnxMutants:
    """Files made at random, or the tests' own, with some of their parts changed."""

    name = "onnx"
    seconds = 20.0

    def generate(self, rng: random.Random) -> Any:
        """A file, and where it is looked at."""
        if rng.random() < 0.75:
            file = made(rng)
            changes = rng.choice((0, 0, 0, 1, 1, 2))
        else:
            file = copy.deepcopy(rng.choice(bases()))
            changes = rng.choice((1, 1, 2, 3))
        for _ in range(changes):
            rng.choice(CHANGES)(file, rng)
        return {
            "file": file,
            "seed": rng.randrange(2**31),
            "scale": rng.choice((1e-3, 0.1, 1.0, 1.0, 1.0, 30.0, 1e3, 1e5)),
            "eps": rng.choice((1e-4, 0.1, 0.5, 1.0)),
            "method": rng.choice(METHODS),
            "property": rng.random() < 0.15,
        }

    def check(self, case: Any) -> str | None:
        """The graph at points of many sizes, bounds over a box, and now and then a property of it."""
        file, rng = case["file"], np.random.default_rng(case["seed"])
        try:
            content = model_of(file)
        except (ValueError, TypeError) as error:  # no protobuf holds it
            raise pc.PolycertError(str(error)) from None
        before = _most_memory(anew=True)
        try:
            net = _read(content)
        except pc.PolycertError:
            if _most_memory() < before + MEMORY:
                raise
        if _most_memory() >= before + MEMORY:
            return f"a file of {len(content)} bytes takes more than {MEMORY} bytes while it is read"
        try:
            judge = Judge(file)
        except Exception:  # of onnxruntime's own types
            note("read, refused by onnxruntime")
            return None
        claimed()
        graph = net.bind(torch.float64)
        loose = bool(graph.computed) or bool(net.bind().computed)
        return (
            _compared(net, judge, rng, loose)
            or _bounded(net, judge, rng, case, loose)
            or (_decided(net, judge, rng, case, loose) if case["property"] else None)
        )

    def shrink(self, case: Any) -> Iterator[Any]:
        """Fewer nodes and attributes, simpler numbers, a simpler question."""
        if case["property"]:
            yield {**case, "property": False}
        for name, plain in (("scale", 1.0), ("eps", 0.1), ("method", "ibp")):
            if case[name] != plain:
                yield {**case, name: plain}
        for smaller in _smaller(case["file"]):
            yield {**case, "file": smaller}


def _read(content: bytes) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        path.write_bytes(content)
        try:
            return pc.load(path)
        except pc.PolycertError as error:
            if "does not reproduce" in str(error):
                note("misread, noticed when loaded")
            raise


def _most_memory(*, anew: bool = False) -> int:
    """The most bytes that this process has had at once, counted `anew` from now on where the system allows it."""
    if anew:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _compared(net: Any, judge: Judge, rng: np.random.Generator, loose: bool) -> str | None:
    for x in _points(net.input_shape, rng):
        for dtype in (torch.float64, torch.float32):
            found, size = _ours(net, x, dtype)
            single = dtype == torch.float32
            seen = judge(x, loose or single, size)
            if not seen.sure or (single and not np.isfinite(found).all()):
                continue
            if found.shape != seen.output.shape:
                return f"an output of {found.size} numbers is read, onnxruntime gives {seen.output.size}"
            off = np.abs(found - seen.output)
            if not (off <= seen.allowed).all():
                k = int(np.nan_to_num(off, nan=np.inf).argmax())
                return (
                    f"output {k} is computed as {found[k]} in {dtype}, onnxruntime gives {seen.output[k]} "
                    f"(float64: {judge.exact}, rounding {seen.allowed:.3g}) at an input of size {np.abs(x).max():.3g}"
                )
    return None


def _ours(net: Any, x: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, float]:
    """The output `[entries]`, and the largest value on the way, which may be larger than on onnxruntime's way."""
    with torch.no_grad():
        values = net.bind(dtype).values(torch.from_numpy(x)[None].to(dtype))
    sizes = [float(value.abs().max()) for value in values if bool(torch.isfinite(value).all())]
    return values[-1].double().numpy().reshape(-1), max(sizes, default=0.0)


def _points(shape: tuple[int, ...], rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Inputs in float32 of many sizes and signs."""
    yield np.zeros(shape)
    for scale in SCALES:
        noise = rng.uniform(0, scale, shape)
        for sign in (rng.choice((-1, 1), shape), 1, -1):
            yield np.float32(sign * noise).astype(float)
        single = np.zeros(shape)
        single.flat[rng.integers(single.size)] = rng.choice((-scale, scale))
        yield np.float32(single).astype(float)


def _box(net: Any, rng: np.random.Generator, case: Any) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """The ends of a box, and points in it that float32 holds."""
    centre = np.float32(rng.normal(0, case["scale"], net.input_shape)).astype(float)
    eps = float(np.float32(case["scale"] * case["eps"]))
    low, high = np.float32(centre - eps).astype(float), np.float32(centre + eps).astype(float)
    points = [low, high, centre]
    for k in range(TRIED):
        share = rng.uniform(0, 1, net.input_shape)
        points.append(np.float32(low + (np.round(share) if k % 2 else share) * (high - low)).astype(float))
    return low, high, [np.clip(point, low, high) for point in points]


def _bounded(net: Any, judge: Judge, rng: np.random.Generator, case: Any, loose: bool) -> str | None:
    low, high, points = _box(net, rng, case)
    rigorous = not net.bind().computed
    centre, width = (torch.from_numpy(part)[None] for part in ((low + high) / 2, (high - low) / 2))
    eps = float(width.max()) * (1 + 1e-6)
    try:
        found = pc.bounds(net, centre, pc.Ball(eps=eps), method=case["method"], rigorous=rigorous)
    except pc.PolycertError:
        note("bounds refused")
        return None
    lower, upper = (side.double().numpy().reshape(-1) for side in (found.lower, found.upper))
    for x in points:
        seen = judge(x, loose)
        if not seen.sure:
            continue
        off = np.maximum(lower - seen.output, seen.output - upper)
        if not (off <= seen.allowed).all():
            k = int(np.nan_to_num(off, nan=np.inf).argmax())
            return (
                f"{case['method']} bounds output {k} by [{lower[k]}, {upper[k]}], onnxruntime gives "
                f"{seen.output[k]} in the ball (float64: {judge.exact}, rounding {seen.allowed:.3g})"
            )
    return None


def _decided(net: Any, judge: Judge, rng: np.random.Generator, case: Any, loose: bool) -> str | None:
    """A property that some point of the box fulfils by far, or none that is known."""
    low, high, points = _box(net, rng, case)
    seen = [judge(x, loose) for x in points]
    if not all(s.sure for s in seen):
        return None
    k, sign = int(rng.integers(seen[0].output.size)), float(rng.choice((-1.0, 1.0)))
    best = max(sign * float(s.output[k]) - s.allowed for s in seen)
    allowed = max(s.allowed for s in seen)
    threshold = best + float(rng.choice((-20.0, -20.0, 1e3))) * allowed
    text = _text(low, high, seen[0].output.size, f"(assert (>= (* {sign:.1f} Y_{k}) {threshold:.17g}))")
    answer = decide(net, parse_property(text), timeout=TIMEOUT)
    note(answer.status)
    if answer.status == "unsat" and best > threshold + allowed:
        return (
            f"unsat for an output {k} of at least {threshold!r} times {sign:.0f}; onnxruntime gives {best!r} in the box"
        )
    if answer.status == "sat":
        x = np.asarray(answer.witness.x, float).reshape(net.input_shape)
        if (x < low).any() or (x > high).any():
            return "sat, and its witness is not in the box"
        # `sat` is a claim about the file as onnxruntime runs it, with the rounding of the file's own type.
        there = judge(x, loose or DTYPES[case["file"]["input"]["type"]] == np.float32)
        if there.sure and sign * there.output[k] < threshold - 20 * there.allowed - 1e-6 * abs(threshold):
            return f"sat, and at its witness onnxruntime gives {there.output[k]}, not {threshold!r} times {sign:.0f}"
    return None


def _text(low: np.ndarray, high: np.ndarray, outputs: int, more: str) -> str:
    ends = list(zip(low.reshape(-1).tolist(), high.reshape(-1).tolist(), strict=True))
    names = [f"(declare-const X_{k} Real)" for k in range(len(ends))]
    names += [f"(declare-const Y_{k} Real)" for k in range(outputs)]
    box = [f"(assert (>= X_{k} {a:.17g}))(assert (<= X_{k} {b:.17g}))" for k, (a, b) in enumerate(ends)]
    return "\n".join([*names, *box, more])


# --- files to start from -------------------------------------------------------------------------------------------


@cache
def bases() -> tuple[File, ...]:
    """The tests' own small files."""
    return tuple(description_of(file.model().SerializeToString()) for file in onnx_files.FILES)


# --- changes -------------------------------------------------------------------------------------------------------


def _node(file: File, rng: random.Random) -> dict[str, Any]:
    return rng.choice(file["nodes"]) if file["nodes"] else {"op": "", "in": [], "out": [], "attributes": {}}


def _change_attribute(file: File, rng: random.Random) -> None:
    holders = [node for node in file["nodes"] if node["attributes"]]
    if not holders:
        return _add_attribute(file, rng)
    attributes = rng.choice(holders)["attributes"]
    name = rng.choice(sorted(attributes))
    kind, value = attributes[name]
    if rng.random() < 0.25:
        del attributes[name]
    elif kind == "i":
        attributes[name] = [kind, _whole(value, rng)]
    elif kind == "f":
        attributes[name] = [kind, _real(value, rng)]
    elif kind in ("ints", "floats") and value:
        k = rng.randrange(len(value))
        way = rng.random()
        new = _whole(value[k], rng) if kind == "ints" else _real(value[k], rng)
        middle = [new] if way < 0.6 else [] if way < 0.8 else [value[k], new]
        attributes[name] = [kind, value[:k] + middle + value[k + 1 :]]
    elif kind == "t":
        _disturb(value, rng)
    elif kind == "s":
        words = (
            "SAME_UPPER",
            "SAME_LOWER",
            "VALID",
            "NOTSET",
            "constant",
            "reflect",
            "edge",
            "tanh",
            "none",
            "reverse",
        )
        attributes[name] = [kind, rng.choice(words)]
    return None


def _whole(value: int, rng: random.Random) -> int:
    near = (value + 1, value - 1, -value, 0, 1, 2, -1, 2 * value)
    return max(min(rng.choice((*near, *near, 2**31, -(2**63), 2**63 - 1)), 2**63 - 1), -(2**63))


def _real(value: float, rng: random.Random) -> float:
    new = rng.choice((-value, 0.0, 1.0, value * 2, value / 3, rng.gauss(0, 1), rng.choice(FAR)))
    return new if abs(new) < 3.4e38 else 1.0


def _add_attribute(file: File, rng: random.Random) -> None:
    node = _node(file, rng)
    try:
        schema = onnx.defs.get_schema(node["op"], rng.choice((file["opsets"][0][1], rng.choice(OPSETS))))
    except onnx.defs.SchemaError:
        return
    kinds = {"INT": ["i", rng.choice((0, 1, 1, -1, 2))], "FLOAT": ["f", rng.choice((0.5, 2.0, -1.0, 0.0))]}
    kinds["INTS"] = ["ints", [rng.choice((0, 1, 1, 2, -1)) for _ in range(rng.randint(1, 4))]]
    kinds["STRING"] = ["s", rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "tanh", "edge", "reverse"))]
    fitting = sorted(name for name, a in schema.attributes.items() if a.type.name in kinds)
    if fitting:
        name = rng.choice(fitting)
        node["attributes"][name] = kinds[schema.attributes[name].type.name]


def _rewire(file: File, rng: random.Random) -> None:
    node = _node(file, rng)
    names = ["x", *file["tensors"], *(name for other in file["nodes"] for name in other["out"])]
    way = rng.random()
    if not node["in"]:
        return
    k = rng.randrange(len(node["in"]))
    if way < 0.25:
        rng.shuffle(node["in"])
    elif way < 0.45:
        node["in"] = node["in"][:-1]
    elif way < 0.6:
        node["in"][k] = ""
    elif way < 0.7:
        node["in"].append(rng.choice(names))
    else:
        node["in"][k] = rng.choice(names)


def _change_op(file: File, rng: random.Random) -> None:
    _node(file, rng)["op"] = rng.choice(all_ops())


def _change_tensor(file: File, rng: random.Random) -> None:
    if not file["tensors"]:
        return
    name = rng.choice(list(file["tensors"]))
    held = file["tensors"][name]
    way = rng.random()
    if way < 0.4:
        _disturb(held, rng)
    elif way < 0.8 and held["values"]:
        file["tensors"][name] = _reshaped(held, rng)
    elif held["type"] in (FLOAT, DOUBLE):
        held["type"] = DOUBLE if held["type"] == FLOAT else FLOAT
    elif held["type"] in (INT32, INT64):
        held["type"] = INT64 if held["type"] == INT32 else INT32


def _reshaped(held: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Transposed, cut, with axes more or fewer, repeated."""
    array = array_of(held)
    ways = [array.T, array[None], array.reshape(-1), array[..., None], array.reshape(-1)[0]]
    ways.append(np.resize(array, near_shape(rng, array.shape) or (1,)))
    ways.append(np.resize(array, array.shape[::-1]))
    if array.ndim:
        ways += [array[..., :1], array[:1], array[:0]]
    return tensor(rng.choice(ways))


def _disturb(held: dict[str, Any], rng: random.Random) -> None:
    if not held["values"]:
        return
    k = rng.randrange(len(held["values"]))
    value = held["values"][k]
    if held["type"] in (FLOAT, DOUBLE):
        value = float(np.float32(_real(value, rng) * rng.choice((1, 1, 1e-40, 1e10))))
        held["values"][k] = value if math.isfinite(value) else 1.0
    elif held["type"] in (INT32, INT64):
        limit = 2**31 if held["type"] == INT32 else 2**63
        held["values"][k] = max(min(_whole(value, rng), limit - 1), -limit)
    else:
        held["values"][k] = not value


def _change_opset(file: File, rng: random.Random) -> None:
    k = rng.randrange(len(file["opsets"]))
    if rng.random() < 0.15:
        file["opsets"].insert(k, ["", rng.choice(OPSETS)])
    else:
        file["opsets"][k][1] = rng.choice(OPSETS)


def _change_input(file: File, rng: random.Random) -> None:
    shape = file["input"]["shape"]
    way = rng.random()
    if way < 0.2:
        file["as_inputs"] = not file.get("as_inputs")
    elif way < 0.3:
        file["input"]["type"] = DOUBLE if file["input"]["type"] == FLOAT else FLOAT
    elif way < 0.5 and shape:
        file["input"]["shape"] = shape[1:] if len(shape) > 1 else [1, *shape]
    elif shape:
        shape[rng.randrange(len(shape))] = rng.choice((1, 1, 2, 3, "N", 0))


def _change_output(file: File, rng: random.Random) -> None:
    file["output"] = rng.choice([name for node in file["nodes"] for name in node["out"] if name] or ["x"])


def _add_dead(file: File, rng: random.Random) -> None:
    """A node that the output does not need, perhaps of a huge result."""
    if "dead sizes" in file["tensors"]:
        return
    size = rng.choice((2, 10**4, 2**28))
    file["tensors"]["dead sizes"] = tensor(np.array([size, *(1 for _ in file["input"]["shape"][1:])], np.int64))
    op = rng.choice(("ConstantOfShape", "Expand", "Tile"))
    inputs = ["dead sizes"] if op == "ConstantOfShape" else ["x", "dead sizes"]
    file["nodes"].append({"op": op, "in": inputs, "out": ["dead"], "attributes": {}})


CHANGES = (
    _add_dead,
    _change_attribute,
    _change_attribute,
    _change_attribute,
    _add_attribute,
    _add_attribute,
    _rewire,
    _change_op,
    _change_tensor,
    _change_tensor,
    _change_tensor,
    _change_opset,
    _change_input,
    _change_output,
)


# --- smaller files -------------------------------------------------------------------------------------------------


def _smaller(file: File) -> Iterator[File]:
    """Files with less in them."""
    for node in reversed(file["nodes"]):
        yield _tidy({**file, "output": node["out"][0]})
    for k, node in enumerate(file["nodes"]):
        others = file["nodes"][:k] + file["nodes"][k + 1 :]
        for name in filter(None, node["in"]):
            yield _tidy(_renamed({**file, "nodes": others}, node["out"][0], name))
        yield {**file, "nodes": others}
    for k, node in enumerate(file["nodes"]):
        for name in node["attributes"]:
            kept = {key: held for key, held in node["attributes"].items() if key != name}
            yield _with_node(file, k, {**node, "attributes": kept})
        if len(node["in"]) > 1:
            yield _with_node(file, k, {**node, "in": node["in"][:-1]})
    for name, held in file["tensors"].items():
        for values in _simpler(held):
            yield {**file, "tensors": {**file["tensors"], name: {**held, "values": values}}}
    if file["as_inputs"]:
        yield {**file, "as_inputs": False}
    if file["input"]["type"] == DOUBLE:
        yield {**file, "input": {**file["input"], "type": FLOAT}}


def _simpler(held: dict[str, Any]) -> Iterator[list[Any]]:
    """Plainer values, strictly fewer digits in each step."""
    values = held["values"]
    if held["type"] not in (FLOAT, DOUBLE):
        return
    for new in ([0.0] * len(values), [1.0] * len(values), [float(round(v)) for v in values]):
        if len(json.dumps(new)) < len(json.dumps(values)):
            yield new
    for k, value in enumerate(values):
        if len(repr(value)) > 4:
            yield [*values[:k], float(f"{value:.1g}"), *values[k + 1 :]]


def _with_node(file: File, k: int, node: dict[str, Any]) -> File:
    return _tidy({**file, "nodes": [*file["nodes"][:k], node, *file["nodes"][k + 1 :]]})


def _renamed(file: File, old: str, new: str) -> File:
    nodes = [{**node, "in": [new if name == old else name for name in node["in"]]} for node in file["nodes"]]
    return {**file, "nodes": nodes, "output": new if file["output"] == old else file["output"]}


def _tidy(file: File) -> File:
    """Without nodes and tensors that the output does not need."""
    wanted = {file["output"]}
    nodes = []
    for node in reversed(file["nodes"]):
        if wanted.intersection(node["out"]):
            nodes.insert(0, node)
            wanted.update(node["in"])
    return {**file, "nodes": nodes, "tensors": {n: held for n, held in file["tensors"].items() if n in wanted}}


KINDS = (OnnxMutants(),)
