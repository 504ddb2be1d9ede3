"""The paper's IBP-inspired bounds (Appendix A-C): linear forms whose constant parts are pushed forward layer by layer.

With one slope per unit, a node is `slope . x + middle -+ spread`. Slope and middle are those of rows pulled back to the
input, which windows and settled units make cheap. What is pushed forward is the spread: it grows by the absolute
weights of every layer, where CROWN's is that of the rows as a whole and never larger.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from polycert.bounding.backward import Bound, Pass, Pulled, bound_of, pull
from polycert.errors import PolycertError
from polycert.forms import Form
from polycert.rules import Activation, Linear


@dataclass(eq=False)
class ForwardPass(Pass):
    """Keeps the spreads of the nodes as well."""

    spreads: dict[int, Tensor] = field(default_factory=dict)

    def part(self, samples: Tensor) -> ForwardPass:
        """With the spreads of those samples."""
        some = super().part(samples)
        assert isinstance(some, ForwardPass)
        if some is self:
            return self
        return replace(some, spreads={k: v if len(v) == 1 else v[samples] for k, v in self.spreads.items()})

    def ready(self, index: int) -> None:
        """The spread as well."""
        super().ready(index)
        self.spread(index)

    def widened(self, start: int, form: Form, pulled: Pulled) -> Pulled:
        """Rows over a node take its spread instead of their own."""
        return pulled._replace(spread=self._times(form, start))

    def spread(self, index: int) -> Tensor:
        """Half the gap between a node's two lines in the input, `[batch or 1, *shape]`, rounded up."""
        if index not in self.spreads:
            self.spreads[index] = self._find_spread(index)
        return self.spreads[index]

    def _find_spread(self, index: int) -> Tensor:
        node = self.graph.nodes[index]
        if node.op is None:
            return self.like.new_zeros(1, *node.shape)
        parts = [self.spread(i) for i in node.inputs]
        if isinstance(node.op, Activation):
            return self._up(self._over_activation(index, parts[0]), 2)
        assert isinstance(node.op, Linear)
        return self._up(node.op.widen(*parts), max(node.op.forward_terms, node.op.backward_terms))

    def _over_activation(self, index: int, spread: Tensor) -> Tensor:
        lines = self.lines(index)
        if not lines.shared:
            raise PolycertError("method 'forward' needs one slope: use relaxation 'parallel'")
        # A gap may be below 0 by rounding, and must not make up for others.
        return lines.lower_slope.abs() * spread + lines.half_gap.clamp(min=0)

    def _times(self, rows: Form, index: int) -> Tensor:
        return self._up(rows.abs_dot(self.spread(index)), rows.length)

    def _up(self, sums: Tensor, terms: int) -> Tensor:
        """Sums of so many products, none of them negative, rounded up."""
        if self.rounding is None:
            return sums
        return sums * (1 + 2 * self.rounding.gamma(terms + 1)) + self.rounding.tiny * (terms + 1)

    def at_activations(self, form: Form, side: int) -> Tensor | float:
        """The spread of rows over the output: the last affine layers are fused with them first."""
        nearest = pull(self, self.graph.output, form, side, through=False)
        return sum((self._times(rows, index) for index, rows in nearest.forms.items()), start=nearest.spread)


def final_by_forward(run: Pass, form: Form, side: int) -> Bound:
    """Pull the rows to the input; their spread is that of the activations before the last affine layers."""
    if not isinstance(run, ForwardPass):
        raise TypeError("the forward method needs a ForwardPass")
    run.prepare(run.graph.output)
    pulled = pull(run, run.graph.output, form, side)
    return bound_of(run, pulled._replace(spread=run.at_activations(form, side)), side)
