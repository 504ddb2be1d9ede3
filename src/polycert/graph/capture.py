"""`nn.Module` to `Network`, by `torch.export`: parameters stay the module's own, so training goes through."""

from __future__ import annotations

import math
import operator
import warnings
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
from polycert.graph.batch_sizes import Watch, check_same, names_batch, scripted
from polycert.graph.binding import CachedGraph, TensorLookup, keepable
from polycert.graph.calls_alone import RuledCall, check_alone, operands_of
from polycert.graph.graph import Graph, Network, Node, append, prune
from polycert.graph.in_place import refuse_changed_state, without_writes
from polycert.graph.same_outputs import agrees, spread_out
from polycert.rules import RULES, Call, Op, Value
from polycert.rules.op import Decomposition
from polycert.runtime.execution import plain_products
from polycert.runtime.limits import VALUES, checked_shape
from polycert.sets.interval import holds

Check = Callable[[RuledCall, Tensor], None]

# The batch while tracing: neither 1 (which squeezes away) nor likely to be a size inside a network.
TRACE_BATCH = 3
OTHER_BATCH = 5
# Ops that only look at a tensor in another way, and so round nothing.
VIEWS = tuple(
    f"aten.{name}."
    for name in (
        *("t", "numpy_T", "T", "mT", "view", "reshape", "permute", "transpose", "flatten", "unflatten", "squeeze"),
        *("unsqueeze", "expand", "detach", "alias", "contiguous", "_unsafe_view", "slice", "select", "narrow"),
    )
)
# Ops on constants that round nothing.
EXACT = (
    *VIEWS,
    *(
        f"aten.{name}."
        for name in ("clone", "lift_fresh", "lift_fresh_copy", "detach_", "neg", "ones", "zeros", "full", "abs")
    ),
    *(f"aten.{name}." for name in ("to", "_to_copy", "ones_like", "zeros_like", "cat", "stack", "flip")),
)
SINGLE = 4  # samples that the module is given one by one, and the first
SOFTMAX = ("aten.softmax.int", "aten.log_softmax.int", "aten._softmax.default", "aten._log_softmax.default")

