"""Capture an `nn.Module` as a `Network` by `torch.export`. Its parameters stay the module's, so it can be trained."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn

from polycert.errors import PolycertError, reason
from polycert.forms import Shape
from polycert.graph.arguments import check_read, check_repeatable
from polycert.graph.batch_sizes import check_same, names_batch, scripted
from polycert.graph.binding import CachedGraph, TensorLookup, keepable
from polycert.graph.graph import Graph, Network, Node, append, prune
from polycert.graph.self_check import RuledCall, check_alone, check_network, operands_of
from polycert.graph.traced_program import (
    exported,
    gives_one,
    logits,
    needed_by_output,
    needed_calls,
    refuse_changed_state,
    rounds_nothing,
    shape_of,
    variable_names,
)
from polycert.rules import RULES, Call, Op, Value
from polycert.rules.op import Decomposition
from polycert.rules.registry import nearest_targets
from polycert.runtime.execution import plain_products
from polycert.runtime.limits import VALUES, checked_shape
from polycert.sets.interval import holds

Check = Callable[[RuledCall, Tensor], None]

# The batch while tracing is not 1, which squeezes away, and unlikely to be a size inside a network.
TRACE_BATCH = 3
OTHER_BATCH = 5


def capture(model: nn.Module, input_shape: Shape) -> Network:
    """Turn a traceable module into a network that can be bounded.

    Args:
        model: any module that `torch.export` can trace, with one input and one output, in float32 or float64.
            It is traced in evaluation mode and left as it was. The network follows its parameters and buffers
            whenever they change. Everything else is taken as it is now: the order of ops, attributes that are
            plain numbers or flags, tensors that are neither parameters nor buffers, and the sizes of all tensors.
        input_shape: shape of one sample, without the batch.

    Raises:
        PolycertError: if the module has an op without a rule (all of them are named), more than one input or
            output, draws numbers at random, mixes samples, needs the size of the batch, passes an argument to an
            op that no rule looks at, or if the captured graph does not reproduce the module on random batches.

    Examples:
        >>> net = capture(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)), (1, 2, 2))
        >>> net.output_shape
        (2,)
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise PolycertError("a module that torch.jit has compiled cannot be traced: give the module itself")
    first = next(iter(model.parameters()), None)
    dtype, device = (torch.float32, torch.device("cpu")) if first is None else (first.dtype, first.device)
    if dtype not in (torch.float32, torch.float64):
        raise PolycertError(f"models must be float32 or float64, got {dtype}: call model.float() first")
    if device.type == "meta":
        raise PolycertError("the model's parameters hold no numbers (device 'meta'): load its weights first")
    if min(checked_shape(input_shape, "the input", VALUES), default=1) < 1:
        raise PolycertError(f"the input would have shape {tuple(input_shape)}: every axis needs a size from 1")
    example = torch.rand(TRACE_BATCH, *input_shape, dtype=dtype, device=device, generator=_generator(device))
    with plain_products(device), _evaluating(model):
        program = exported(model, example)
        network = CapturedNetwork.of(model, program, tuple(input_shape), dtype, device)
        asked = check_network(model, network)
        if asked or scripted(model) or names_batch(network._needed, TRACE_BATCH):
            other = exported(model, torch.cat([example, example])[:OTHER_BATCH])
            check_same(program, other, needed_by_output, network.variable)
    return network


