"""From module to network: what is captured is the module, stays live, and what cannot be captured says so."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polycert as pc
from polycert.certification.envelope import envelopes
from polycert.graph import Graph, Node
from polycert.rules.affine import MatMul
from tests.helpers.cases import CASES, Case, Fn, fresh, ready

F32, F64 = torch.float32, torch.float64


def batch(case: Case, count: int = 4, dtype: torch.dtype = F64) -> Tensor:
    """Inputs of both signs, beyond the unit box."""
    return torch.randn(count, *case.shape, dtype=dtype, generator=torch.Generator().manual_seed(5)) * 2


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def refusal(module: nn.Module, shape: tuple[int, ...] = (4,)) -> str:
    """The sentence with which a module is refused."""
    with pytest.raises(pc.PolycertError) as caught:
        pc.capture(module, shape)
    return str(caught.value)


# --- the captured network is the module ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_graph_computes_what_the_module_computes(case: Case, dtype: torch.dtype) -> None:
    module, net, _, _ = ready(case, dtype)
    x = batch(case, dtype=dtype)
    tolerance = 1e-4 if dtype == F32 else 1e-12
    with torch.no_grad():
        torch.testing.assert_close(net(x), module(x), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(net(x[:1]), module(x)[:1], rtol=tolerance, atol=tolerance)
    assert net.input_shape == case.shape
    assert net.output_shape == tuple(module(x).shape[1:])
    assert net.dtype == dtype
    assert net.bind(F64).dtype == F64


def test_nothing_random_and_nothing_global() -> None:
    module = small()
    before = torch.random.get_rng_state()
    pc.capture(module, (4,))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.is_grad_enabled()


# --- live parameters -----------------------------------------------------------------------------------------------


def test_weights_changed_in_place_are_seen() -> None:
    module = small().double()
    net, x = pc.capture(module, (4,)), torch.rand(2, 4, dtype=F64)
    before = pc.bounds(net, x, pc.Ball(2, 0.1)).lower
    with torch.no_grad():
        module[2].bias.add_(1.0)
    torch.testing.assert_close(pc.bounds(net, x, pc.Ball(2, 0.1)).lower, before + 1)
    module.load_state_dict({name: value * 0 for name, value in module.state_dict().items()})
    assert bool((pc.bounds(net, x, pc.Ball(2, 0.1)).upper.abs() < 1e-12).all())


def test_a_parameter_that_is_replaced_is_seen() -> None:
    module = small().double()
    net, x = pc.capture(module, (4,)), torch.rand(2, 4, dtype=F64)
    module[2].bias = nn.Parameter(torch.tensor([5.0, 6.0, 7.0], dtype=F64))
    module[2].weight.data = torch.zeros(3, 5, dtype=F64)
    torch.testing.assert_close(net(x), torch.tensor([[5.0, 6.0, 7.0]] * 2, dtype=F64))


class Numbered(nn.Module):
    """A model that turns a buffer into a number of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("slope", torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.layer(x) - 0.3, self.slope.item())


def test_a_number_read_from_a_buffer_is_read_anew() -> None:
    module = Numbered().double()
    net, x = pc.capture(module, (4,)), torch.rand(2, 4, dtype=F64)
    pc.bounds(net, x, pc.Ball(eps=0.1))
    module.slope.fill_(0.9)
    torch.testing.assert_close(net(x), module(x))


def test_a_graph_of_the_modules_own_tensors_serves_again() -> None:
    module = small()
    net = pc.capture(module, (4,))
    first, second = net.bind(), net.bind()
    assert first.layout is second.layout
    assert "_kept" not in repr(net)
    module.load_state_dict({name: value + 1 for name, value in module.state_dict().items()}, assign=True)
    assert net.bind().layout is not first.layout
    x = torch.rand(2, 4)
    torch.testing.assert_close(net(x), module(x))


@dataclass(frozen=True, eq=False)
class Remembering(MatMul):
    """An op that keeps something it has computed."""

    @cached_property
    def size(self) -> Tensor:
        return self.weight.abs()

    def absolute(self, values: Tensor) -> Tensor:
        return F.linear(values, self.size)


