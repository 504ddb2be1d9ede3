"""Affine ops: linear, constant scale and shift (batch norm in evaluation), sums of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polycert.forms import Dense, Differences, Form, Identity, Selected, Shape
from polycert.rules.conv_adjoint import RowProduct
from polycert.rules.examples import Example, Fn, classified, conv, op_named, through, with_statistics
from polycert.rules.op import Affine, Linear, OnnxFile
from polycert.rules.registry import Call, Value, rule
from polycert.runtime.execution import apply
from polycert.sets.interval import Interval, Rounding

WEIGHTS_AT_ONCE = 2**20  # entries of the rows of weights whose absolute values are taken at a time
LARGEST_EPS = 1e30  # in a batch norm: float32 holds it, and its sum with any variance


@dataclass(frozen=True, eq=False)
class MatMul(Affine):
    """`x W^T + b` over the last axis."""

    weight: Tensor  # [out, in]
    offset: Tensor | None  # [out]
    in_shape: Shape
    out_shape: Shape

    @property
    def terms(self) -> tuple[int, int]:
        """One term for each input forward, and for each output backward."""
        return (self.weight.shape[1], self.weight.shape[0])

    @property
    def bias(self) -> Tensor | None:
        """One offset per output, the same along the other axes."""
        return None if self.offset is None else self.offset.expand(1, *self.out_shape)

    def push(self, *columns: Tensor) -> Tensor:
        """Return `x W^T`."""
        return F.linear(columns[0], self.weight)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return `x W^T + b`, computed at once."""
        return F.linear(inputs[0], self.weight, self.offset)

    def absolute(self, values: Tensor) -> Tensor:
        """Return `x |W|^T`.

        It takes a few rows of the weights at a time, because a copy of all of them would not fit into the cache.
        """
        step = max(1, WEIGHTS_AT_ONCE // self.weight.shape[1])
        return torch.cat([F.linear(values, rows.abs()) for rows in self.weight.split(step)], -1)

    def adjoint(self, rows: Tensor) -> Tensor:
        """Return `a W`."""
        found: Tensor = apply(RowProduct, rows.flatten(0, -2), self.weight)
        return found.reshape(*rows.shape[:-1], -1)

    def pull_identity(self, form: Identity) -> Form:
        """Return the weights themselves, shared by all samples."""
        if len(self.in_shape) > 1:
            return form.dense().pull(self)
        return Dense(self.weight.unsqueeze(0) if form.factor is None else self.weight * form.factor.unsqueeze(2))

    def pull_selected(self, form: Selected) -> Form:
        """Return the chosen rows of the weights."""
        return Dense(form.times(self.weight[form.index])) if len(self.in_shape) == 1 else form.dense().pull(self)

    def pull_differences(self, form: Differences) -> Form:
        """Return differences of rows of the weights (elision of the last layer)."""
        return Dense(self.weight[form.label].unsqueeze(1) - self.weight[form.others])

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """Write a product, and a sum if there is an offset."""
        product = file.op("MatMul", inputs[0], file.store(self.weight.T))
        return product if self.offset is None else file.op("Add", product, file.store(self.offset))


@dataclass(frozen=True, eq=False)
class Mean(MatMul):
    """A mean over the last axis. Its weights 1 / n are rounded numbers."""

    stored_weights: bool = False


@dataclass(frozen=True, eq=False)
class Elementwise(Affine):
    """`factor x + shift` with constants: scaling, shifts, normalisation, batch norm in evaluation."""

    factor: Tensor | None  # [1, *shape]
    shift: Tensor | None  # [1, *shape]
    in_shape: Shape
    training: bool = False  # a batch norm whose module is in training mode
    shift_magnitude: Tensor | None = None  # sizes of the numbers that the shift was computed from
    stored_weights: bool = False

    @property
    def out_shape(self) -> Shape:  # type: ignore[override]
        """The shape of the input."""
        return self.in_shape

    @property
    def terms(self) -> tuple[int, int]:
        """One term if there is a factor, else none."""
        return (0, 0) if self.factor is None else (1, 1)

    @property
    def bias(self) -> Tensor | None:
        """The shift."""
        return self.shift

    @property
    def bias_magnitude(self) -> Tensor | None:
        """The size of the shift, or of the parts that it was computed from: these may have cancelled."""
        return super().bias_magnitude if self.shift_magnitude is None else self.shift_magnitude

    def push(self, *columns: Tensor) -> Tensor:
        """Return `factor x`."""
        return columns[0] if self.factor is None else columns[0] * self.factor

    def absolute(self, values: Tensor) -> Tensor:
        """Return `|factor| x`, and what underflow may have taken from a computed factor."""
        return values if self.factor is None else values * (self.factor.abs() + self._lost)

    @property
    def _lost(self) -> float:
        """The absolute error of a computed factor beyond its relative error: twice the smallest normal number."""
        return 0.0 if self.factor is None or self.stored_weights else 2 * torch.finfo(self.factor.dtype).tiny

    def interval(self, *inputs: Interval, rounding: Rounding | None = None) -> Interval:
        """Return the interval of an affine op, widened by what underflow may have taken from the factor."""
        found = super().interval(*inputs, rounding=rounding)
        if rounding is None or self._lost == 0:
            return found
        error = self._lost * inputs[0].magnitude
        return Interval(found.lower - error, found.upper + error)

    def pull_error(self, form: Form, magnitudes: Sequence[Tensor], rounding: Rounding) -> Tensor | None:
        """Return the error of an affine op, and what underflow may have taken from the factor."""
        error = super().pull_error(form, magnitudes, rounding)
        return error if error is None else error + self._lost * magnitudes[0]

    def adjoint(self, rows: Tensor) -> Tensor:
        """Return `factor a`: a diagonal matrix is its own transpose."""
        return self.push(rows)

    def pull(self, form: Form) -> list[Form]:
        """Scale the form by the factor."""
        return [form if self.factor is None else form.scale(self.factor)]

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """Write a product with the factor, then a sum with the shift."""
        value = inputs[0] if self.factor is None else file.op("Mul", inputs[0], file.store(self.factor))
        return value if self.shift is None else file.op("Add", value, file.store(self.shift))


@dataclass(frozen=True, eq=False)
class Add(Linear):
    """The sum or difference of two nodes of one shape, such as a residual connection."""

    out_shape: Shape
    signs: tuple[int, int]

    @property
    def bias(self) -> Tensor | None:
        """None: the op has no constant part."""
        return None

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the sum or difference."""
        return inputs[0] + inputs[1] if self.signs[1] > 0 else inputs[0] - inputs[1]

    def push(self, *columns: Tensor) -> Tensor:
        """Return the sum or difference."""
        return self.forward(*columns)

    def interval(self, *inputs: Interval, rounding: Rounding | None = None) -> Interval:
        """Return the sum of the intervals; a difference negates the second one first."""
        first, second = inputs
        if self.signs[1] < 0:
            second = Interval(-second.upper, -second.lower)
        total = Interval(first.lower + second.lower, first.upper + second.upper)
        if rounding is None:
            return total
        error = rounding.gamma(1) * (first.magnitude + second.magnitude) + rounding.tiny
        return Interval(total.lower - error, total.upper + error)

    def magnitude(self, *inputs: Tensor) -> Tensor:
        """Return the sum of the sizes."""
        return inputs[0] + inputs[1]

    def widen(self, *radii: Tensor) -> Tensor:
        """Return the sum of the radii."""
        return radii[0] + radii[1]

    @property
    def forward_terms(self) -> int:
        """Two: the operands of the sum."""
        return 2

    @property
    def backward_terms(self) -> int:
        """Zero: nothing is computed."""
        return 0

    def pull(self, form: Form) -> Sequence[Form | None]:
        """Return the same form for both inputs, negated for the second one of a difference."""
        return [form if sign > 0 else form.negative() for sign in self.signs]

    def pull_error(self, form: Form, magnitudes: Sequence[Tensor], rounding: Rounding) -> Tensor | None:
        """Return None: nothing is rounded."""
        return None

    def write(self, file: OnnxFile, inputs: Sequence[str]) -> str:
        """Write a sum or a difference."""
        return file.op("Add" if self.signs[1] > 0 else "Sub", *inputs)


@rule(
    "aten.linear.default",
    family="affine",
    onnx=("Gemm",),
    layers={"linear": nn.Linear},
    examples=(
        Example("linear", (6,), lambda: nn.Linear(6, 4)),
        Example("linear-no-bias", (6,), lambda: classified((6,), nn.Linear(6, 4, bias=False), nn.ReLU(), classes=2)),
        Example("linear-last-axis", (3, 4), lambda: classified((3, 4), nn.Linear(4, 3), nn.ReLU())),
    ),
)
def _linear(call: Call) -> MatMul:
    return MatMul(call.get(1, "weight"), call.get(2, "bias"), call.in_shapes[0], call.out_shape)


def times_matrix(call: Call) -> MatMul:
    """Build `x @ constant`."""
    x, weight = call.args[:2]
    if not isinstance(x, Value) or not isinstance(weight, Tensor) or weight.dim() != 2:
        raise ValueError("only a product with a constant matrix on the right is affine")
    return MatMul(weight.T, None, call.in_shapes[0], call.out_shape)


@rule(
    "aten.addmm.default",
    family="affine",
    examples=(
        Example(
            "addmm",
            (3,),
            lambda: Fn(lambda m, x: m.b(torch.addmm(m.a.bias, x, m.a.weight).relu()), nn.Linear(3, 3), nn.Linear(3, 2)),
            slow=True,
        ),
    ),
)
def _addmm(call: Call) -> MatMul:
    bias, x, weight = call.args[:3]
    if not isinstance(x, Value) or not isinstance(weight, Tensor) or not isinstance(bias, Tensor):
        raise ValueError("only a product with a constant matrix on the right is affine")
    return MatMul(weight.T, bias, call.in_shapes[0], call.out_shape)


_NATIVE = "aten._native_batch_norm_legit_no_training.default"


@rule(
    "aten.batch_norm.default",
    _NATIVE,
    family="affine",
    onnx=("BatchNormalization",),
    layers={"batch_norm2d": nn.BatchNorm2d},
    examples=(
        Example(
            "batch-norm-1d",
            (5,),
            lambda: classified((5,), nn.Linear(5, 4), with_statistics(nn.BatchNorm1d(4)), nn.ReLU()),
        ),
        Example(
            "batch-norm-2d",
            (2, 4, 4),
            lambda: classified((2, 4, 4), nn.Conv2d(2, 3, 3, padding=1), with_statistics(nn.BatchNorm2d(3)), nn.ReLU()),
        ),
        Example(
            "batch-norm-first",
            (2, 3, 3),
            lambda: nn.Sequential(with_statistics(nn.BatchNorm2d(2)), conv((2, 3, 3), 2, 2)),
        ),
        through(
            "batch-norm-native",
            (4,),
            lambda z: op_named(_NATIVE)(
                z, *(torch.full((4,), v, dtype=z.dtype) for v in (1.5, 0.25, -0.5, 0.75)), 0.1, 1e-5
            )[0],
            slow=True,
        ),
    ),
)
def _batch_norm(call: Call) -> Elementwise:
    _check_statistics(call)
    weight, bias, mean, variance = call.args[1:5]
    eps = _eps_of(call)
    factor = torch.rsqrt(variance + eps) if weight is None else weight * torch.rsqrt(variance + eps)
    shift = -mean * factor if bias is None else bias - mean * factor
    parts = (mean * factor).abs() if bias is None else bias.abs() + (mean * factor).abs()
    kind = torch.finfo(factor.dtype)
    parts = parts + mean.abs() * (4 * kind.tiny / kind.eps)  # the factor may have lost this to underflow
    shape = call.in_shapes[0]

    def per_channel(values: Tensor) -> Tensor:
        return values.reshape(1, -1, *(1,) * (len(shape) - 1)).expand(1, *shape)

    return Elementwise(
        per_channel(factor),
        per_channel(shift),
        shape,
        training=call.training,
        shift_magnitude=2 * per_channel(parts).detach(),
    )


def _eps_of(call: Call) -> float:
    return float(call.args[7] if call.target == "aten.batch_norm.default" else call.args[6])


def _check_statistics(call: Call) -> None:
    """Check that a batch norm uses running statistics, and that no variance is negative."""
    if not 0 <= _eps_of(call) <= LARGEST_EPS:
        raise ValueError(f"eps must be between 0 and {LARGEST_EPS:g}, got {_eps_of(call):g}")
    variance = call.args[4]
    if variance is None or (call.target == "aten.batch_norm.default" and call.args[5]):
        raise ValueError("a batch norm that takes its statistics from the batch (training=True) mixes samples")
    if bool((variance < 0).any()):
        raise ValueError("a batch norm has a negative running variance: no training leaves one, load its state again")