@dataclass(frozen=True, eq=False)
class CapturedNetwork(Network):
    """A traced program and the module that owns its tensors."""

    module: nn.Module
    program: torch.export.ExportedProgram
    input_shape: Shape
    output_shape: Shape
    calls: tuple[fx.Node, ...]
    result: fx.Node
    dropped: str  # the name of a final softmax that was dropped, or ""
    variable: set[str]
    default_dtype: torch.dtype
    default_device: torch.device
    _kept: list[CachedGraph] = field(default_factory=list, init=False, repr=False)  # at most one: the class is frozen

    @staticmethod
    def of(
        module: nn.Module,
        program: torch.export.ExportedProgram,
        input_shape: Shape,
        dtype: torch.dtype,
        device: torch.device,
    ) -> CapturedNetwork:
        """Check the form of the program and all of its ops, and bind it once."""
        signature = program.graph_signature
        if len(signature.user_inputs) != 1 or len(signature.user_outputs) != 1:
            raise PolycertError(
                f"a network needs one input and one output, this one has {len(signature.user_inputs)} and "
                f"{len(signature.user_outputs)}: wrap it in a module with one of each"
            )
        if signature.lifted_custom_objs:
            raise PolycertError("the model computes with an object that is no tensor, such as a random generator")
        nodes = list(program.graph.nodes)
        result, dropped = logits(program)
        calls = tuple(n for n in nodes if n.op == "call_function")
        variable = variable_names(nodes, signature.user_inputs[0])
        unknown = [n for n in calls if n.name in variable and not _has_rule(n) and n in needed_calls(result)]
        if unknown:
            listed = ", ".join(sorted({f"{n.target} (node '{n.name}')" for n in unknown}))
            raise PolycertError(
                f"no rule for {listed}: rewrite the model with supported ops, such as "
                f"{nearest_targets(str(n.target) for n in unknown)}, or add a rule in polycert/rules"
            )
        network = CapturedNetwork(
            module, program, input_shape, shape_of(result), calls, result, dropped, variable, dtype, device
        )
        refuse_changed_state(program, network._needed)
        for call in filter(gives_one, calls):
            checked_shape(call.meta["val"].shape[1:], f"{call.target} (node '{call.name}')", VALUES)
        network.bind()
        return network

    @property
    def softmax(self) -> bool:
        """Whether a final softmax was dropped."""
        return bool(self.dropped)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the first parameter."""
        return self._kind[0]

    @property
    def _kind(self) -> tuple[torch.dtype, torch.device]:
        """Type and device of the first parameter."""
        return self._stored.kind(self.module) or (self.default_dtype, self.default_device)

    @cached_property
    def _stored(self) -> TensorLookup:
        """The places of the program's tensors in the module."""
        return TensorLookup(self.program, self.module)

    @cached_property
    def _needed(self) -> set[fx.Node]:
        """The calls that the output depends on."""
        return needed_calls(self.result)

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the module's parameters."""
        return tuple(self.module.parameters())

    def bind(self, dtype: torch.dtype | None = None) -> Graph:
        """Build the graph with the module's tensors as they are now, so that training, loading and moving are seen.

        If they are the same tensors as the last time, the graph of the last time is returned.
        """
        own, device = self._kind
        wanted, stored = dtype or own, self._stored.tensors(self.module)
        if self._kept and self._kept[0].serves(stored, wanted, device):
            return self._kept[0].graph.fresh()
        tensors = {name: _converted(tensor, wanted, device) for name, tensor in stored.items()}
        graph, derived = self._build(tensors, wanted, device, _unchecked)
        if any(_wider(tensor, wanted) and not holds(wanted, tensor) for tensor in stored.values()):
            return replace(graph, narrowed=True)
        if not derived and keepable(graph, stored):
            self._kept[:] = [CachedGraph.of(graph, stored)]
            return graph.fresh()
        return graph

    def check_calls(self, dtype: torch.dtype) -> None:
        """Compare every call by itself with what its rule says.

        Many weights are all one number before training, which hides what a rule does with them. So such weights are
        also replaced by random numbers.

        Raises:
            PolycertError: if a rule misreads a call.
        """
        device = self._kind[1]
        tensors = {
            name: _converted(tensor, dtype, device) for name, tensor in self._stored.tensors(self.module).items()
        }
        self._build(tensors, dtype, device, check_alone)
        plain = {name: tensor for name, tensor in tensors.items() if _all_one_number(tensor)}
        if not plain:
            return
        misread: list[str] = []

        def note(ruled: RuledCall, like: Tensor) -> None:
            try:
                check_alone(ruled, like)
            except ValueError as error:
                misread.append(f"{ruled.call.target} (node '{ruled.call.name}'): {error}")

        generator = _generator(device)
        drawn = {
            name: torch.rand(t.shape, generator=generator, dtype=t.dtype, device=device) + 0.5
            for name, t in plain.items()
        }
        with suppress(PolycertError, RuntimeError):  # a rule may refuse these numbers, an op on constants may fail
            self._build({**tensors, **drawn}, dtype, device, note)
        if misread:
            raise PolycertError(f"cannot capture {'; '.join(misread)}")

    def _build(
        self, tensors: dict[str, Tensor], dtype: torch.dtype, device: torch.device, check: Check
    ) -> tuple[Graph, bool]:
        """Build the graph with these tensors, and tell whether the program computes others from them.

        `check` is called with every call that depends on the input.
        """
        known: dict[str, Any] = {**tensors}
        nodes = [Node("input", None, (), self.input_shape)]
        known[self.program.graph_signature.user_inputs[0]] = Value(0)
        like = torch.empty(0, dtype=dtype, device=device)
        problems: list[str] = []
        computed: list[str] = []
        derived = False
        for call in self.calls:
            if call not in self._needed:
                continue
            resolved: Any = fx.node.map_arg((call.args, call.kwargs), lambda n: known[n.name])
            args, kwargs = resolved
            if call.target is operator.getitem:
                known[call.name] = self._item(call, args[0], args[1], problems)
                continue
            sources = tuple(value.index for value in _values(args))
            if not sources:  # a constant, computed from the live tensors so that it has gradients
                try:
                    check_repeatable(call)
                except ValueError as error:
                    problems.append(f"{call.target} (node '{call.name}'): {error}")
                known[call.name] = call.target(*args, **kwargs)  # type: ignore[operator]
                derived = True
                if not rounds_nothing(call, args, known[call.name]):
                    computed.append(call.name)
                continue
            try:
                made = self._op(call, args, kwargs, tuple(nodes[i].shape for i in sources), like)
                check(RuledCall(call, known, list(operands_of(call.args, self.variable)), made), like)
            except (ValueError, TypeError, IndexError, RuntimeError, AssertionError) as error:
                problems.append(f"{call.target} (node '{call.name}'): {reason(error)}")
                known[call.name] = Value(len(nodes))
                nodes.append(Node(call.name, None, sources, shape_of(call) if gives_one(call) else ()))
                continue
            places = append(nodes, call.name, made, sources)
            known[call.name] = Value(places[0]) if gives_one(call) else [Value(place) for place in places]
        if problems:
            raise PolycertError(f"cannot capture {'; '.join(problems)}")
        result = known[self.result.name]
        if not isinstance(result, Value):
            raise PolycertError("the model's output does not depend on its input")
        return Graph(prune(nodes, result.index), dtype, device, tuple(computed)), derived

    def _op(
        self, call: fx.Node, args: Any, kwargs: Any, in_shapes: tuple[Shape, ...], like: Tensor
    ) -> Op | Decomposition:
        """Build a call's op by its rule, and check that the rule read all arguments and gives the call's shape."""
        if gives_one(call):
            _check_value(call)
        target = str(call.target)
        training = "batch_norm" in target and self._owner(call).training
        shape = (shape_of(call) or (1,)) if gives_one(call) else ()
        # A constant that the program itself makes has the type in which it was traced.
        args, kwargs = fx.node.map_aggregate(
            (args, kwargs), lambda v: _converted(v, like.dtype, like.device) if isinstance(v, Tensor) else v
        )
        given = Call(target, tuple(args), dict(kwargs), in_shapes, shape, like, training=training)
        made = RULES[target].build(given)
        check_read(call.target, given)
        result = made.out_shape if isinstance(made, Op) else made.shapes[-1]
        if gives_one(call) and result != shape:
            raise ValueError(f"the rule gives shape {result} instead of {shape}")
        return made

    def _item(self, call: fx.Node, results: Any, position: int, problems: list[str]) -> Any:
        """Return one of the results of a call that has several."""
        if isinstance(results, Value):  # the call itself was a problem
            return results
        if position >= len(results):
            problems.append(
                f"node '{call.name}': only the first {len(results)} results of {call.args[0]} are supported"
            )
            return Value(0)
        try:
            _check_value(call)
        except ValueError as error:
            problems.append(f"node '{call.name}': {error}")
        return results[position]

    def _owner(self, call: fx.Node) -> nn.Module:
        """Return the module that holds a call's buffers."""
        names = self.program.graph_signature.inputs_to_buffers
        for argument in call.all_input_nodes:
            if argument.name in names:
                return self.module.get_submodule(names[argument.name].rpartition(".")[0])
        return self.module