def test_what_an_op_derives_from_its_weights_is_forgotten() -> None:
    op = Remembering(torch.ones(2, 3), None, (3,), (2,))
    graph = Graph((Node("input", None, (), (3,)), Node("op", op, (0,), (2,))), F32, torch.device("cpu"))
    op.absolute(torch.ones(1, 3))
    op.weight.mul_(2)
    found = graph.fresh().nodes[1].op
    assert isinstance(found, Remembering)
    assert torch.equal(found.absolute(torch.ones(1, 3)), torch.full((1, 2), 6.0))
    assert "size" not in vars(graph.fresh().nodes[1].op)
    assert graph.fresh().nodes[1].op is not found  # nor does one graph see what another has derived


def test_gradients_are_not_lost_to_a_call_without_them() -> None:
    layers = nn.Conv2d(1, 2, 3, stride=2), nn.ReLU(), nn.Conv2d(2, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    module = nn.Sequential(*layers)  # its second layer's rows pass the first as windows of windows
    net, x, ball = pc.capture(module, (1, 7, 7)), torch.rand(2, 1, 7, 7), pc.Ball(eps=0.5)
    graph, twin = net.bind(), copy.deepcopy(module)
    with torch.no_grad():
        pc.bounds(net, x, ball)  # meanwhile, on another graph of the same weights
    gradients = []
    for one, owner in ((graph, module), (pc.capture(twin, (1, 7, 7)).bind(), twin)):
        (env,) = envelopes(one, ball.at(x), torch.tensor([0, 1]), "crown", "parallel", None)
        gradients.append(torch.autograd.grad(env.margins().sum(), list(owner.parameters())))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_gradients_reach_the_modules_own_parameters() -> None:
    module = small().double()
    net = pc.capture(module, (4,))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
    x, y = torch.rand(8, 4, dtype=F64), torch.arange(8) % 3
    losses = []
    for _ in range(15):
        optimiser.zero_grad()
        loss = F.relu(0.5 - pc.envelope(net, x, y, pc.Ball(2, 0.05)).margins()).mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert all(p.grad is not None for p in module.parameters())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["batch-norm-2d", "normalise", "scalars", "avg-pool"])
def test_a_module_moved_to_float64_is_followed_with_its_buffers(name: str) -> None:
    case = next(c for c in CASES if c.name == name)
    module = fresh(case, F32)
    net = pc.capture(module, case.shape)
    module.double()
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.add_(0.25)
    x = batch(case)
    assert net.dtype == F64
    torch.testing.assert_close(net(x), module(x), rtol=1e-12, atol=1e-12)
    found = pc.bounds(net, x, pc.Ball(math.inf, 0.01))
    assert found.lower.dtype == F64
    assert bool((found.lower <= module(x)).all())


def test_running_statistics_are_live() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double().eval()
    net, x = pc.capture(module, (4,)), torch.rand(2, 4, dtype=F64)
    module[1].running_mean.fill_(2.0)
    module[1].running_var.fill_(4.0)
    torch.testing.assert_close(net(x), module(x))


# --- modes ---------------------------------------------------------------------------------------------------------


def test_the_training_mode_of_every_submodule_is_put_back() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    module.train()
    module[1].eval()
    before = {name: part.training for name, part in module.named_modules()}
    statistics = module[1].running_mean.clone()
    pc.capture(module, (4,))
    assert {name: part.training for name, part in module.named_modules()} == before
    assert torch.equal(module[1].running_mean, statistics)
    module.add_module("extra", nn.Softshrink())
    refusal(module)
    assert {name: part.training for name, part in module.named_modules() if name != "extra"} == before


def test_dropout_is_left_out() -> None:
    module = nn.Sequential(nn.Dropout(0.9), nn.Linear(4, 2)).train()
    net, x = pc.capture(module, (4,)), torch.rand(3, 4)
    torch.testing.assert_close(net(x), module.eval()(x))


def test_batch_norm_in_training_mode_is_refused_where_gradients_flow() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    net, x, ball = pc.capture(module, (4,)), torch.rand(2, 4), pc.Ball(2, 0.1)
    module.train()
    for ask in (lambda: pc.bounds(net, x, ball), lambda: pc.envelope(net, x, None, ball)):
        with pytest.raises(pc.PolycertError, match="batch norm"):
            ask()
        with torch.no_grad():
            ask()
    assert len(pc.certify(net, x, None, ball)) == 2
    module[1].eval()
    pc.bounds(net, x, ball).lower.sum().backward()


# --- what is refused -----------------------------------------------------------------------------------------------


def test_all_unsupported_ops_are_named_at_once() -> None:
    module = Fn(lambda m, x: torch.cos(F.mish(m.a(torch.sin(x)))), nn.Linear(4, 2))
    sentence = refusal(module)
    for op in ("aten.cos.default", "aten.mish.default", "aten.sin.default"):
        assert op in sentence
    assert "relu" in sentence


