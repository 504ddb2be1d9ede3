"""VNN-LIB texts: what is read holds the exact set that a text describes, and what passes for a witness lies in it."""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from polycert.verification.vnnlib.property import Box, Clause, Property
from polycert.verification.vnnlib.reader import parse_property
from tests.hunt.kind import claimed

Tree = Any  # a word, or a list of trees, as JSON holds them
Values = dict[str, Fraction]

VERSIONS = (1, 1, 2) if importlib.util.find_spec("vnnlib") else (1,)
POINTS = 60
COMPARED: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "=": lambda a, b: a == b,
}
PLAIN = ("0", "1", "-1", "2", "0.5", "-0.5", "0.1", "-0.1", "0.3", "1e-3", "-0", "1.", ".5", "+3", "1E2", "0.7")
NASTY = (
    "1e-300",
    "-1e-320",
    "1e300",
    "123456789.123456789",
    "0.1000000000000000055511151231257827",
    "0.333333333333333333333333333333333333",
    "-9007199254740993",
    "16777217",
    "3.4028235e38",
    "1e-46",
    "00012.50",
    "-.25e-2",
)


class Properties:
    """Random texts of both versions, on points within, outside and on the border, in exact fractions.

    Args:
        name: of the kind.
        wrong: what is wrong with the reading of a case at a point; None if nothing is.
    """

    seconds = 10.0

    def __init__(self, name: str, wrong: Callable[[Any, Property, Values], str | None]) -> None:
        self.name, self.wrong = name, wrong

    def generate(self, rng: random.Random) -> Any:
        """The text as a tree, how it is written, and the seed of the points."""
        inputs, outputs = rng.randint(1, 3), rng.randint(1, 3)
        return {
            "version": rng.choice(VERSIONS),
            "inputs": inputs,
            "outputs": outputs,
            "assertions": _assertions(rng, inputs, outputs),
            "layout": rng.randrange(2**31),
            "seed": rng.randrange(2**31),
        }

    def check(self, case: Any) -> str | None:
        """One inclusion, at random points and at points on the border of some comparison."""
        read = parse_property(text_of(case))
        if (read.inputs, read.outputs) != (case["inputs"], case["outputs"]):
            return f"{read.inputs} inputs and {read.outputs} outputs are read, the text declares others"
        rng = random.Random(case["seed"])
        for point in _points(case, rng):
            wrong = self.wrong(case, read, point)
            if wrong is not None:
                return wrong
        return None

    def shrink(self, case: Any) -> Iterator[Any]:
        """Fewer assertions, smaller ones, simpler numbers."""
        found = case["assertions"]
        for k in range(len(found)):
            yield {**case, "assertions": found[:k] + found[k + 1 :]}
        for k, tree in enumerate(found):
            for smaller in _smaller(tree):
                yield {**case, "assertions": [*found[:k], smaller, *found[k + 1 :]]}


def missed(case: Any, read: Property, point: Values) -> str | None:
    """An unsafe point must be in some box and clause."""
    if not all(_true(tree, point) for tree in case["assertions"]):
        return None
    if any(_covers(box, point) for box in read.boxes):
        claimed()
        return None
    return f"the text calls a point unsafe, and no box and clause that were read hold it: {_shown(point)}"


def invented(case: Any, read: Property, point: Values) -> str | None:
    """A point in doubles that passes for a witness must be unsafe, unless its box holds no double at all."""
    near = {name: Fraction(_double(value)) for name, value in point.items()}
    x = np.array([float(near[f"X_{k}"]) for k in range(read.inputs)])
    y = np.array([float(near[f"Y_{k}"]) for k in range(read.outputs)])
    if not any(box.holds(x, y) and _holds_doubles(box) for box in read.boxes):
        return None
    claimed()
    if all(_true(tree, near) for tree in case["assertions"]):
        return None
    return f"a point passes for a witness, and the text calls it safe: {_shown(near)}"


def _holds_doubles(box: Box) -> bool:
    """Whether no side is one decimal that is no double: such a side is read as the nearest one."""
    return not ((box.inner[0] == box.inner[1]) & (box.lower < box.upper)).any()


def _covers(box: Box, point: Values) -> bool:
    sides = zip(box.lower.tolist(), box.upper.tolist(), strict=True)
    inside = all(Fraction(low) <= point[f"X_{k}"] <= Fraction(high) for k, (low, high) in enumerate(sides))
    return inside and any(_fulfils(clause, point) for clause in box.clauses)


def _fulfils(clause: Clause, point: Values) -> bool:
    for row, constant, strict in zip(clause.rows.tolist(), clause.constants.tolist(), clause.strict, strict=True):
        value = sum((Fraction(a) * point[f"Y_{k}"] for k, a in enumerate(row)), Fraction(constant))
        if value > 0 or (strict and value == 0):
            return False
    return True


# --- what a text means ---------------------------------------------------------------------------------------------


