"""The complete certifier: every input decided, with a proof or a counterexample."""

from polycert.verification.counterexample import Witness
from polycert.verification.decide import decide
from polycert.verification.specification import Specification
from polycert.verification.status import Decision
from polycert.verification.verdicts import Verdict, Verdicts
from polycert.verification.verify import verify

__all__ = ["Decision", "Specification", "Verdict", "Verdicts", "Witness", "decide", "verify"]
