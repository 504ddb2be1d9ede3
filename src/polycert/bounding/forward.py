"""The paper's IBP-inspired bounds (Appendix A-C): the gap between the linear bounds is pushed forward, layer by layer.

With one slope per unit, the bounds of a node are `slope . x + middle -+ spread`. Slope and middle are those of a
backward pass, which windows and stable units make cheap. The spread is pushed forward through the absolute weights of
each layer. It is never smaller than CROWN's, which is computed for the rows as a whole.
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
    """A pass that also stores the spread of each node."""

    spreads: dict[int, Tensor] = field(default_factory=dict)

    def part(self, samples: Tensor) -> ForwardPass:
        """The same pass for some of the samples, with their spreads."""
        some = super().part(samples)
        assert isinstance(some, ForwardPass)
        if some is self:
            return self
        return replace(some, spreads={k: v if len(v) == 1 else v[samples] for k, v in self.spreads.items()})

    def prepare_lines(self, index: int) -> None:
        """As `Pass.prepare_lines`, and the spread of the node."""
        super().prepare_lines(index)
        self.spread(index)

    def adjusted(self, start: int, form: Form, pulled: Pulled) -> Pulled:
        """The pulled rows with the spread of their node in place of their own."""
        return pulled._replace(spread=self._times(form, start))

    def spread(self, index: int) -> Tensor:
        """Half the gap between a node's two linear bounds, `[batch or 1, *shape]`, rounded up."""
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
        # Rounding may make a gap negative, which would reduce the other terms.
        return lines.lower_slope.abs() * spread + lines.half_gap.clamp(min=0)

    def _times(self, rows: Form, index: int) -> Tensor:
        """The spread of rows over a node, `[batch, rows]`."""
        return self._up(rows.abs_dot(self.spread(index)), rows.length)

    def _up(self, sums: Tensor, terms: int) -> Tensor:
        """Sums of `terms` non-negative products, rounded up."""
        if self.rounding is None:
            return sums
        return sums * (1 + 2 * self.rounding.gamma(terms + 1)) + self.rounding.tiny * (terms + 1)

    def at_activations(self, form: Form, side: int) -> Tensor | float:
        """The spread of rows over the output, after they are fused with the last affine layers, `[batch, rows]`."""
        nearest = pull(self, self.graph.output, form, side, stop=self.graph.layout.curved)
        return sum((self._times(rows, index) for index, rows in nearest.forms.items()), start=nearest.spread)


def final_by_forward(run: Pass, form: Form, side: int) -> Bound:
    """The forward bound of rows over the output: pulled to the input, with the spread of the last activations."""
    if not isinstance(run, ForwardPass):
        raise TypeError("the forward method needs a ForwardPass")
    run.prepare(run.graph.output)
    pulled = pull(run, run.graph.output, form, side)
    return bound_of(run, pulled._replace(spread=run.at_activations(form, side)), side)