def test_an_unsupported_op_that_does_not_reach_the_output_is_no_matter() -> None:
    def forward(module: Fn, x: Tensor) -> Tensor:
        torch.sin(x)
        return module.a(x)

    assert pc.capture(Fn(forward, nn.Linear(4, 2)), (4,)).output_shape == (2,)


@pytest.mark.parametrize("softmax", [nn.Softmax(dim=1), nn.LogSoftmax(dim=-1)])
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_a_final_softmax_is_dropped(softmax: nn.Module, scale: float) -> None:
    """Also one whose small probabilities are too close to 0 to tell apart."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 10))
    with torch.no_grad():
        body[2].weight.mul_(scale)
    net, x = pc.capture(nn.Sequential(body, softmax), (4,)), torch.rand(3, 4)
    assert net.softmax
    torch.testing.assert_close(net(x), body(x))
    plain = pc.certify(body, x, None, pc.Ball(2, 0.1))
    assert torch.equal(pc.certify(net, x, None, pc.Ball(2, 0.1)).radius, plain.radius)
    with pytest.raises(pc.PolycertError, match="softmax"):
        pc.bounds(net, x, pc.Ball(2, 0.1))


def test_a_final_softmax_of_several_rows_is_computed() -> None:
    """The largest entry of all rows is not that before the softmax of each."""
    module = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.Softmax(-1))
    net, x = pc.capture(module, (4,)), torch.rand(3, 4)
    assert not net.softmax
    torch.testing.assert_close(net(x), module(x))


def test_a_softmax_inside_runs_over_the_last_axis_only() -> None:
    module = Fn(lambda m, x: torch.softmax(m.a(x.reshape(-1, 2, 2)), 1).flatten(1).relu(), nn.Linear(2, 2))
    assert "softmax" in refusal(module)


def test_a_softmax_over_the_batch_is_refused() -> None:
    refusal(Fn(lambda m, x: torch.softmax(m.a(x), 0), nn.Linear(4, 2)))


class TwoInputs(nn.Module):
    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return x + other


def test_more_than_one_input_or_output() -> None:
    assert "one input" in refusal(Fn(lambda m, x: (m.a(x), x), nn.Linear(4, 2)))
    refusal(TwoInputs())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused_with_a_sentence(dtype: torch.dtype) -> None:
    assert "model.float()" in refusal(nn.Linear(4, 2).to(dtype))


BATCH_DEPENDENT: dict[str, Callable[[Fn, Tensor], Tensor]] = {
    "one row": lambda m, x: m.b(x.reshape(1, -1)),
    "fixed batch": lambda m, x: m.a(x.reshape(3, -1)),
    "rows from samples": lambda m, x: m.a(x.reshape(-1, 2, 2).reshape(-1, 4).reshape(2, -1)[:, :4]),
    "mean over the batch": lambda m, x: m.a(x - x.mean(0)),
    "transposed": lambda m, x: m.c(x.transpose(0, 1)),
}


@pytest.mark.parametrize("name", BATCH_DEPENDENT)
def test_a_model_that_mixes_samples_is_refused(name: str) -> None:
    refusal(Fn(BATCH_DEPENDENT[name], nn.Linear(4, 2), nn.Linear(12, 2), nn.Linear(3, 2)))


NOT_AFFINE: dict[str, Callable[[Fn, Tensor], Tensor]] = {
    "power": lambda m, x: m.a(x) ** 3,
    "quotient": lambda m, x: 1 / (m.a(x) + 9),
    "matrix from the input": lambda m, x: m.a.weight @ x.T,
    "alpha": lambda m, x: torch.add(m.a(x), m.a(x), alpha=2),
    "matrices that do not fit in shape": lambda m, x: m.a(x).reshape(-1, 1, 2, 1) @ x.reshape(-1, 2, 1, 2),
    "joined with a constant": lambda m, x: torch.cat([m.a(x), torch.ones(3, 1)], 1),
}


@pytest.mark.parametrize("name", NOT_AFFINE)
def test_what_is_not_affine_is_refused(name: str) -> None:
    refusal(Fn(NOT_AFFINE[name], nn.Linear(4, 2)))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv3d(1, 2, 2), (1, 4, 4, 4)),
        (nn.Conv1d(1, 2, 2, padding="same"), (1, 4)),
        (nn.Softplus(beta=2, threshold=5), (4,)),
        (nn.Softshrink(), (4,)),
        (nn.LSTM(4, 2, bidirectional=True, batch_first=True), (3, 4)),
        (nn.GRU(4, 2), (3, 4)),
        (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 4, 4)),
        (nn.Conv2d(1, 1, 2, padding="same"), (1, 4, 4)),
        (nn.MaxPool2d(2, return_indices=True), (1, 4, 4)),
        (nn.AvgPool2d(3, stride=2, ceil_mode=True), (1, 4, 4)),
        (nn.AvgPool2d(3, padding=1, count_include_pad=False), (1, 4, 4)),
        (nn.AdaptiveAvgPool2d(3), (1, 4, 4)),
        (nn.LayerNorm(4), (4,)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers_without_a_rule_are_refused_not_approximated(layer: nn.Module, shape: tuple[int, ...]) -> None:
    refusal(layer, shape)


def test_final_states_of_a_recurrent_layer_are_refused_with_a_hint_at_its_outputs() -> None:
    module = Fn(lambda m, x: m.b(m.a(x)[1][0][0]), nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2))
    assert "only the first 1 results" in refusal(module, (2, 4))


def test_a_wrong_input_shape() -> None:
    assert "shape" in refusal(small(), (5,))


def test_a_constant_output_is_refused() -> None:
    refusal(Fn(lambda m, x: m.a.weight * 2, nn.Linear(4, 3)))


def test_an_output_in_a_dictionary_is_refused_or_taken() -> None:
    try:
        net = pc.capture(Fn(lambda m, x: {"logits": m.a(x)}, nn.Linear(4, 3)), (4,))
    except pc.PolycertError:
        return
    assert net.output_shape == (3,)


def test_an_integer_constant_is_a_number_like_any_other() -> None:
    module = Fn(lambda m, x: m.a(x + torch.tensor(2)), nn.Linear(4, 3))
    net, x = pc.capture(module, (4,)), torch.rand(2, 4)
    found = pc.bounds(net, x, pc.Ball(2, 0.0))
    torch.testing.assert_close(found.lower, module(x), rtol=1e-5, atol=1e-5)


def write_view(hidden: Tensor) -> Tensor:
    F.relu_(hidden.view(-1, 2, 2))
    return hidden


def write_behind_a_view(hidden: Tensor) -> Tensor:
    view = hidden.view(-1, 4)
    F.relu_(hidden)
    return view


def write_beside_a_view(hidden: Tensor) -> Tensor:
    first, second = hidden.view(-1, 2, 2), hidden.view(-1, 4)
    F.relu_(first)
    return second


def write_and_use_before(hidden: Tensor) -> Tensor:
    before = hidden.detach()
    hidden.mul_(2)
    return before + hidden


def write_twice(hidden: Tensor) -> Tensor:
    flat = hidden.reshape(-1, 4)
    flat += 1
    return F.relu_(hidden.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize(
    "write", [write_view, write_behind_a_view, write_beside_a_view, write_and_use_before, write_twice]
)
def test_writing_into_a_view_is_refused_or_followed(write: Callable[[Tensor], Tensor]) -> None:
    """A write through one name changes the tensor behind another, which a trace may not show.

    The weights are positive, so that on inputs in [0, 1] no activation cuts anything off.
    """
    module = Fn(lambda m, x: m.b(write(m.a(x))), nn.Linear(4, 4), nn.Linear(4, 2))
    with torch.no_grad():
        module.a.weight.abs_()
        module.a.bias.abs_()
    x = -torch.rand(3, 4) * 3
    try:
        net = pc.capture(module, (4,))
    except pc.PolycertError:
        return
    with torch.no_grad():
        torch.testing.assert_close(net(x), module(x))


EXACT_CONSTANTS: dict[str, Callable[[Fn, Tensor], Tensor]] = {
    "transposed": lambda m, x: x @ m.a.weight.T,
    "matrix-transposed": lambda m, x: x @ m.a.weight.mT,
    "literal": lambda m, x: m.a((x - torch.tensor([0.1, 0.2, 0.3, 0.4])) / torch.tensor(0.3)),
    "moved": lambda m, x: m.a(x) + m.a.bias.to(x.device),
    "cast": lambda m, x: m.a(x) + m.a.bias.to(x.dtype),
    "negated": lambda m, x: m.a(x) * (-m.a.bias),
    "sliced": lambda m, x: m.a(x) + m.a.bias[:3],
    "ones": lambda m, x: m.a(x - torch.ones(4)),
}


@pytest.mark.parametrize("name", EXACT_CONSTANTS)
def test_constants_that_are_only_rearranged_can_be_certified(name: str) -> None:
    """Nothing is rounded in a transpose, a sign, a literal or a move: rigour has no reason to refuse them."""
    module = Fn(EXACT_CONSTANTS[name], nn.Linear(4, 3))
    assert len(pc.certify(module, torch.rand(2, 4), None, pc.Ball(2, 0.01), rigorous=True)) == 2


class Residual(nn.Module):
    """In-place additions and activations as in common residual nets."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.relu = nn.Linear(4, 4), nn.Linear(4, 2), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.relu(self.a(x))
        out = self.a(hidden)
        out += hidden
        out = self.relu(out)
        out *= 2
        return self.b(out)


