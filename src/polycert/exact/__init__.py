"""The complete certifier: every input decided, with a proof or a counterexample."""

from polycert.exact.decide import decide
from polycert.exact.outcome import Decision
from polycert.exact.specification import Specification

__all__ = ["Decision", "Specification", "decide"]
