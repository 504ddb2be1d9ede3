"""Modules whose captured graph was not the module: each was certified, or was not refused, before it was mended.

Their hidden units are off for inputs in [0, 1] (or for all but huge inputs), so that looking at outputs shows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polycert as pc
from polycert.graph.arguments import check_read
from polycert.rules import RULES, Call, Value
from polycert.rules.affine import MatMul
from polycert.rules.convex import Softplus
from polycert.rules.piecewise_linear import LeakyRelu
from polycert.sets.interval import Interval, Rounding
from tests.helpers.cases import Fn

FAR = 1e30  # no sample reaches it


def layers() -> tuple[nn.Linear, nn.Linear]:
    """Units that are off on [0, 1], and their sum as the score of class 0."""
    first, last = nn.Linear(2, 4), nn.Linear(4, 2)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]]))
        first.bias.fill_(-3.0)
        last.weight.copy_(torch.tensor([[1.0] * 4, [0.0] * 4]))
        last.bias.copy_(torch.tensor([0.5, 0.0]))
    return first, last


def hidden(last: Callable[[Fn, Tensor], Tensor], **extra: nn.Module) -> nn.Module:
    """`last` of the hidden units."""
    module = Fn(lambda m, x: last(m, F.relu(m.a(x))), *layers())
    for name, part in extra.items():
        module.add_module(name, part)
    return module.eval()


def refusal(module: nn.Module, shape: tuple[int, ...] = (2,)) -> str:
    with pytest.raises(pc.PolycertError) as caught:
        pc.capture(module, shape)
    return str(caught.value)


def followed_or_refused(module: nn.Module, shape: tuple[int, ...] = (2,)) -> str:
    """The refusal, or nothing if the graph gives what the module gives."""
    try:
        net = pc.capture(module, shape)
    except pc.PolycertError as error:
        return str(error)
    x = torch.randn(6, *shape, generator=torch.Generator().manual_seed(3)) * 5
    with torch.no_grad():
        torch.testing.assert_close(net(x), module(x.clone()))
    return ""


# --- arguments -----------------------------------------------------------------------------------------------------


IGNORED: dict[str, tuple[str, nn.Module]] = {
    "addmm-alpha": ("alpha=-1", hidden(lambda m, h: torch.addmm(m.b.bias, h, m.b.weight.t(), alpha=-1))),
    "addmm-beta": ("beta=2", hidden(lambda m, h: torch.addmm(m.b.bias, h, m.b.weight.t(), beta=2))),
    "dropout": ("train=True", hidden(lambda m, h: m.b(F.dropout(h, 0.9, True)))),
    "feature-dropout": ("train=True", hidden(lambda m, h: m.b(torch.feature_dropout(h, 0.9, True)))),
    "alpha-dropout": ("train=True", hidden(lambda m, h: m.b(F.alpha_dropout(h, 0.9, True)))),
    "batch-norm": (
        "training=True",
        hidden(lambda m, h: m.b(F.batch_norm(h, torch.zeros(4), torch.ones(4), training=True))),
    ),
    "batch-norm-untracked": (
        "training=True",
        hidden(lambda m, h: m.b(m.n(h)), n=nn.BatchNorm1d(4, track_running_stats=False)),
    ),
    "softplus": ("threshold=2.0", hidden(lambda m, h: m.b(F.softplus(h - 9, 1, 2.0)))),
    "sum-dtype": ("torch.float16", hidden(lambda m, h: m.b(h + h.sum(1, keepdim=True, dtype=torch.float16)))),
}  # fmt: skip


@pytest.mark.parametrize("name", IGNORED)
def test_an_argument_that_no_rule_reads_is_refused(name: str) -> None:
    said, module = IGNORED[name]
    assert said in refusal(module)


def test_a_rule_is_held_to_the_schema() -> None:
    """A new rule is safe by default: what it does not look at must be at its default."""
    like = torch.zeros(0)
    target = torch.ops.aten.leaky_relu.default
    blind = Call(str(target), (Value(0), 0.3), {}, ((2,),), (2,), like)
    with pytest.raises(ValueError, match=r"negative_slope=0\.3"):
        check_read(target, blind)
    check_read(target, Call(str(target), (Value(0), 0.01), {}, ((2,),), (2,), like))
    seeing = Call(str(target), (Value(0), 0.3), {}, ((2,),), (2,), like)
    RULES[str(target)].build(seeing)
    check_read(target, seeing)
    add = Call("aten.add.Tensor", (Value(0), Value(1)), {}, ((2,), (2,)), (2,), like)
    with pytest.raises(ValueError, match="other=a tensor"):
        check_read(torch.ops.aten.add.Tensor, add)


def test_random_constants_are_refused() -> None:
    assert "random" in refusal(hidden(lambda m, h: m.b(h) + F.relu(m.b(h) - FAR) * torch.rand(2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softplus_holds_for_torchs_own_right_of_its_threshold(dtype: torch.dtype) -> None:
    z = torch.linspace(19.9, 21, 2001, dtype=dtype)
    op, rounding = Softplus((1,)), Rounding(dtype, 4)
    real = z.double() + (-z.double()).exp().log1p()
    for value in (F.softplus(z).double(), real):
        for slope in (0.0, 0.5, 1.0):
            low, high = op.offset_range(torch.full_like(z, slope), z - 0.05, z + 0.05)
            error = rounding.library(op.sizes(torch.full_like(z, slope), Interval(z - 0.05, z + 0.05)))
            assert bool(((low - error).double() <= value - slope * z.double()).all())
            assert bool(((high + error).double() >= value - slope * z.double()).all())
    bottom = op.interval(Interval(z, z), rounding=rounding).lower
    assert bool((bottom.double() <= F.softplus(z).double()).all())


def test_a_negative_running_variance_is_refused() -> None:
    norm = nn.BatchNorm1d(2).eval()
    net = pc.capture(nn.Sequential(norm, nn.Linear(2, 2)), (2,))
    norm.running_var.fill_(-9.9999e-6)
    with pytest.raises(pc.PolycertError, match="negative running variance"):
        pc.certify(net, torch.zeros(1, 2), None, pc.Ball(eps=0.1))
    assert "negative running variance" in refusal(nn.Sequential(norm, nn.Linear(2, 2)))


# --- writes --------------------------------------------------------------------------------------------------------


def without_gradients(m: Fn, h: Tensor) -> Tensor:
    with torch.no_grad():
        F.dropout(h, 0.5, False).neg_()
    result: Tensor = m.b(h)
    return result


def beside(write: Callable[[Tensor], object]) -> nn.Module:
    """A write whose result is thrown away."""

    def last(m: Fn, h: Tensor) -> Tensor:
        write(h)
        result: Tensor = m.b(h)
        return result

    return hidden(last)


WRITES: dict[str, nn.Module] = {
    "dropout": beside(lambda h: F.dropout(h, 0.5, False).neg_()),
    "alpha-dropout": beside(lambda h: F.alpha_dropout(h, 0.5, False).neg_()),
    "view-as": beside(lambda h: h.view_as(h).neg_()),
    "ravel": beside(lambda h: h.ravel().neg_()),
    "swapaxes": beside(lambda h: h.swapaxes(0, 1).neg_()),
    "movedim": beside(lambda h: h.movedim(0, 1).neg_()),
    "as-strided": beside(lambda h: torch.as_strided(h, h.shape, h.stride()).neg_()),
    "unfold": beside(lambda h: h.unfold(1, 2, 2).neg_()),
    "diagonal": beside(lambda h: h.unsqueeze(2).diagonal(0, 1, 2).neg_()),
    "contiguous": beside(lambda h: h.contiguous().neg_()),
    "to": beside(lambda h: h.to(torch.float32).neg_()),
    "real": beside(lambda h: torch.real(h).neg_()),
    "list": beside(lambda h: torch._foreach_neg_([h])),
    "entry": beside(lambda h: h[:, 0].fill_(-7.0)),
    "itself": beside(lambda h: h.mul_(-1)),
    "without-gradients": hidden(without_gradients),
    "activation": hidden(lambda m, h: m.b(m.r(m.d(h - 1)) + h), d=nn.Dropout(0.5), r=nn.ReLU(inplace=True)),
    "addition": hidden(lambda m, h: m.b(m.d(h).mul_(-2) + h), d=nn.Dropout(0.5)),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_through_another_name_is_refused_or_followed(name: str) -> None:
    followed_or_refused(WRITES[name])


def test_a_write_whose_result_is_not_used_is_followed() -> None:
    assert followed_or_refused(WRITES["itself"]) == ""


def test_a_write_that_no_one_else_sees_is_followed() -> None:
    """Dropout in evaluation before an activation in place is common, and harmless."""
    parts = nn.Linear(2, 4), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(4, 2)
    assert followed_or_refused(nn.Sequential(*parts).eval()) == ""


class Counting(nn.Module):
    """A module that counts its calls, and may use the count."""

    def __init__(self, uses: float) -> None:
        super().__init__()
        self.layer, self.uses = nn.Linear(2, 2), uses
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        found: Tensor = self.layer(x)
        return found + self.uses * self.calls * F.relu(found - FAR) if self.uses else found


def test_a_state_that_changes_with_every_call_is_refused_if_it_is_used() -> None:
    assert "its own tensor" in refusal(Counting(1.0))
    assert pc.capture(Counting(0.0), (2,)).output_shape == (2,)


# --- batches and scales --------------------------------------------------------------------------------------------


@torch.jit.script
def script_doubles(h: Tensor) -> Tensor:
    """The batch's size, read where torch functions cannot be watched."""
    return h * h.shape[0]