def test_in_place_residuals_are_followed() -> None:
    module = Residual()
    net, x = pc.capture(module, (4,)), torch.randn(5, 4)
    torch.testing.assert_close(net(x), module(x))


# --- the graph -----------------------------------------------------------------------------------------------------


def test_only_what_the_output_needs_is_kept() -> None:
    module = Fn(lambda m, x: m.b(m.a(x).relu()) if m.c(x) is not None else x, *(nn.Linear(4, 4) for _ in range(3)))
    graph = pc.capture(module, (4,)).bind()
    assert isinstance(graph, Graph)
    assert [type(node.op).__name__ for node in graph.nodes] == ["NoneType", "MatMul", "Relu", "MatMul"]
    assert graph.ancestors(graph.output) == (3, 2, 1, 0)
    assert graph.activations == (2,)


def test_other_outputs_go_through_bounds() -> None:
    """A single logit, a picture, rows of the output."""
    x = torch.rand(2, 1, 4, 4, dtype=F64)
    ball = pc.Ball(2, 0.1)
    picture = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1)).double()
    found = pc.bounds(picture, x, ball)
    assert found.lower.shape == (2, 1, 4, 4)
    assert bool((found.lower <= picture(x)).all())
    assert bool((picture(x) <= found.upper).all())
    single = nn.Sequential(nn.Flatten(), nn.Linear(16, 1)).double()
    assert pc.bounds(single, x, ball).lower.shape == (2, 1)
    three = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()
    spec = torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, 1.0]], dtype=F64)
    rows = pc.bounds(three, x, ball, spec=spec)
    value = three(x) @ spec.T
    assert rows.lower.shape == (2, 2)
    assert bool((rows.lower <= value).all())
    each = pc.bounds(three, x, ball, spec=torch.stack([spec, -spec]))
    torch.testing.assert_close(each.lower[1], -rows.upper[1])
    with pytest.raises(pc.PolycertError, match="spec"):
        pc.bounds(three, x, ball, spec=torch.zeros(2, 4))