def _unchecked(ruled: RuledCall, like: Tensor) -> None:
    """Check nothing: calls are compared once, when the module is captured."""


def _all_one_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0 and bool((tensor == tensor.flatten()[0]).all())


def _wider(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether a tensor holds floats of more bytes than `dtype` has."""
    return tensor.is_floating_point() and tensor.element_size() > dtype.itemsize


def _converted(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Convert a tensor of floats to a type and a device; other tensors stay as they are."""
    if not tensor.is_floating_point() or (tensor.dtype == dtype and tensor.device == device):
        return tensor
    return tensor.to(device=device, dtype=dtype)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode while it is traced; afterwards every submodule has its own mode again."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _values(args: Any) -> Iterator[Value]:
    """Yield the nodes among arguments, also inside lists."""
    for argument in args:
        if isinstance(argument, Value):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _values(argument)


def _has_rule(node: fx.Node) -> bool:
    return str(node.target) in RULES or node.target is operator.getitem


def _check_value(call: fx.Node) -> None:
    """Check that a call gives real numbers for each sample of the batch."""
    value = call.meta["val"]
    if value.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"it gives numbers of type {value.dtype}: only float32 and float64 are supported")
    if (value.shape[0] if value.dim() else 0) != TRACE_BATCH:
        raise ValueError("the batch must stay the first axis, untouched")


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(0)
