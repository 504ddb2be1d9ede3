"""The complete certifier: every input decided, with a proof or a counterexample."""

from polycert.exact.decide import decide
from polycert.exact.outcome import Decision
from polycert.exact.specification import Specification
from polycert.exact.verdicts import Verdict, Verdicts
from polycert.exact.verify import verify
from polycert.exact.witness import Witness

__all__ = ["Decision", "Specification", "Verdict", "Verdicts", "Witness", "decide", "verify"]