def test_weights_that_are_no_numbers_are_named() -> None:
    model = nn.Linear(3, 2)
    model.weight.data[0, 0] = math.nan
    with pytest.raises(pc.PolycertError, match="NaN or infinite"):
        pc.capture(model, (3,))


@pytest.mark.parametrize("imported", [False, True])
def test_after_a_certificate_gradients_still_flow(imported: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3))
    net: pc.Network = pc.capture(nn.Sequential(*layers), (1, 8, 8))
    if imported:
        pc.export(net, tmp_path / "net.onnx")
        net = pc.load(tmp_path / "net.onnx")
    # Inputs that float32 does not hold, so that proofs need both types.
    x, y, ball = (
        torch.rand(4, 1, 8, 8, dtype=torch.float64),
        torch.tensor([0, 1, 2, 0]),
        pc.Ball(float("inf"), 0.02, 0.0, 1.0),
    )
    for rigorous in (False, True):
        certs = pc.certify(net, x, y, ball, rigorous=rigorous)
        certs.radius.add_(0.0)  # an ordinary tensor, which may be changed
        assert not any(part.is_inference() for part in (certs.radius, certs.margin, certs.certified, certs.nearest))
        assert len(pc.attack(net, x, y, ball, steps=2, restarts=1).success) == 4
    for dtype in (torch.float32, torch.float64):
        graph = net.bind(dtype)
        leaf = x.detach().to(dtype, copy=True).requires_grad_()
        graph.forward(leaf).sum().backward()
        assert leaf.grad is not None
    if not imported:
        pc.bounds(net, x, ball).lower.sum().backward()
        assert layers[0].weight.grad is not None
