"""The complete certifier: every input decided, with a proof or a counterexample."""

from polycert.verification.counterexample import Counterexample
from polycert.verification.specification import Specification
from polycert.verification.verdicts import SampleVerdict, Verdict, Verdicts
from polycert.verification.verify import decide, verify

__all__ = ["Counterexample", "SampleVerdict", "Specification", "Verdict", "Verdicts", "decide", "verify"]