_FINISH = {"": Tensor.detach, "softmax": lambda z: z.softmax(-1), "log_softmax": lambda z: z.log_softmax(-1)}


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
        program = _export(model, example)
        network = CapturedNetwork.of(model, program, tuple(input_shape), dtype, device)
        asked = _self_check(model, network)
        if asked or scripted(model) or names_batch(network._needed, TRACE_BATCH):
            other = _export(model, torch.cat([example, example])[:OTHER_BATCH])
            check_same(program, other, _needed_by_output, network.variable)
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
    dropped: str  # a final softmax, or nothing
    variable: set[str]
    default_dtype: torch.dtype
    default_device: torch.device
    _kept: list[CachedGraph] = field(
        default_factory=list, init=False, repr=False
    )  # one at most: a cell in a frozen class

    @staticmethod
    def of(
        module: nn.Module,
        program: torch.export.ExportedProgram,
        input_shape: Shape,
        dtype: torch.dtype,
        device: torch.device,
    ) -> CapturedNetwork:
        """Check the program's form and its ops, all at once."""
        signature = program.graph_signature
        if len(signature.user_inputs) != 1 or len(signature.user_outputs) != 1:
            raise PolycertError(
                f"a network needs one input and one output, this one has {len(signature.user_inputs)} and "
                f"{len(signature.user_outputs)}: wrap it in a module that has"
            )
        if signature.lifted_custom_objs:
            raise PolycertError("the model computes with an object that is no tensor, such as a random generator")
        nodes = list(program.graph.nodes)
        result, dropped = _logits(program)
        calls = tuple(n for n in nodes if n.op == "call_function")
        variable = _variable(nodes, signature.user_inputs[0])
        unknown = [n for n in calls if n.name in variable and not _has_rule(n) and n in _needed(result)]
        if unknown:
            known = ", ".join(sorted({name.split(".")[1].strip("_") for name in RULES}))
            listed = ", ".join(sorted({f"{n.target} (node '{n.name}')" for n in unknown}))
            raise PolycertError(
                f"no rule for {listed}: rewrite the model with supported ops ({known}) or add a rule in polycert/rules"
            )
        network = CapturedNetwork(
            module, program, input_shape, _shape(result), calls, result, dropped, variable, dtype, device
        )
        refuse_changed_state(program, network._needed)
        for call in filter(_single, calls):
            checked_shape(call.meta["val"].shape[1:], f"{call.target} (node '{call.name}')", VALUES)
        network.bind()
        return network

    @property
    def softmax(self) -> bool:
        """Whether a final softmax was dropped."""
        return bool(self.dropped)

    @property
    def dtype(self) -> torch.dtype:
        """As the first parameter's."""
        return self._kind[0]

    @property
    def _kind(self) -> tuple[torch.dtype, torch.device]:
        """Type and device of the first parameter."""
        return self._stored.kind(self.module) or (self.default_dtype, self.default_device)

    @cached_property
    def _stored(self) -> TensorLookup:
        """Where the program's tensors are."""
        return TensorLookup(self.program, self.module)

    @cached_property
    def _needed(self) -> set[fx.Node]:
        """The calls that the output depends on."""
        return _needed(self.result)

    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The module's own."""
        return tuple(self.module.parameters())

    def bind(self, dtype: torch.dtype | None = None) -> Graph:
        """Resolve every tensor anew, so that training, loading and moving the module are seen.

        A graph of the module's own tensors, the same as the last time, need not be built again.
        """
        own, device = self._kind
        wanted, stored = dtype or own, self._stored.tensors(self.module)
        if self._kept and self._kept[0].serves(stored, wanted, device):
            return self._kept[0].graph.fresh()
        tensors = {name: _as(tensor, wanted, device) for name, tensor in stored.items()}
        graph, derived = self._build(tensors, wanted, device, _unchecked)
        if any(_longer(tensor, wanted) and not holds(wanted, tensor) for tensor in stored.values()):
            return replace(graph, narrowed=True)
        if not derived and keepable(graph, stored):
            self._kept[:] = [CachedGraph.of(graph, stored)]
            return graph.fresh()
        return graph

    def check_calls(self, dtype: torch.dtype) -> None:
        """Compare every call by itself with what its rule says, or a clear error.

        What a rule does with weights that are all one number, as many are before training, shows with other numbers.
        """
        device = self._kind[1]
        tensors = {name: _as(tensor, dtype, device) for name, tensor in self._stored.tensors(self.module).items()}
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
        with suppress(PolycertError, RuntimeError):  # of rules that refuse these numbers, and of ops on constants
            self._build({**tensors, **drawn}, dtype, device, note)
        if misread:
            raise PolycertError(f"cannot capture {'; '.join(misread)}")

    def _build(
        self, tensors: dict[str, Tensor], dtype: torch.dtype, device: torch.device, check: Check
    ) -> tuple[Graph, bool]:
        """The program with these tensors, and whether it computes others from them; `check` sees every call."""
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
            if not sources:  # a constant: computed from the live tensors, so still differentiable
                try:
                    check_repeatable(call)
                except ValueError as error:
                    problems.append(f"{call.target} (node '{call.name}'): {error}")
                known[call.name] = call.target(*args, **kwargs)  # type: ignore[operator]
                derived = True
                if not _rounds_nothing(call, args, known[call.name]):
                    computed.append(call.name)
                continue
            try:
                made = self._op(call, args, kwargs, tuple(nodes[i].shape for i in sources), like)
                check(RuledCall(call, known, list(operands_of(call.args, self.variable)), made), like)
            except (ValueError, TypeError, IndexError, RuntimeError, AssertionError) as error:
                problems.append(f"{call.target} (node '{call.name}'): {reason(error)}")
                known[call.name] = Value(len(nodes))
                nodes.append(Node(call.name, None, sources, _shape(call) if _single(call) else ()))
                continue
            places = append(nodes, call.name, made, sources)
            known[call.name] = Value(places[0]) if _single(call) else [Value(place) for place in places]
        if problems:
            raise PolycertError(f"cannot capture {'; '.join(problems)}")
        result = known[self.result.name]
        if not isinstance(result, Value):
            raise PolycertError("the model's output does not depend on its input")
        return Graph(prune(nodes, result.index), dtype, device, tuple(computed)), derived

    def _op(
        self, call: fx.Node, args: Any, kwargs: Any, in_shapes: tuple[Shape, ...], like: Tensor
    ) -> Op | Decomposition:
        if _single(call):
            _check_value(call)
        target = str(call.target)
        training = "batch_norm" in target and self._owner(call).training
        shape = (_shape(call) or (1,)) if _single(call) else ()
        given = Call(target, tuple(args), dict(kwargs), in_shapes, shape, like, training=training)
        made = RULES[target](given)
        check_read(call.target, given)
        result = made.out_shape if isinstance(made, Op) else made.shapes[-1]
        if _single(call) and result != shape:
            raise ValueError(f"the rule gives shape {result} instead of {shape}")
        return made

    def _item(self, call: fx.Node, results: Any, position: int, problems: list[str]) -> Any:
        """One of several results."""
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
        """The module that holds a call's buffers."""
        names = self.program.graph_signature.inputs_to_buffers
        for argument in call.all_input_nodes:
            if argument.name in names:
                return self.module.get_submodule(names[argument.name].rpartition(".")[0])
        return self.module


def _unchecked(ruled: RuledCall, like: Tensor) -> None:
    """Calls are compared once, when a module is captured."""


def _all_one_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0 and bool((tensor == tensor.flatten()[0]).all())


def _longer(tensor: Tensor, dtype: torch.dtype) -> bool:
    return tensor.is_floating_point() and tensor.element_size() > dtype.itemsize