BATCHES: dict[str, Callable[[Fn, Tensor], Tensor]] = {
    "shape": lambda m, h: h * h.shape[0],
    "size": lambda m, h: h * h.size(0),
    "len": lambda m, h: h * len(h),
    "entries": lambda m, h: h * h.numel(),
    "iteration": lambda m, h: h * sum(1 for _ in h),
    "tensor": lambda m, h: h * torch.tensor(float(h.shape[0])),
    "ones": lambda m, h: h * torch.ones(h.shape[0]).sum(),
    "branch": lambda m, h: h * 2 if len(h) > 3 else h,
    "script": lambda m, h: script_doubles(h),
}


@pytest.mark.parametrize("name", BATCHES)
def test_the_size_of_the_batch_is_refused_where_no_sample_shows_it(name: str) -> None:
    refusal(hidden(lambda m, h: m.b(h + BATCHES[name](m, F.relu(h - FAR)))))


def test_shapes_that_name_the_batch_are_no_matter() -> None:
    assert followed_or_refused(hidden(lambda m, h: m.b(h.view(h.shape[0], 2, -1).reshape(len(h), -1)))) == ""
    assert followed_or_refused(hidden(lambda m, h: m.b(h.unsqueeze(2).squeeze()))) == ""


SCALES: dict[str, nn.Module] = {
    "far": hidden(lambda m, h: m.b(h * (2 if bool(torch.jit.is_scripting()) else 1)).relu()),
    "overflows": Fn(lambda m, x: m.a(x).exp(), nn.Linear(2, 3)),
    "overflows-inside": Fn(lambda m, x: 1 - m.a(x.square().square().square()), nn.Linear(2, 3)),
    "small": Fn(lambda m, x: m.a(x) * 1e-6, nn.Linear(2, 3)),
}