def _true(tree: Tree, point: Values) -> bool:
    head, parts = tree[0], tree[1:]
    if head == "and":
        return all(_true(part, point) for part in parts)
    if head == "or":
        return any(_true(part, point) for part in parts)
    return COMPARED[head](_value(parts[0], point), _value(parts[1], point))


def _value(tree: Tree, point: Values) -> Fraction:
    if isinstance(tree, str):
        return point[tree] if tree in point else _decimal(tree)
    parts = [_value(part, point) for part in tree[1:]]
    if tree[0] == "*":
        return math.prod(parts, start=Fraction(1))
    if tree[0] == "+":
        return sum(parts, Fraction(0))
    return -parts[0] if len(parts) == 1 else parts[0] - sum(parts[1:])


def _decimal(word: str) -> Fraction:
    """Digit by digit, so that nothing is shared with the reader."""
    digits, _, exponent = word.lower().partition("e")
    whole, _, rest = digits.lstrip("+-").partition(".")
    value = Fraction(int(whole + rest or "0"), 10 ** len(rest)) * Fraction(10) ** int(exponent or "0")
    return -value if digits.startswith("-") else value


# --- points --------------------------------------------------------------------------------------------------------


def _points(case: Any, rng: random.Random) -> Iterator[Values]:
    comparisons = [part for tree in case["assertions"] for part in _comparisons(tree)]
    pool = [_decimal(w) for tree in case["assertions"] for w in _words(tree) if not w.startswith(("X_", "Y_"))]
    names = [f"X_{k}" for k in range(case["inputs"])] + [f"Y_{k}" for k in range(case["outputs"])]
    for _ in range(POINTS):
        point = {name: _number(rng, pool) for name in names}
        for name in rng.sample(names, len(names)):
            about = [tree for tree in comparisons if name in set(_words(tree))]
            if about and rng.random() < 0.9:
                point[name] = _near_border(rng.choice(about), point, name, rng)
        yield point


def _number(rng: random.Random, pool: list[Fraction]) -> Fraction:
    if pool and rng.random() < 0.5:
        return rng.choice(pool)
    return Fraction(rng.choice((0.0, rng.gauss(0, 1), rng.gauss(0, 1e3), rng.gauss(0, 1e-3))))


def _near_border(tree: Tree, point: Values, name: str, rng: random.Random) -> Fraction:
    """A value for one variable that makes both sides of a comparison equal, or nearly so."""
    at = [_value(t, {**point, name: Fraction(k)}) for k in (0, 1) for t in tree[1:]]
    start, slope = at[0] - at[1], (at[2] - at[3]) - (at[0] - at[1])
    if slope == 0:
        return point[name]
    border = -start / slope
    near = _double(border)
    steps = (border, Fraction(near), Fraction(math.nextafter(near, rng.choice((-1e308, 1e308)))))
    return rng.choice((*steps, border + Fraction(rng.gauss(0, 1)), border * Fraction(1.000001)))