def _as(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    if not tensor.is_floating_point() or (tensor.dtype == dtype and tensor.device == device):
        return tensor
    return tensor.to(device=device, dtype=dtype)


def _export(model: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(model, (example,), strict=False)
        return without_writes(program)
    except PolycertError:
        raise
    except Exception as error:
        raise PolycertError(
            f"the model cannot be traced with samples of shape {tuple(example.shape[1:])}: {reason(error)}"
        ) from error


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the time of tracing; every submodule's own mode is put back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _self_check(model: nn.Module, network: CapturedNetwork) -> bool:
    """The graph must give what the module gives, on inputs of many sizes, in a batch and one by one.

    Gives whether the module asks for sizes on its way, which may be the batch's.
    """
    graph, watch = network.bind(), Watch()
    points = spread_out(graph).to(graph.device, graph.dtype)
    if graph.narrowed:  # the module computes with the longer numbers
        graph = network.bind(torch.float64)
    network.check_calls(graph.dtype)
    batches = [points[:1], points, *points[1:].split(1)[:: len(points) // SINGLE + 1]]
    for batch in batches:
        with torch.no_grad(), watch:
            try:
                expected = model(batch.clone())
            except Exception as error:
                raise PolycertError(f"the model works for one size of batch only: {reason(error)}") from None
        if not isinstance(expected, Tensor):
            raise PolycertError(f"a network needs one tensor as its output, this one returns {type(expected).__name__}")
        if len(batch) == 1 and expected.numel() == math.prod(network.output_shape):  # `squeeze` may have taken it away
            expected = expected.reshape(1, *network.output_shape)
        if expected.shape != (len(batch), *network.output_shape):
            raise PolycertError(
                f"{len(batch)} samples give shape {tuple(expected.shape)}: the batch must stay the first axis"
            )
        if batch is batches[0] and not bool(torch.isfinite(expected).all()):
            raise PolycertError(
                "the model's output is not finite: its weights hold NaN or infinite values, or overflow"
            )
        if not bool(agrees(graph, batch.to(graph.dtype), expected, _FINISH[network.dropped]).all()):
            raise PolycertError(
                "the captured graph does not reproduce the model on random batches; "
                "does its forward depend on data, randomness or the batch?"
            )
    return watch.asked


def _rounds_nothing(call: fx.Node, args: Any, result: Any) -> bool:
    """Whether a constant is stored numbers in another order or form."""
    if not str(call.target).startswith(EXACT):
        return False
    changes_type = args and isinstance(args[0], Tensor) and isinstance(result, Tensor) and result.dtype != args[0].dtype
    return not changes_type or bool((result.double() == args[0].double()).all())


def _values(args: Any) -> Iterator[Value]:
    """The nodes among arguments, also inside lists."""
    for argument in args:
        if isinstance(argument, Value):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _values(argument)


def _has_rule(node: fx.Node) -> bool:
    return str(node.target) in RULES or node.target is operator.getitem


def _single(node: fx.Node) -> bool:
    """Whether a call gives one tensor."""
    return isinstance(node.meta["val"], Tensor)


def _check_value(call: fx.Node) -> None:
    """Real numbers for each sample of the batch."""
    value = call.meta["val"]
    if value.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"it gives numbers of type {value.dtype}: only float32 and float64 are supported")
    if (value.shape[0] if value.dim() else 0) != TRACE_BATCH:
        raise ValueError("the batch must stay the first axis, untouched")


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(0)


def _shape(node: fx.Node) -> Shape:
    return tuple(int(n) for n in node.meta["val"].shape[1:])


def _fx_node(value: Any) -> fx.Node:
    if not isinstance(value, fx.Node):
        raise PolycertError("the model's output does not depend on its input")
    return value


def _logits(program: torch.export.ExportedProgram) -> tuple[fx.Node, str]:
    """The program's output without a final softmax over all of it, and the name of that."""
    (name,) = program.graph_signature.user_outputs
    values = program.graph.output_node().args[0]
    found = [node for node in values if isinstance(node, fx.Node) and node.name == name]
    result = _fx_node(found[0] if found else None)
    if str(result.target) not in SOFTMAX:
        return result, ""
    shape = result.meta["val"].shape[1:]
    if not shape or result.args[1] not in (-1, len(shape)) or math.prod(shape[:-1]) != 1:
        return result, ""
    return _fx_node(result.args[0]), "log_softmax" if "log_softmax" in str(result.target) else "softmax"


def _needed_by_output(program: torch.export.ExportedProgram) -> set[fx.Node]:
    return _needed(_logits(program)[0])


def _needed(result: fx.Node) -> set[fx.Node]:
    found: set[fx.Node] = set()
    waiting = [result]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def _variable(nodes: list[fx.Node], source: str) -> set[str]:
    """Names of the nodes that depend on the input."""
    found = {source}
    for node in nodes:
        if any(n.name in found for n in node.all_input_nodes):
            found.add(node.name)
    return found