@pytest.mark.parametrize("name", SCALES)
def test_networks_of_all_scales_are_accepted(name: str) -> None:
    assert pc.capture(SCALES[name].eval(), (2,)).input_shape == (2,)


class Hidden(nn.Module):
    """A forward that sees whether it is being traced, which no law about the trace can show."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change, (self.a, self.b) = change, layers()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.b(F.relu(self.a(x)))
        return found if torch.compiler.is_compiling() else self.change(found)


@pytest.mark.parametrize("change", [lambda y: y + F.relu(y - 9), lambda y: y * 1.001], ids=["far", "near"])
def test_the_graph_is_compared_on_inputs_of_many_sizes(change: Callable[[Tensor], Tensor]) -> None:
    assert "does not reproduce" in refusal(Hidden(change))


def test_small_outputs_are_compared_by_their_own_size() -> None:
    module = Hidden(lambda y: y * 1.01)
    with torch.no_grad():
        module.b.weight.mul_(1e-6)
        module.b.bias.mul_(1e-6)
    assert "does not reproduce" in refusal(module)


# --- inputs --------------------------------------------------------------------------------------------------------


def test_whole_numbers_that_float32_does_not_hold_are_decided_in_float64() -> None:
    """At the point itself the margin is -0.5; rounded to float32 it is +0.5."""
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2))
        layer.bias.copy_(torch.tensor([0.5, 0.0]))
    x = torch.tensor([[2**24, 2**24 + 1]])
    label, ball = torch.tensor([0]), pc.Ball(eps=0.0)
    assert not bool(pc.certify(layer, x, label, ball).certified)
    assert bool(pc.certify(layer, x, torch.tensor([1]), ball).certified)
    assert bool(pc.certify(layer, x.to(torch.int32), torch.tensor([1]), ball).certified)
    for far in (2**53 + 1, -(2**53) - 1, -(2**63)):
        with pytest.raises(pc.PolycertError, match="2\\^53"):
            pc.certify(layer, torch.tensor([[far, 0]]), label, ball)
    with pytest.raises(pc.PolycertError, match="2\\^53"):
        pc.certify(layer, torch.tensor([[2**64 - 1, 0]], dtype=torch.uint64), label, ball)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.uint16, torch.uint32, torch.int64])
def test_small_whole_numbers_are_inputs_of_the_networks_type(dtype: torch.dtype) -> None:
    layer, x = nn.Linear(2, 2), torch.tensor([[1, 0]])
    found = pc.certify(layer, x.to(dtype), None, pc.Ball(eps=0.1))
    assert torch.equal(found.radius, pc.certify(layer, x.float(), None, pc.Ball(eps=0.1)).radius)
    assert math.isfinite(float(found.margin))


ACROSS = {  # what the hidden units of a sample take from its batch mates
    "two samples added": lambda h: (h[:, :2].unsqueeze(1) + h[:, :2]).mean(1),
    "two samples multiplied": lambda h: (h[:, :2].unsqueeze(1) * h[:, :2]).mean(1),
    "a column and a list": lambda h: (h[:, :1] + h[:, 0]).mean(1, keepdim=True),
    "one for all": lambda h: h[:, :2].expand(h.shape[0], -1, -1)[:, 0],
    "the batch turned round": lambda h: h[:, 0].flip(-1).unsqueeze(1),
    "the batch moved on": lambda h: F.pad(h[:, 0], (1, -1)).unsqueeze(1),
    "a softmax over the batch": lambda h: h[:, 0].softmax(-1).unsqueeze(1),
    "a size that may be the batch's": lambda h: centred(h[:, :3].reshape(3, -1)).reshape(-1, 3)[:, :2],
}


def centred(values: Tensor) -> Tensor:
    return values - values.mean(1, keepdim=True)


@pytest.mark.parametrize("name", ACROSS)
def test_hidden_units_that_mix_samples_are_refused(name: str) -> None:
    """They are off at every point at which the module itself is looked at."""
    first = nn.Linear(2, 4)
    nn.init.ones_(first.weight)
    nn.init.constant_(first.bias, -1e7)
    module = Fn(lambda m, x: x + ACROSS[name](F.relu(m.a(x))), first)
    assert "batch" in refusal(module)


def test_a_number_for_each_sample_is_a_value_like_others() -> None:
    assert not followed_or_refused(Fn(lambda m, x: (2 * x[:, 0] - x[:, 1] / 3).unsqueeze(1)))
    net = pc.capture(Fn(lambda m, x: 2 * x[:, 0] - x[:, 1]), (2,))
    bounds = pc.bounds(net, torch.tensor([[0.25, 0.5]]), pc.Ball(norm=float("inf"), eps=0.125))
    assert bounds.lower.item() == pytest.approx(-0.375)
    assert bounds.upper.item() == pytest.approx(0.375)


@pytest.mark.parametrize("layer", [nn.AvgPool2d(2), nn.MaxPool2d(2), nn.Softmax2d()])
def test_layers_that_take_a_batch_for_channels_are_refused_or_followed(layer: nn.Module) -> None:
    followed_or_refused(nn.Sequential(layer, nn.Flatten(), nn.ReLU()), (4, 4))


def test_a_rule_that_misreads_its_call_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind units that are off at every point at which the module itself is looked at."""
    first = nn.Linear(2, 2)
    nn.init.ones_(first.weight)
    nn.init.constant_(first.bias, -1e7)
    module = Fn(lambda m, x: x + F.leaky_relu(F.relu(m.a(x)) - 1, 0.5), first)
    assert not followed_or_refused(module)

    name = "aten.leaky_relu.default"

    def misread(call: Call) -> LeakyRelu:
        call.get(1, "negative_slope")
        return LeakyRelu(call.out_shape, leak=0.49)

    monkeypatch.setitem(RULES, name, replace(RULES[name], build=misread))
    assert "leaky_relu" in refusal(module)


