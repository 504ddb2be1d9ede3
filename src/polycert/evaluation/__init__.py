"""A whole row of a table for one network: errors, attacks, proofs, radii, and their confidence intervals."""

from polycert.evaluation.files import Evaluation
from polycert.evaluation.run import evaluate

__all__ = ["Evaluation", "evaluate"]
