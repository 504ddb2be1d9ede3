"""What every linear form can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from polycert.forms.dense import Dense
    from polycert.forms.identity import Differences, Identity, Selected
    from polycert.forms.patches import Windowed

Shape = tuple[int, ...]


class Pullable(Protocol):
    """What a form needs to know of an affine op with one input."""

    @property
    def in_shape(self) -> Shape:
        """Shape of the op's input, without the batch."""
        ...

    def adjoint(self, rows: Tensor) -> Tensor:
        """Map `[n, *out_shape]` to `[n, *in_shape]` by the transposed linear part."""
        ...

    def pull_identity(self, form: Identity) -> Form:
        """The linear part's own rows."""
        ...

    def pull_selected(self, form: Selected) -> Form:
        """Some of the linear part's own rows."""
        ...

    def pull_windowed(self, form: Windowed) -> Form:
        """Windows through the op."""
        ...

    def pull_differences(self, form: Differences) -> Form:
        """Differences of outputs through the op."""
        ...


class Form(ABC):
    """Rows of coefficients over a node's value `[batch, *shape]`."""

    shape: Shape

    @property
    @abstractmethod
    def length(self) -> int:
        """How many terms a row's sum has at most (for rounding-error terms)."""

    @property
    def exact(self) -> bool:
        """Whether pulling it through an affine op is free of rounding."""
        return False

    @abstractmethod
    def coefficients(self) -> Tensor:
        """All coefficients, the terms of a row last: `[batch or 1, ..., terms]`."""

    @abstractmethod
    def align(self, values: Tensor) -> Tensor:
        """Arrange `values` `[batch, *shape]` beside `coefficients()`; nothing (0) beyond an image's border."""

    @abstractmethod
    def collect(self, sums: Tensor) -> Tensor:
        """Bring the result of a reduction over the terms to `[batch, rows]`."""

    @abstractmethod
    def dot(self, values: Tensor) -> Tensor:
        """Every row applied to `values` `[batch or 1, *shape]`: `[batch, rows]`."""

    @abstractmethod
    def abs_dot(self, values: Tensor) -> Tensor:
        """The rows' absolute values applied to `values`: `[batch, rows]`."""

    def dots(self, values: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """`dot(values)` and `abs_dot(sizes)`, both `[batch, *shape]` or both `[1, *shape]`."""
        return self.dot(values), self.abs_dot(sizes)

    def relaxed(self, slope: Tensor, values: Tensor, sizes: Tensor) -> tuple[Form, Tensor, Tensor]:
        """`scale(slope)`, `dot(values)` and `abs_dot(sizes)`: what rows meet at an activation with one slope."""
        return self.scale(slope), *self.dots(values, sizes)

    @abstractmethod
    def scale(self, factor: Tensor) -> Form:
        """Every coefficient times `factor` `[batch or 1, *shape]`."""

    @abstractmethod
    def split_scale(self, positive: Tensor, negative: Tensor) -> Form:
        """Positive coefficients times one factor, negative ones times another."""

    @abstractmethod
    def pull(self, op: Pullable) -> Form:
        """The same functions, seen from the input of the affine op that made this node (without its bias)."""

    @abstractmethod
    def dense(self) -> Dense:
        """The same form with every coefficient written out."""

    def view(self, shape: Shape) -> Form:
        """The same coefficients over a reshaped value."""
        return self.dense().view(shape)

    def negative(self) -> Form:
        """The form times -1."""
        return self.dense().negative()

    def plus(self, other: Form) -> Form:
        """The sum of two forms over the same node."""
        return self.dense().plus(other)

    def windows_like(self, other: Windowed) -> Windowed | None:
        """This form in windows at the same points as `other`, where that is possible."""
        return None

    def at(self, index: Tensor) -> Dense | None:
        """Only the coefficients at some entries `[batch, count]` of each sample, where that is cheap."""
        return None

    def inside(self) -> Form:
        """The same without coefficients that meet no value (beyond an image's border), for norms of rows."""
        return self

    def with_coefficients(self, coef: Tensor) -> Form:
        """The same structure with other coefficients, given as `coefficients()` gives them."""
        return self.dense().with_coefficients(coef)


class FlatForm(Form):
    """A form whose coefficients lie beside the node's entries in order, once written out."""

    def coefficients(self) -> Tensor:
        """Written out: `[batch or 1, rows, entries]`."""
        return self.dense().coefficients()

    def align(self, values: Tensor) -> Tensor:
        """`[batch, 1, entries]`."""
        return values.flatten(1).unsqueeze(1)

    def collect(self, sums: Tensor) -> Tensor:
        """Already `[batch, rows]`."""
        return sums