def test_a_rule_that_misreads_weights_of_one_number_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are others after training."""
    module = nn.Sequential(nn.Linear(2, 2))
    nn.init.zeros_(module[0].bias)
    assert not followed_or_refused(module)

    def misread(call: Call) -> MatMul:
        call.get(2, "bias")
        return MatMul(call.get(1, "weight"), None, call.in_shapes[0], call.out_shape)

    name = "aten.linear.default"
    monkeypatch.setitem(RULES, name, replace(RULES[name], build=misread))
    assert "linear" in refusal(module)


def test_a_compiled_module_is_refused() -> None:
    compiled = torch.jit.script(nn.Sequential(nn.Linear(2, 2)).eval())
    assert "torch.jit" in refusal(compiled)
    assert "torch.jit" in refusal(torch.jit.freeze(compiled))


@pytest.mark.parametrize(
    ("said", "drawn"),
    [
        ("nothing was written", lambda: torch.empty(2)),
        ("random generator", lambda: torch.randn(2, generator=torch.Generator().manual_seed(0))),
    ],
)
def test_constants_that_are_not_the_same_each_time_are_refused(said: str, drawn: Callable[[], Tensor]) -> None:
    assert said in refusal(Fn(lambda m, x: m.a(x) + drawn(), nn.Linear(2, 2)))


def test_a_module_is_captured_outside_of_autocast() -> None:
    layer, x = nn.Linear(2, 2), torch.rand(3, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = pc.certify(layer, x, None, pc.Ball(eps=0.1))
    assert torch.equal(inside.margin, pc.certify(layer, x, None, pc.Ball(eps=0.1)).margin)


class Rotated(nn.Module):
    """Zero for all but huge inputs; the real part of what it computes on the way is always zero."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turn", torch.tensor(1j))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu((x * self.turn).abs() - 2e6)