def _double(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return 1e308 if value > 0 else -1e308


def _comparisons(tree: Tree) -> Iterator[Tree]:
    if tree[0] in COMPARED:
        yield tree
    else:
        for part in tree[1:]:
            yield from _comparisons(part)


def _words(tree: Tree) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    else:
        for part in tree[1:]:
            yield from _words(part)


def _shown(point: Values) -> str:
    """Its first output: sentences about one bug should look alike."""
    return f"Y_0 is {_double(point['Y_0'])!r}"


# --- texts ---------------------------------------------------------------------------------------------------------


def _assertions(rng: random.Random, inputs: int, outputs: int) -> list[Tree]:
    """Bounds of all inputs, conditions on outputs, and disjunctions of both; now and then something illegal."""
    ways = rng.random()
    if ways < 0.6:
        found = _bounds(rng, inputs)
        found += [_condition(rng, outputs, 2) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
    else:
        cases = [
            ["and", *_bounds(rng, inputs), *(_condition(rng, outputs, 1) for _ in range(rng.randint(0, 2)))]
            for _ in range(rng.randint(1, 3))
        ]
        found = [["or", *cases]]
        if ways > 0.8:
            found += rng.choice((_bounds(rng, inputs), [_condition(rng, outputs, 1)]))
    if rng.random() < 0.03:
        found.append([rng.choice(tuple(COMPARED)), _word(rng), _term(rng, ["X_0", f"Y_{outputs - 1}"], 2)])
    if rng.random() < 0.02:
        found.append([rng.choice(("and", "or"))])
    rng.shuffle(found)
    return found


def _bounds(rng: random.Random, inputs: int) -> list[Tree]:
    found: list[Tree] = []
    for k in range(inputs):
        low, high = sorted((_word(rng), _word(rng)), key=_decimal)
        if rng.random() < 0.1:
            low, high = high, low
        if rng.random() < 0.15:
            found.append(["=", *rng.sample([f"X_{k}", low], 2)])
            continue
        high = low if rng.random() < 0.1 else high
        found += [_bound(rng, f"X_{k}", "<=", high), _bound(rng, f"X_{k}", ">=", low)]
        if rng.random() < 0.1:
            found.append(_bound(rng, f"X_{k}", rng.choice(("<=", ">=", "<=", ">=", "<")), _word(rng)))
    if rng.random() < 0.02:
        found.pop()
    return found


def _bound(rng: random.Random, name: str, sign: str, end: str) -> Tree:
    """`name <= end` in one of many ways."""
    other = {"<=": ">=", ">=": "<=", "<": ">", ">": "<"}[sign]
    factor, shift = rng.choice([word for word in PLAIN if _decimal(word)]), _word(rng)
    positive = _decimal(factor) > 0
    ways = [[sign, name, end]] * 6 + [
        [other, end, name],
        [other, ["-", name], ["-", end]],
        [sign, ["+", name, shift], ["+", end, shift]],
        [sign, ["-", name, shift], ["-", end, shift]],
        [sign if positive else other, ["*", factor, name], ["*", end, factor]],
        [sign, ["+", name, name, ["-", name]], end],
        ["and", [sign, name, end]],
        ["or", [sign, name, end]],
    ]
    return rng.choice(ways)


def _condition(rng: random.Random, outputs: int, depth: int) -> Tree:
    if depth and rng.random() < 0.5:
        parts = [_condition(rng, outputs, depth - 1) for _ in range(rng.randint(1, 3))]
        return [rng.choice(("and", "or")), *parts]
    names = [f"Y_{k}" for k in range(outputs)]
    sides = [_term(rng, names, rng.randint(0, 2)), rng.choice((_word(rng), _term(rng, names, 1)))]
    if not any(name in names for side in sides for name in _words(side)):
        sides[0] = rng.choice(names)
    return [rng.choice(("<=", ">=", "<=", ">=", "<", ">", "=")), *rng.sample(sides, 2)]


def _term(rng: random.Random, names: list[str], depth: int) -> Tree:
    if depth == 0:
        return rng.choice(names) if rng.random() < 0.8 else _word(rng)
    way = rng.choice("++-**")
    if way == "*":
        return ["*", *rng.sample([_word(rng), _term(rng, names, depth - 1)], 2)]
    return [way, *(_term(rng, names, rng.randrange(depth)) for _ in range(rng.randint(1, 3)))]


def _word(rng: random.Random) -> str:
    way = rng.random()
    if way < 0.6:
        return rng.choice(PLAIN)
    if way < 0.7:
        return rng.choice(NASTY)
    if way < 0.85:
        return repr(rng.gauss(0, 1))
    return f"{rng.gauss(0, 1) * 10.0 ** rng.randint(-8, 8):.{rng.randint(0, 12)}f}"


def text_of(case: Any) -> str:
    """The text of a case, in the layout that its seed chooses."""
    rng = random.Random(case["layout"])
    second = case["version"] == 2
    lines = [_declared(case, rng)]
    lines += [f"(assert {_written(tree, rng, second)})" for tree in case["assertions"]]
    comments = ("", "", "; (assert (<= X_0 0))", "   ", ";")
    return "".join(f"{line}{rng.choice((' ', chr(10)))}{rng.choice(comments)}\n" for line in lines)


def _declared(case: Any, rng: random.Random) -> str:
    if case["version"] == 2:
        parts = (("input X", case["inputs"]), ("output Y", case["outputs"]))
        inner = " ".join(f"(declare-{name} float32 [1,{size}])" for name, size in parts)
        return f"(vnnlib-version <2.0>)\n(declare-network net {inner})"
    names = [f"X_{k}" for k in range(case["inputs"])] + [f"Y_{k}" for k in range(case["outputs"])]
    rng.shuffle(names)
    ways = ("(declare-const {} Real)", "(declare-fun {} () Real)")
    return "\n".join(rng.choice(ways).format(name) for name in names)


def _written(tree: Tree, rng: random.Random, second: bool) -> str:
    if isinstance(tree, str):
        return f"{tree[0]}[0,{tree[2:]}]" if second and tree[:2] in ("X_", "Y_") else tree
    head = "==" if second and tree[0] == "=" else tree[0]
    space = rng.choice((" ", " ", "  ", "\n", "\t"))
    return f"({space.join((head, *(_written(part, rng, second) for part in tree[1:])))}{rng.choice(('', ' '))})"


def _smaller(tree: Tree) -> Iterator[Tree]:
    """Trees of the same kind with less in them."""
    if isinstance(tree, str):
        yield from (word for word in ("0", "1") if tree not in ("0", "1") and not tree.startswith(("X_", "Y_")))
        return
    if tree[0] in ("and", "or", "+", "-", "*"):
        yield from tree[1:]
        if len(tree) > 2:
            yield from (tree[:k] + tree[k + 1 :] for k in range(1, len(tree)))
    for k, part in enumerate(tree[1:], 1):
        yield from ([*tree[:k], smaller, *tree[k + 1 :]] for smaller in _smaller(part))


KINDS = (Properties("properties", missed), Properties("property-witnesses", invented))
