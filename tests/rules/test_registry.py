"""The registry is whole: whatever a rule declares has an example, and every list of ops is the registry's."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import polycert as pc
from polycert.graph.onnx.builder import CONVERTERS, known_ops
from polycert.models.architectures import build
from polycert.rules import RULES, Activation, Call, Example, Op, Rule, Value
from polycert.rules.examples import mlp, op_named
from polycert.rules.piecewise_linear import Relu
from polycert.rules.registry import ACTIVATION_FAMILIES, layers, nearest_targets, onnx_rules, rule, rules, scratch
from polycert.training.recipe import ACTIVATIONS, PIECEWISE_LINEAR
from tests.helpers.cases import CASES, EPS, Case, ball, in_double, ready
from tests.helpers.onnx_files import FILES

EXAMPLES = [example for declared in rules() for example in declared.examples]


def targets_in(example: Example) -> set[str]:
    """The ops of a captured network that its output needs."""
    return {str(call.target) for call in ready(example).net._needed if call.op == "call_function"}


def without_example() -> list[str]:
    """Targets that no example of their own rule contains."""
    return [
        target
        for declared in rules()
        for target in sorted(set(declared.targets) - set().union(*map(targets_in, declared.examples)))
    ]


def test_every_target_has_an_example() -> None:
    assert without_example() == []


def test_a_rule_without_an_example_is_noticed() -> None:
    with scratch():

        @rule("aten.relu6.default", family="maximum")
        def _bare(call: Call) -> Relu:
            return Relu(call.out_shape)

        assert without_example() == ["aten.relu6.default"]
    assert "aten.relu6.default" not in RULES


def test_examples_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_nothing_is_declared_twice() -> None:
    for names in ([t for r in rules() for t in r.targets], [n for r in rules() for n in r.onnx], [*layers()]):
        assert len(set(names)) == len(names)
    assert sum(len(declared.layers) for declared in rules()) == len(layers())


def kinds(kind: type[Op] = Op) -> Iterator[type[Op]]:
    """All ops of polycert that can be made."""
    for sub in kind.__subclasses__():
        if not sub.__abstractmethods__ and sub.__module__.startswith("polycert."):
            yield sub
        yield from kinds(sub)


def test_every_op_is_in_a_case() -> None:
    seen = {type(node.op) for case in CASES for node in ready(case).net.bind().nodes[1:]}
    assert set(kinds()) - seen == set()


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_no_point_is_outside_the_bounds_of_an_example(example: Case) -> None:
    """Of all examples, also those over which only the slow tests run all invariants."""
    module, net, x, _ = ready(example, torch.float32)
    set_ = ball(math.inf, eps=EPS[math.inf])
    points = set_.at(x.double()).sample(60)
    with torch.no_grad():
        found = pc.bounds(net, x, set_, rigorous=not net.bind().computed)
        outputs = in_double(module)(points.flatten(0, 1)).unflatten(0, points.shape[:2])
    tolerance = 1e-5 if net.bind().computed else 0.0
    assert bool((outputs >= found.lower.double() - tolerance).all())
    assert bool((outputs <= found.upper.double() + tolerance).all())


def test_every_onnx_op_has_a_file_and_a_way_to_be_read() -> None:
    written = {node.op_type for file in FILES for node in file.model().graph.node}
    assert onnx_rules().keys() - written == set()
    assert known_ops().keys() == onnx_rules().keys() >= CONVERTERS.keys()
    plain = [onnx_rules()[name] for name in known_ops().keys() - CONVERTERS.keys()]
    assert {declared.family for declared in plain} <= set(ACTIVATION_FAMILIES)


@pytest.mark.parametrize("name", layers(*ACTIVATION_FAMILIES))
def test_the_layer_of_an_activation_is_its_rule(name: str) -> None:
    net = pc.capture(mlp(build([{"type": name}])), (5,))
    made = RULES[next(iter({str(c.target) for c in net._needed} & RULES.keys() - {"aten.linear.default"}))]
    assert name in made.layers


def test_recipes_name_the_activations_of_the_registry() -> None:
    assert set(ACTIVATIONS) == {"relu", "leaky_relu", "sigmoid", "tanh"}
    assert set(PIECEWISE_LINEAR) == {"relu", "leaky_relu"}
    assert all(issubclass(layer, nn.Module) for layer in layers().values())


@pytest.mark.parametrize("declared", rules(), ids=lambda declared: declared.targets[0])
def test_what_the_shape_accounts_for_is_an_argument(declared: Rule) -> None:
    names = {argument.name for target in declared.targets for argument in op_named(target)._schema.arguments}
    assert declared.by_shape <= names


def test_an_activation_of_a_family_is_an_activation() -> None:
    """Clips are written as ReLUs; all others are ops of one variable."""
    for declared in rules():
        if declared.family in ACTIVATION_FAMILIES and "clamp" not in "".join(declared.targets):
            call = Call(declared.targets[0], (Value(0),), {}, ((3,),), (3,), torch.zeros(0))
            assert isinstance(declared.build(call), Activation)


def test_names_that_are_spelled_alike_are_nearest() -> None:
    assert "hardtanh" in nearest_targets(["aten.hardswish.default"])
    assert "relu" in nearest_targets(["aten.zzz.default"])