def test_complex_numbers_on_the_way_are_refused() -> None:
    assert "complex64" in refusal(Rotated())


class Cell(nn.Module):
    """A recurrent cell, from a state that depends on its input, with one of its two offsets."""

    def __init__(self, kind: str, place: int) -> None:
        super().__init__()
        self.kind, self.place = kind, place
        rows = 2 * {"lstm": 4, "gru": 3}.get(kind, 1)
        self.a, self.b = (nn.Parameter(torch.randn(rows, 2)) for _ in range(2))
        self.offset = nn.Parameter(torch.zeros(rows))

    def forward(self, x: Tensor) -> Tensor:
        offsets = [self.offset if place == self.place else None for place in (0, 1)]
        state = (x.tanh(), x.tanh()) if self.kind == "lstm" else x.tanh()
        made = getattr(torch, f"{self.kind}_cell")(x, state, self.a, self.b, *offsets)
        return made[0] if self.kind == "lstm" else made


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_an_offset_that_was_zero_when_captured_counts(kind: str, place: int) -> None:
    """The cell's other offset is left out; what training makes of this one must show."""
    torch.manual_seed(0)
    module = Cell(kind, place)
    net = pc.capture(module, (2,))
    nn.init.normal_(module.offset)
    x = torch.randn(5, 2)
    with torch.no_grad():
        torch.testing.assert_close(net(x), module(x))
